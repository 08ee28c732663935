"""AWS Trainium as a native PyTorch device, ``neuron``.

Importing PyTorch is enough: it loads this package by itself, and ``torch.neuron``, ``device="neuron"`` and
``torch.compile(backend="neuron")`` exist. On a machine without a Trainium the device is an embedded software one.

    >>> import torch
    >>> torch.ones(3, device="neuron") + 1
    tensor([2., 2., 2.], device='neuron:0')

This package adds what ``torch.neuron`` has no room for: which operators ran on the device and which fell back to the
CPU (:func:`get_executed_ops`, :func:`get_fallback_ops`). The names of ``torch.neuron`` are here too.
"""

import atexit
import importlib
import sys

_TORCH = "2.15"  # vtables and struct layouts move with every minor release
_failure: BaseException | None = None


def _autoload() -> None:
    """What ``import torch`` calls: loading this package has registered the device, or is about to."""


# After _autoload: if this package is imported first, importing PyTorch comes back here for it.
import torch  # noqa: E402


def _register() -> None:
    """Loads the extension module and makes ``neuron`` a device of PyTorch."""
    if not torch.__version__.startswith(_TORCH + "."):
        raise ImportError(f"torch_neuronx was built for PyTorch {_TORCH}.x, this is PyTorch {torch.__version__}")
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "neuron"):
        raise ImportError(f"the device {taken!r} of another package has PyTorch's only slot for external devices")
    extension = importlib.import_module("torch_neuronx._C")
    atexit.register(extension.shutdown)  # work that still runs finishes before what it uses is torn down
    # From the renaming on, torch.accelerator answers for this device and needs its module: nothing may come between.
    torch.utils.rename_privateuse1_backend("neuron")
    module = importlib.import_module("torch_neuronx.neuron")
    torch._register_device_module("neuron", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    for name in ("amp", "memory", "random", "streams", "_utils"):
        sys.modules[f"torch.neuron.{name}"] = importlib.import_module(f"torch_neuronx.neuron.{name}")
    importlib.import_module("torch_neuronx._reductions").register()
    hooks = importlib.import_module("torch_neuronx._import_hook")
    hooks.when_imported("torch._dynamo.device_interface", "torch_neuronx._device_interface")
    hooks.when_imported("torch._dynamo.backends.registry", "torch_neuronx._default_backend")
    hooks.when_imported("torch.nn.attention.flex_attention", "torch_neuronx._flex_attention")


try:
    _register()
except Exception as error:  # a broken installation must not break `import torch`
    _failure = error

if _failure is not None:
    from torch_neuronx._unavailable import unavailable_module

    torch.neuron = unavailable_module(_failure)


# Where the names of this package live. They are loaded on first use, which keeps `import torch` quick.
_LAZY = {
    "clear_op_tracking": "torch_neuronx.op_tracking",
    "explain_compiled": "torch_neuronx.neuron_dynamo_backend.graphs",
    "stablehlo": "torch_neuronx.neuron_dynamo_backend.graphs",
    "get_executed_ops": "torch_neuronx.op_tracking",
    "get_fallback_ops": "torch_neuronx.op_tracking",
    "get_fallback_reasons": "torch_neuronx.op_tracking",
    "get_fusion_counters": "torch_neuronx.op_tracking",
    "get_dynamo_metrics": "torch_neuronx.neuron_dynamo_backend.metrics",
    "reset_dynamo_metrics": "torch_neuronx.neuron_dynamo_backend.metrics",
} | dict.fromkeys(
    (
        "Event",
        "Stream",
        "StreamContext",
        "_get_device_index",
        "_is_in_bad_fork",
        "_lazy_init",
        "current_device",
        "current_stream",
        "default_stream",
        "device",
        "device_count",
        "empty_cache",
        "get_device_properties",
        "is_available",
        "is_neuron_runtime_initialized",
        "max_memory_allocated",
        "max_memory_reserved",
        "mem_get_info",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "memory_summary",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
        "set_device",
        "set_stream",
        "stream",
        "synchronize",
    ),
    "torch_neuronx.neuron",
)
__all__ = sorted(name for name in _LAZY if not name.startswith("_"))


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _failure is not None:
        raise RuntimeError(f"torch_neuronx is not usable: {_failure}") from _failure
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
