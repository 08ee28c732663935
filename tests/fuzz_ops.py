#!/usr/bin/env python3
"""Random operator calls, device against CPU.

    make fuzz ARGS='--cases 2000 --seed 7'         anything that runs natively
    make fuzz ARGS='--ops "pool|pad" --cases 500'  a family
    make fuzz ARGS='--seed 7 --case 123 -v'        one case again

A case takes a sample of PyTorch's operator database, records the ATen calls it makes on the CPU, forward and backward,
and picks one whose overload the device implements. Its arguments are then changed at random: extents (0 and 1 among
them), dimensions dropped, dtypes, layouts (permuted, sliced, stepped, expanded, at an offset), NaN, infinities, -0.0 and
the extremes of integers. Both devices run the call on their own copies, and dtype, shape, values, what was written in
place, what aliases what, and the kind of exception must agree.

A case depends on its seed and number alone. For a mismatch the simplest arguments that still show it are printed, and
the exit status is 1.
"""

import argparse
import collections
import faulthandler
import random
import re
import sys
import warnings

import torch
from against_cpu import DEVICE, TOLERANCES
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]

# What they return is not determined by their arguments.
UNDETERMINED = re.compile(
    r"empty|rand|bernoulli|dropout|multinomial|normal|uniform|exponential|poisson|cauchy|geometric"
)
MOST_SAMPLES = 12
MOST_ELEMENTS = 200_000


