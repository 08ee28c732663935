"""Samples of PyTorch's operator database, moved to the device as they are: strides, offsets and shared storage kept."""

import torch
from against_cpu import DEVICE
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

# The database seeds random operators itself, which makes them look deterministic: two generators never agree.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# Relative and absolute tolerance by result dtype; all others must be equal.
TOLERANCES = {
    torch.float64: (1e-6, 1e-6),
    torch.float32: (1e-4, 1e-4),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (5e-3, 5e-3),
    torch.complex64: (1e-4, 1e-4),
    torch.complex128: (1e-6, 1e-6),
    torch.complex32: (5e-3, 5e-3),
}

# Arguments that PyTorch wants on the host, whatever the device of the others.
HOST_ARGUMENTS = {"tensor_split"}


def moved(sample, op, device=DEVICE):
    """(input, args, kwargs) of a sample on `device`; tensors of one storage stay tensors of one storage."""
    storages = {}

    def move_tensor(t):
        if t.layout != torch.strided or t.device.type == "meta":
            return t.detach().to(device).requires_grad_(t.requires_grad)
        key = t.untyped_storage().data_ptr()
        if key == 0 or key not in storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
            storages[key] = whole.clone().to(device)
        # Views of other dtypes and conjugates are made on the device as they were made on the CPU.
        base = torch.empty(0, dtype=t.dtype, device=device)
        base.set_(storages[key].untyped_storage(), t.storage_offset(), t.size(), t.stride())
        if t.is_conj():
            base = base.conj()
        if t.is_neg():
            base = base._neg_view()
        return base.requires_grad_(t.requires_grad)

    def move(value):
        if isinstance(value, torch.Tensor):
            return move_tensor(value)
        if isinstance(value, torch.device) or value == "cpu":
            return device if isinstance(value, str) else torch.device(device)
        return value

    rest = (sample.args, sample.kwargs)
    if op.name not in HOST_ARGUMENTS or device == "cpu":
        rest = tree_map(move, rest)
    return tree_map(move, sample.input), *rest


def tensors(result):
    """The tensors of a nest of results."""
    return [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]


# Operators that gave random or uninitialised values.
ANY_VALUES = set()


class Expected:
    """What the CPU makes of a sample; values count unless they are random or uninitialised."""

    def __init__(self, result, values_count, exactly=None):
        self.result = result
        self.values_count = values_count
        self.exactly = exactly  # computes the same in double precision

    def check(self, got, op):
        """The same tensors up to the tolerance of their dtype, all on the device."""
        got, want = tensors(got), tensors(self.result)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            assert g.shape == w.shape
            if w.device.type == "meta":
                continue
            if op.name not in HOST_ARGUMENTS:
                assert g.device.type == DEVICE
        if not self.values_count:
            return
        pairs = [(g.detach().cpu(), w.detach()) for g, w in zip(got, want, strict=True) if w.device.type != "meta"]
        try:
            for g, w in pairs:
                rtol, atol = TOLERANCES.get(w.dtype, (0, 0))
                torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        except AssertionError:
            if not self.is_as_exact(pairs):
                raise

    def is_as_exact(self, pairs):
        """True if half precision results, which no two implementations round alike, are as near to the exact ones."""
        if self.exactly is None or not any(w.dtype in (torch.bfloat16, torch.float16) for _, w in pairs):
            return False
        for (g, w), exact in zip(pairs, tensors(self.exactly()), strict=True):
            if not torch.equal(g.isnan(), w.isnan()):
                return False
            errors = [(t.to(torch.float64) - exact.to(torch.float64)).abs().nan_to_num() for t in (g, w)]
            if errors[0].numel() and errors[0].max() > errors[1].max() + TOLERANCES.get(w.dtype, (0, 0))[1]:
                return False
        return True


def on_cpu(function, sample, op):
    """What the CPU makes of a sample, or `None` where it refuses it."""
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        try:
            results.append(function(*moved(sample, op, "cpu")))
        except Exception:
            return None
    first, second = (tensors(r) for r in results)
    same = all(alike(a, b) for a, b in zip(first, second, strict=True))
    if not same or "empty" in op.name:
        ANY_VALUES.add(op.name)

    def exactly():
        wide = tree_map(
            lambda t: t.double() if isinstance(t, torch.Tensor) and t.dtype in (torch.bfloat16, torch.float16) else t,
            moved(sample, op, "cpu"),
        )
        return function(*wide)

    return Expected(results[0], op.name not in ANY_VALUES, exactly)


def alike(a, b):
    """True if two results of the CPU are about the same."""
    return a.shape == b.shape and (a.device.type == "meta" or torch.allclose(dense(a), dense(b), equal_nan=True))


def dense(t):
    """For comparing values only."""
    t = t.detach()
    t = t.to_dense() if t.layout != torch.strided else t
    return t.to(torch.complex128 if t.dtype.is_complex else torch.float64)


def call(op):
    """The operator as a function of (input, args, kwargs)."""
    return lambda value, args, kwargs: op(value, *args, **kwargs)


__all__ = ["ANY_VALUES", "alike", "call", "moved", "on_cpu", "op_db", "tensors"]
