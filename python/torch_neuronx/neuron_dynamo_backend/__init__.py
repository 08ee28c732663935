"""``torch.compile(backend="neuron")``."""

import importlib

_LAZY = {
    "create_neuron_backend": "backend",
    "get_model_name": "naming",
    "get_rank": "naming",
    "neuron_backend": "backend",
    "set_model_name": "naming",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
