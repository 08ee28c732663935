"""``torch.neuron`` of an installation that cannot be used."""

import types


class _Unavailable(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"torch.neuron.{name} cannot be used: {self._reason}") from self._reason


def unavailable_module(reason: BaseException) -> types.ModuleType:
    """A module that answers the questions programs ask before they use a device; all else raises ``reason``."""
    module = _Unavailable("torch.neuron", f"The neuron device cannot be used: {reason}")
    module._reason = reason
    module.is_available = lambda: False
    module.is_initialized = lambda: False
    module.device_count = lambda: 0
    module._is_in_bad_fork = lambda: False
    return module
