"""Mixed precision under the older names of ``torch.autocast("neuron")`` and ``torch.amp.GradScaler("neuron")``."""

import functools

import torch
from torch.amp.autocast_mode import autocast as _autocast
from torch.amp.grad_scaler import GradScaler as _GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """``torch.autocast("neuron", ...)``"""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__("neuron", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """``torch.amp.GradScaler("neuron", ...)``"""

    __init__ = functools.partialmethod(_GradScaler.__init__, "neuron")


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="neuron")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="neuron")