class Recorder(TorchDispatchMode):
    """Keeps the calls of overloads that the device implements."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, overload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_native(overload):
            self.calls.append((overload, *tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))))
        return overload(*args, **kwargs)


def is_native(overload):
    name = overload._schema.name
    full = f"{name}.{overload._overloadname}" if overload._overloadname != "default" else name
    return (
        name.startswith("aten::")
        and not UNDETERMINED.search(name)
        and torch.Tag.nondeterministic_seeded not in overload.tags
        and torch._C._dispatch_has_kernel_for_dispatch_key(full, "PrivateUse1")
    )


def record(rng, ops):
    """A native call that a sample of a random operator makes, or None."""
    op = rng.choice(ops)
    dtypes = sorted((set(DTYPES) & set(op.supported_dtypes("cpu"))), key=str)
    if not dtypes:
        return None
    torch.manual_seed(rng.randrange(1 << 30))
    dtype = rng.choice(dtypes)
    grad = dtype.is_floating_point and op.supports_autograd and rng.random() < 0.5
    samples = []
    for sample, _ in zip(op.sample_inputs("cpu", dtype, requires_grad=grad), range(MOST_SAMPLES), strict=False):
        samples.append(sample)
    if not samples:
        return None
    sample = rng.choice(samples)
    with Recorder() as recorder:
        out = op(sample.input, *sample.args, **sample.kwargs)
        if grad:
            outs = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
            if outs:
                torch.autograd.backward([t.sum() for t in outs if not t.is_complex()])
    return rng.choice(recorder.calls) if recorder.calls else None


def relaid(rng, tensor, overwritten):
    """The same values in another layout."""
    how = rng.randrange(7)
    if how == 1 and tensor.dim() > 1:
        order = list(range(tensor.dim()))
        rng.shuffle(order)
        return tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.dim())])
    if how == 2 and tensor.dim() in (4, 5) and tensor.numel():
        return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
    if how in (3, 4) and tensor.dim():
        step, start = rng.choice([1, 2, 3]), rng.randrange(3)
        base = torch.zeros([start + n * step for n in tensor.shape], dtype=tensor.dtype)
        view = base[tuple(slice(start, None, step) for _ in tensor.shape)]
        return view.copy_(tensor)
    if how == 5 and tensor.dim() and not overwritten:
        dim = rng.randrange(tensor.dim())
        if tensor.shape[dim]:
            return tensor.narrow(dim, 0, 1).expand(tensor.shape)
    if how == 6:
        base = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
        return base[1:].view(tensor.shape).copy_(tensor)
    return tensor


def changed(rng, call):
    """The call with its tensors changed: all extents and dtypes in one way, values and layouts each in its own."""
    overload, args, kwargs = call
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and not t.is_complex()]
    extents = sorted({n for t in tensors for n in t.shape})
    resize = {}
    if extents and rng.random() < 0.4:
        resize[rng.choice(extents)] = rng.choice([0, 1, 1, 2, 3, 17, 65])
    recast = {}
    if rng.random() < 0.4:
        recast = {d: rng.choice(FLOATS) for d in FLOATS[:1]} if rng.random() < 0.7 else {}
        source = rng.choice([t.dtype for t in tensors]) if tensors else None
        if source in FLOATS:
            target = rng.choice(FLOATS)
            recast = dict.fromkeys(FLOATS, target)
        elif source in INTEGERS and rng.random() < 0.5:
            recast = {source: rng.choice(INTEGERS)}
    drop = rng.random() < 0.05

    def change(t):
        if t.is_complex() or t.layout != torch.strided:
            return t
        shape = [resize.get(n, n) for n in t.shape]
        if shape != list(t.shape):
            n = 1
            for extent in shape:
                n *= extent
            if n > MOST_ELEMENTS:
                return t
            source = t.reshape(-1)
            t = source[torch.arange(n) % max(source.numel(), 1)].view(shape) if source.numel() else t.new_zeros(shape)
        if drop and t.dim() and t.shape[0]:
            t = t[0]
        t = t.to(recast.get(t.dtype, t.dtype)).clone()
        if t.numel() and rng.random() < 0.3:
            if t.dtype.is_floating_point:
                specials = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
            elif t.dtype != torch.bool and t.numel() > 2 and not is_index(overload):
                specials = [torch.iinfo(t.dtype).min, torch.iinfo(t.dtype).max, 0, 1]
            else:
                specials = []
            flat = t.view(-1)
            for special in specials:
                if rng.random() < 0.4:
                    flat[rng.randrange(t.numel())] = special
        return t

    args, kwargs = tree_map_only(torch.Tensor, change, (args, kwargs))
    written = written_by(overload)

    def lay(position, value):
        return tree_map_only(torch.Tensor, lambda t: relaid(rng, t, position in written), value)

    args = tuple(lay(i, value) for i, value in enumerate(args))
    return overload, args, {key: lay(key, value) for key, value in kwargs.items()}


def is_index(overload):
    return any(
        word in overload._schema.name for word in ("index", "gather", "scatter", "embedding", "take", "nll", "pool")
    )


def written_by(overload):
    """Positions and names of the arguments that the overload writes to."""
    written = set()
    for i, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {i, argument.name}
    return written


def moved(value, device):
    """A copy of the arguments on a device, layouts kept."""

    def move(t):
        if t.numel() == 0:  # its offset may lie outside of its storage
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        base = torch.as_strided(t, (t.storage_offset() + span,), (1,), 0).clone().to(device)
        return torch.as_strided(base, t.shape, t.stride(), t.storage_offset())

    return tree_map_only(torch.Tensor, move, value)


def run(overload, args, kwargs, device):
    """Result or exception, and the arguments afterwards."""
    args, kwargs = moved((args, kwargs), device)
    try:
        result = overload(*args, **kwargs)
        if device != "cpu":
            torch.accelerator.synchronize()
    except Exception as error:
        return error, None
    return result, (args, kwargs)


def aliases(result, arguments):
    """For each tensor of the result, the positions of the arguments it shares memory with."""
    arguments = [t for t in tree_flatten(arguments)[0] if isinstance(t, torch.Tensor)]
    results = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
    return [
        [
            i
            for i, a in enumerate(arguments)
            if a.numel() and a.untyped_storage().data_ptr() == r.untyped_storage().data_ptr()
        ]
        for r in results
    ]


def difference(got, want):
    """What is different about two results, or None."""
    (got, got_structure), (want, want_structure) = tree_flatten(got), tree_flatten(want)
    if got_structure != want_structure:
        return f"structure {got_structure}, on the CPU {want_structure}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if not isinstance(w, torch.Tensor):
            if g != w and not (g != g and w != w):
                return f"{g}, on the CPU {w}"
            continue
        if (g.dtype, g.shape) != (w.dtype, w.shape):
            return f"tensor {i}: {g.dtype} {list(g.shape)}, on the CPU {w.dtype} {list(w.shape)}"
        rtol, atol = TOLERANCES.get(w.dtype, (0, 0))
        g, w = g.detach().cpu(), w.detach()
        if w.is_floating_point():
            g, w = g.double(), w.double()
        same = torch.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True) if w.is_floating_point() else g == w
        if not same.all():
            at = tuple(same.logical_not().nonzero()[0].tolist())
            wrong = same.numel() - int(same.sum())
            return f"tensor {i}{list(at)}: {g[at].item()}, on the CPU {w[at].item()} ({wrong} of {same.numel()} differ)"
    return None


def mismatch(call):
    """How the device differs from the CPU, or None; and whether the CPU raised."""
    want, after_cpu = run(*call, "cpu")
    got, after = run(*call, DEVICE)
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is type(got):
            return None, True
        text = [str(v).split("\n")[0][:100] if isinstance(v, Exception) else "" for v in (got, want)]
        return f"{type(got).__name__}({text[0]}), on the CPU {type(want).__name__}({text[1]})", True
    found = difference(got, want) or difference(after, after_cpu)
    if found is None and aliases(got, after) != aliases(want, after_cpu):
        found = f"aliases {aliases(got, after)}, on the CPU {aliases(want, after_cpu)}"
    return found, False


def simplest(call):
    """The call with its tensors made row-major and plain, one after the other, as long as it still goes wrong."""
    overload, args, kwargs = call
    flat, structure = tree_flatten((args, kwargs))
    for i, value in enumerate(flat):
        if not isinstance(value, torch.Tensor) or value.is_complex():
            continue
        plain = [value.contiguous().clone()]
        if value.is_floating_point():
            plain.insert(0, value.nan_to_num(1, 1, 1).contiguous())
        for candidate in plain:
            trial = [*flat[:i], candidate, *flat[i + 1 :]]
            args, kwargs = torch.utils._pytree.tree_unflatten(trial, structure)
            if mismatch((overload, args, kwargs))[0]:
                flat = trial
                break
    args, kwargs = torch.utils._pytree.tree_unflatten(flat, structure)
    return overload, args, kwargs


def described(call):
    overload, args, kwargs = call

    def show(value):
        if isinstance(value, torch.Tensor):
            text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            if not value.is_contiguous():
                text += f" strides {list(value.stride())}"
            return text + (f" = {value.tolist()}" if value.numel() <= 8 else "")
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(show, value)) + "]"
        return repr(value)

    parts = [*map(show, args), *(f"{key}={show(value)}" for key, value in kwargs.items())]
    return f"{overload}({', '.join(parts)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this case only")
    parser.add_argument("--ops", default="", help="regular expression over the names of PyTorch's operator database")
    parser.add_argument("--aten", default="", help="regular expression over the names of overloads")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every call before it runs")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    ops = [op for op in op_db if re.search(options.ops, op.name)]
    counts, wrong = collections.Counter(), 0
    for case in [options.case] if options.case is not None else range(options.cases):
        rng = random.Random(f"{options.seed} {case}")
        try:
            call = record(rng, ops)
            call = call and changed(rng, call)
        except Exception as error:  # a sample that this PyTorch itself does not run
            counts[f"no sample: {type(error).__name__}"] += 1
            continue
        if call is None or not re.search(options.aten, str(call[0])):
            counts["no native call"] += 1
            continue
        if options.verbose:
            print(case, described(call), flush=True)
        found, raised = mismatch(call)
        counts["raised on both" if raised and not found else "compared"] += 1
        if found:
            wrong += 1
            call = simplest(call)
            print(f"seed {options.seed} case {case}: {described(call)}\n    {mismatch(call)[0] or found}", flush=True)
    print(f"{wrong} mismatches;", ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
