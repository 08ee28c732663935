"""Comparison of the device with PyTorch's CPU results."""

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = "neuron"

# Relative and absolute tolerance by result dtype; all others must be equal.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
    torch.complex64: (1e-5, 1e-5),
}


def copy(arguments, device):
    """The same arguments with each tensor copied to `device`."""
    return tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().to(device).requires_grad_(t.requires_grad), arguments
    )


def strides_that_matter(tensor):
    """Strides of the dimensions with more than one element; of the others, and of an empty tensor, any will do."""
    if tensor.numel() == 0:
        return []
    return [stride for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]


def assert_same(got, want, *, exact=False, strides=False, tolerance=None):
    """Compares results, tensors or nests of them, in value, dtype, shape and (if asked) strides."""
    got, got_structure = tree_flatten(got)
    want, want_structure = tree_flatten(want)
    assert got_structure == want_structure
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        assert g.device.type == torch.device(DEVICE).type
        if strides:
            assert strides_that_matter(g) == strides_that_matter(w)
        rtol, atol = (0, 0) if exact else tolerance or TOLERANCES.get(w.dtype, (0, 0))
        torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=rtol, atol=atol, equal_nan=True)


def check(function, *arguments, **how):
    """Runs `function` on both devices, each with its own copy of the arguments, and compares results and arguments."""
    on_cpu, on_device = copy(arguments, "cpu"), copy(arguments, DEVICE)
    want, got = function(*on_cpu), function(*on_device)
    assert_same(got, want, **how)
    # An in-place operator must have written what the CPU's wrote, and nothing else.
    assert_same(on_device, on_cpu, **how)


def check_raises(exception, function, *arguments):
    """`function` raises the same kind of exception on both devices, and the device is usable afterwards."""
    for device in ("cpu", DEVICE):
        moved = copy(arguments, device)
        try:
            function(*moved)
            if device != "cpu":
                torch.accelerator.synchronize()
        except exception:
            continue
        raise AssertionError(f"no {exception} on {device}")
    assert (torch.ones(3, device=DEVICE) + 1).tolist() == [2, 2, 2]


def draw(*shape, dtype=torch.float32):
    """A tensor of random values that the dtype can hold."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    low = 0 if dtype == torch.uint8 else -20
    return torch.randint(low, 20, shape, dtype=dtype)
