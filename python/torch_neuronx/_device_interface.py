"""The device as Dynamo and Inductor ask for it. Imported when Dynamo is, never before."""

import types
from typing import Any

import torch
from torch._dynamo import device_interface

from torch_neuronx import neuron

_properties: list[Any] = []
_worker_device: list[int] = []


class NeuronInterface(device_interface.DeviceInterface):
    """``torch.neuron`` under the names of ``torch._dynamo.device_interface.DeviceInterface``."""

    device = neuron.device  # type: ignore[assignment]
    Event = neuron.Event  # type: ignore[assignment]
    Stream = neuron.Stream  # type: ignore[assignment]

    class Worker:
        """Answers in compile workers, which must not touch the device."""

        @staticmethod
        def set_device(device: int) -> None:
            _worker_device[:] = [device]

        @staticmethod
        def current_device() -> int:
            return _worker_device[0] if _worker_device else neuron.current_device()

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            if device is None:
                index = NeuronInterface.Worker.current_device()
            else:
                index = neuron._get_device_index(device, optional=True)
            if not _properties:
                _properties.extend(neuron.get_device_properties(i) for i in range(neuron.device_count()))
            return _properties[index]

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    get_device_properties = staticmethod(neuron.get_device_properties)
    get_compute_capability = staticmethod(neuron.get_device_capability)
    exchange_device = staticmethod(neuron._exchange_device)
    maybe_exchange_device = staticmethod(neuron._maybe_exchange_device)
    memory_allocated = staticmethod(neuron.memory_allocated)

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return neuron.is_bf16_supported(including_emulation)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        neuron.set_stream(neuron.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return neuron.current_stream(device_idx).stream_id

    @classmethod
    def get_cache_system_info(cls) -> dict[str, object]:
        return {"name": cls.Worker.get_device_properties(0).name}


def extend(module: types.ModuleType) -> None:
    """Registers the interface.

    In the table itself: ``register_interface_for_device`` also clears a cache of Dynamo's variable classes, importing
    them, and this runs in the middle of Dynamo's own import, when that cache cannot have been filled.
    """
    module.device_interfaces["neuron"] = NeuronInterface
