"""Device memory: what is allocated, what is reserved, and giving it back.

Sizes are in bytes. Device work runs behind the program, so call :func:`torch.neuron.synchronize` before reading numbers
that must be exact.
"""

import collections
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import _get_device_index

_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes")


def memory_stats(device: torch.types.Device = None) -> "collections.OrderedDict[str, Any]":
    """Counters of the allocator, under two kinds of keys.

    Nested: ``allocated_bytes``, ``reserved_bytes`` and ``active_bytes`` are dictionaries of ``current``, ``peak``,
    ``allocated`` and ``freed`` (the last two accumulate). Flat, as of ``torch.cuda.memory_stats``:
    ``"{allocation,segment,active,inactive_split}.{all,small_pool,large_pool}.{current,peak,allocated,freed}"`` counts
    blocks, the same with ``_bytes``, ``allocated_bytes``, ``reserved_bytes`` and ``requested_bytes`` sums bytes.
    Single numbers: ``num_alloc_retries``, ``num_ooms``, ``num_tensor_frees``, ``allocation_requests``,
    ``num_device_alloc``, ``num_device_free``, ``max_split_size``.

    All zero before the device is used.
    """
    stats: collections.OrderedDict[str, Any] = collections.OrderedDict()
    pools, counters = _C.memory_stats(_get_device_index(device, optional=True))
    for name in _BYTES:
        stats[name] = dict(pools[name]["all"])
    for name in sorted(pools):
        for pool, metrics in pools[name].items():
            for metric, value in metrics.items():
                stats[f"{name}.{pool}.{metric}"] = value
    stats.update(counters)
    return stats


def memory_allocated(device: torch.types.Device = None) -> int:
    """Bytes that tensors occupy."""
    return memory_stats(device)["allocated_bytes"]["current"]


def max_memory_allocated(device: torch.types.Device = None) -> int:
    """The most bytes that tensors occupied since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes"]["peak"]


def memory_reserved(device: torch.types.Device = None) -> int:
    """Bytes the allocator holds, for tensors or for reuse."""
    return memory_stats(device)["reserved_bytes"]["current"]


def max_memory_reserved(device: torch.types.Device = None) -> int:
    """The most bytes the allocator held since the start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device)["reserved_bytes"]["peak"]


def reset_peak_memory_stats(device: torch.types.Device = None) -> None:
    """Starts peaks anew from what is current."""
    _C.reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_max_memory_allocated(device: torch.types.Device = None) -> None:
    """The same as :func:`reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: torch.types.Device = None) -> None:
    """Starts the ``allocated`` and ``freed`` totals and the single counters anew from 0."""
    _C.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Gives memory that no tensor occupies back to the system, on every device."""
    if _C.is_initialized():
        _C.empty_cache(-1)


def mem_get_info(device: torch.types.Device = None) -> tuple[int, int]:
    """(free, total) bytes of a device."""
    return _C.memory_info(_get_device_index(device, optional=True))


def host_memory_stats() -> dict[str, int]:
    """Counters of pinned host memory, flat, as of ``torch.cuda.host_memory_stats``."""
    return _C.host_memory_stats()


def memory_summary(device: torch.types.Device = None, abbreviated: bool = False) -> str:
    """The counters of :func:`memory_stats` as a table; ``abbreviated`` leaves the two pools out."""
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    pools = {"all": ""} if abbreviated else {"all": "", "small_pool": "  small pool", "large_pool": "  large pool"}
    metrics = ("current", "peak", "allocated", "freed")
    head = f"| {'Metric':<17} | {'Current':>11} | {'Peak':>11} | {'Allocated':>11} | {'Freed':>11} |"
    inner = len(head) - 2
    rule = "|" + "-" * inner + "|"
    lines = [
        "|" + "=" * inner + "|",
        "|" + f"Memory of neuron:{index} ({_C.device_name()})".center(inner) + "|",
        "|" + f"Out of memory: {stats['num_ooms']}   after a retry: {stats['num_alloc_retries']}".center(inner) + "|",
        "|" + "=" * inner + "|",
        head,
    ]
    for key, title in _ROWS.items():
        show = _bytes if key.endswith("_bytes") else str
        lines.append(rule)
        for pool, label in pools.items():
            cells = " | ".join(f"{show(stats[f'{key}.{pool}.{metric}']):>11}" for metric in metrics)
            lines.append(f"| {label or title:<17} | {cells} |")
    lines.append("|" + "=" * inner + "|")
    return "\n".join(lines) + "\n"


_ROWS = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "Reserved memory",
    "inactive_split_bytes": "Unused memory",
    "allocation": "Allocations",
    "active": "Active blocks",
    "segment": "Segments",
    "inactive_split": "Unused blocks",
}


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 10240:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.0f} GiB"
