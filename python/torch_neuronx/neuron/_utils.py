"""Naming a device."""

import torch

from torch_neuronx import _C


def _get_device_index(device: torch.types.Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index of ``device``: an index, ``"neuron:1"`` or a ``torch.device``.

    Without an index (``None``, ``"neuron"``) it is the current device if ``optional``, else ``ValueError``. The CPU is
    -1 if ``allow_cpu``, else ``ValueError``, as is any other type of device. ``RuntimeError`` for an index that does
    not exist.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "neuron":
            raise ValueError(f"Expected a neuron device, but got: {device}")
        index = device.index
    elif device is None or (isinstance(device, int) and not isinstance(device, bool)):
        index = device
    else:
        raise TypeError(f"Expected a device index, string or torch.device, but got: {type(device).__name__}")
    if index is None:
        if not optional:
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {device}")
        return _C.current_device()
    _C.check_device(index)
    return index
