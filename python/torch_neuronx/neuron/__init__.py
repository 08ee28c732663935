"""``torch.neuron``: devices, streams, memory and random numbers, under the names that ``torch.cuda`` made common.

A device is a logical NeuronCore. Functions that take a ``device`` accept an index, ``"neuron:1"``, a ``torch.device``
or ``None`` for the current device. They raise ``ValueError`` for a device of another type and ``RuntimeError`` for an
index that does not exist. Asking (``is_available``, ``device_count``, ``current_device``) starts nothing.
"""

from torch_neuronx.neuron import _utils as _utils
from torch_neuronx.neuron import amp, memory, random, streams
from torch_neuronx.neuron._utils import _get_device_index as _get_device_index
from torch_neuronx.neuron.devices import (
    NeuronDeviceProperties,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_neuron_runtime_initialized,
    set_device,
)
from torch_neuronx.neuron.devices import (
    _exchange_device as _exchange_device,
)
from torch_neuronx.neuron.devices import (
    _is_in_bad_fork as _is_in_bad_fork,
)
from torch_neuronx.neuron.devices import (
    _lazy_init as _lazy_init,
)
from torch_neuronx.neuron.devices import (
    _maybe_exchange_device as _maybe_exchange_device,
)
from torch_neuronx.neuron.memory import (
    empty_cache,
    host_memory_stats,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from torch_neuronx.neuron.random import (
    _get_generator as _get_generator,
)
from torch_neuronx.neuron.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.neuron.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    query,
    record_event,
    set_stream,
    stream,
    synchronize,
    wait_event,
    wait_stream,
)
from torch_neuronx.neuron.streams import (
    _sleep as _sleep,
)

__all__ = [
    "Event",
    "NeuronDeviceProperties",
    "Stream",
    "StreamContext",
    "amp",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_rng_state",
    "get_rng_state_all",
    "host_memory_stats",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_neuron_runtime_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "query",
    "random",
    "record_event",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "wait_event",
    "wait_stream",
]


def __getattr__(name: str) -> object:
    if name == "_initialized":
        # Activation checkpointing looks here to know whether there is a generator's state to keep.
        return is_initialized()
    if name in ("get_dynamo_metrics", "reset_dynamo_metrics"):
        from torch_neuronx.neuron_dynamo_backend import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")
