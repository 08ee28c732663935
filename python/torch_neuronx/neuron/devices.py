"""Devices: which there are, which one is current, and what they are."""

import dataclasses
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import _get_device_index

# The generation of the NeuronCore in each instance family.
_GENERATIONS = {"trn1": 2, "inf2": 2, "trn2": 3, "trn3": 4}


def is_available() -> bool:
    """True if there is a device. Never raises and starts nothing, also in a forked child."""
    return _C.device_count() > 0


def device_count() -> int:
    """How many devices (logical NeuronCores) this process sees. Starts nothing, also in a forked child."""
    return _C.device_count()


def is_initialized() -> bool:
    """True once this process has allocated device memory or launched work."""
    return _C.is_initialized()


def is_neuron_runtime_initialized() -> bool:
    """The same as :func:`is_initialized`."""
    return _C.is_initialized()


def init() -> None:
    """Starts the runtime, which happens by itself on first use. ``RuntimeError`` in a forked child."""
    _C.init()


def _lazy_init() -> None:
    """What PyTorch calls before it uses the device, for as little as seeding a generator.

    Raises ``RuntimeError`` in a forked child of a process that had used the device; starts nothing otherwise.
    """
    if _C.is_in_bad_fork():
        _C.init()


def _is_in_bad_fork() -> bool:
    """True in a child that was forked after the runtime had started, which therefore cannot use the device."""
    return _C.is_in_bad_fork()


def current_device() -> int:
    """The index of the calling thread's current device."""
    return _C.current_device()


def set_device(device: torch.types.Device) -> None:
    """Makes ``device`` current for the calling thread. A device without an index changes nothing.

    ``RuntimeError`` if the index does not exist; ``ValueError`` if it is not a neuron device.
    """
    index = _get_device_index(device, optional=True)
    _C.set_device(index)


def _exchange_device(device: int) -> int:
    """Makes ``device`` current and returns the previous one; a negative index changes nothing."""
    previous = _C.current_device()
    if device >= 0:
        _C.set_device(device)
    return previous


_maybe_exchange_device = _exchange_device


class device:
    """Context manager: ``device`` is current inside.

    Args:
        device: as everywhere; ``None`` or a negative index changes nothing.
    """

    def __init__(self, device: Any) -> None:
        unchanged = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if unchanged else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage is current inside; others change nothing."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "neuron" else None)


@dataclasses.dataclass(frozen=True, repr=False)
class NeuronDeviceProperties:
    """What :func:`get_device_properties` tells."""

    name: str
    """The instance family, such as ``trn2``."""
    total_memory: int
    """Device memory in bytes."""

    def __repr__(self) -> str:
        return f"<NeuronDeviceProperties(name='{self.name}', total_memory={self.total_memory})>"


def get_device_properties(device: torch.types.Device = None) -> NeuronDeviceProperties:
    """The family and memory of a device."""
    index = _get_device_index(device, optional=True)
    return NeuronDeviceProperties(_C.device_name(), _C.memory_info(index)[1])


def get_device_name(device: torch.types.Device = None) -> str:
    """The name of a device, such as ``neuron:0``. The hardware is ``get_device_properties(device).name``."""
    return f"neuron:{_get_device_index(device, optional=True)}"


def get_device_capability(device: torch.types.Device = None) -> tuple[int, int]:
    """The generation of the NeuronCore as (major, minor): (3, 0) on Trainium2."""
    _get_device_index(device, optional=True)
    return (_GENERATIONS.get(_C.device_name(), 0), 0)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("neuron", dtype=...)`` takes."""
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every NeuronCore computes in bfloat16."""
    return True
