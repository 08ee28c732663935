"""FlexAttention on this device: PyTorch checks the device against a list of its own."""

import functools
import types

import torch


def extend(module: types.ModuleType) -> None:
    """Lets ``torch.nn.attention.flex_attention`` take tensors of this device."""
    original = getattr(module, "_validate_device", None)
    if original is None:
        return

    @functools.wraps(original)
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "neuron":
            original(query, key, value)

    module._validate_device = validate
