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
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings

import torch
from against_cpu import DEVICE, TOLERANCES
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]

# What they return is not determined by their arguments.
UNDETERMINED = re.compile(
    r"empty|rand|bernoulli|dropout|multinomial|normal|uniform|exponential|poisson|cauchy|geometric"
)
MOST_SAMPLES = 12


def infinite(call):
    """Whether an argument has an infinite element."""
    tensors = [t for t in tree_flatten(call[1:])[0] if isinstance(t, torch.Tensor)]
    return any(t.is_floating_point() and bool(t.isinf().any()) for t in tensors)


def beyond(call, of, index):
    """Whether the index argument names places that the planes of the argument indexed do not have."""
    args = call[1]
    places = args[of].shape[-2:].numel()
    return args[index].numel() and not 0 <= int(args[index].min()) <= int(args[index].max()) < places


# Calls in which the CPU is not the measure: overload, the arguments this is about, and why.
EXCLUDED = [
    (
        r"_local_scalar_dense",
        lambda call: call[1][0].numel() != 1,
        "`item` has refused these before; the CPU's kernel returns the first element of several, or reads past none",
    ),
    (
        r"adaptive_max_pool2d_backward",
        lambda call: beyond(call, 1, 2),
        "the CPU adds to whatever lies behind the plane, and past the last plane corrupts the heap",
    ),
    (
        r"softmax_backward_data",
        lambda call: call[1][3] != call[1][0].dtype,
        "the dtype of the input only ever is half for a gradient in float; the CPU ignores all others",
    ),
    (
        r"(var|std)_mean|_(layer|group|batch)_norm",
        infinite,
        "the CPU's running mean of infinite values is infinite or NaN by where they stand; the device's is the sum's",
    ),
    (
        r"_ctc_loss",
        lambda call: (
            "backward" in str(call[0]) or (call[1][1].numel() and int(call[1][1].max()) >= call[1][0].shape[-1])
        ),
        "the CPU reads past the classes; what the backward takes, the forward has left, and the CPU believes any",
    ),
    (
        r"_embedding_bag",
        lambda call: (
            any(
                t.numel() and (int(t.min()) < 0 or int(t.max()) >= most)
                for t, most in ((call[1][1], call[1][0].shape[0]), (call[1][2], call[1][1].numel() + 1))
            )
            or bool((call[1][2].diff() < 0).any())
        ),
        "which exception it is depends on the path that the CPU takes",
    ),
    (
        r"grid_sampler",
        lambda call: any(not bool(t.isfinite().all()) for t in call[1][:3] if isinstance(t, torch.Tensor)),
        "the CPU makes integers of infinite places, which is undefined, and reads there",
    ),
    (
        r"fractional_max_pool",
        lambda call: isinstance(call[1][3], torch.Tensor) and call[1][3].numel() == 0,
        "the CPU does not look how many random samples there are",
    ),
    (
        r"adaptive_max_pool3d_backward|fractional_max_pool2d_backward",
        lambda call: not call[1][-1].is_contiguous(),
        "the CPU reads indices as if they were contiguous",
    ),
    (
        r"batch_norm_backward",
        lambda call: not all(t.is_contiguous() for t in call[1] if isinstance(t, torch.Tensor) and t.dim() == 1),
        "the CPU reads statistics as if they were contiguous",
    ),
    (
        r"log_sigmoid_backward",
        lambda call: True,
        "the last argument is what the forward kernel has left for this one; the CPU believes any",
    ),
    (
        r"segment_reduce",
        lambda call: any(
            t.numel() and int(t.min()) < 0
            for t in tree_flatten(call[1:])[0]
            if isinstance(t, torch.Tensor) and not t.is_floating_point()
        ),
        "the CPU reads from negative offsets on",
    ),
]


# Results after the first that only the CPU's own backward kernel reads: they depend on the path taken, or are not written.
PRIVATE = re.compile(r"_embedding_bag|_ctc_loss")

# What the CPU has no kernel for is the device's to have, and which exception an index raises differs on the CPU.
MORE_THAN_THE_CPU = re.compile(r"not implemented for|expected scalar type Long but found Int")
OUT_OF_RANGE = re.compile(r"out of|should be|Expected")


def excluded(call):
    """Why this call says nothing about the device, or None."""
    for overload, concerned, reason in EXCLUDED:
        if re.search(overload, str(call[0])) and concerned(call):
            return reason
    return None


MOST_ELEMENTS = 200_000


class Recorder(TorchDispatchMode):
    """Keeps the calls of overloads that the device implements."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, overload, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if is_native(overload) and all(t.layout == torch.strided for t in tensors):
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
        word in overload._schema.name
        for word in ("index", "gather", "scatter", "embedding", "take", "nll", "pool", "segment")
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


class Progress:
    """Where a process is, kept in a file that survives it."""

    file = None
    case = 0

    def on(self, device):
        if self.file is not None:
            os.pwrite(self.file, f"{self.case} {device:8}\n".encode(), 0)


PROGRESS = Progress()


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


def is_as_exact(call, got, want):
    """Whether results that differ are as near to those in double precision as the CPU's are."""

    def wide(value):
        if isinstance(value, torch.Tensor):
            return value.double() if value.is_floating_point() or of_integers else value
        return torch.float64 if value in FLOATS else value

    of_integers = not any(t.is_floating_point() for t in tree_flatten(call[1:])[0] if isinstance(t, torch.Tensor))
    narrow = [t for t in tree_flatten(want)[0] if isinstance(t, torch.Tensor)]
    if not any(t.dtype in FLOATS and t.dtype != torch.float64 for t in narrow):
        return False
    overload, args, kwargs = call
    PROGRESS.on("cpu")
    exact, after = run(overload, tree_map(wide, args), tree_map(wide, kwargs), "cpu")
    if isinstance(exact, Exception):
        return False
    exact = [t for t in tree_flatten((exact, after))[0] if isinstance(t, torch.Tensor)]
    got = [t for t in tree_flatten(got)[0] if isinstance(t, torch.Tensor)]
    for g, w, e in zip(got, narrow, exact, strict=True):
        g, w = g.detach().cpu(), w.detach()
        if w.is_complex() or not w.is_floating_point():
            if not torch.equal(g, w):
                return False
            continue
        rtol, atol = TOLERANCES[w.dtype]
        g, w, e = g.double(), w.double(), e.detach().to(w.dtype).double()
        if not torch.equal(g.isnan(), w.isnan()):
            return False
        errors = [(t - e).abs().nan_to_num() for t in (g, w)]
        if g.numel() and errors[0].max() > errors[1].max() + atol + rtol * e.abs().nan_to_num(0, 0, 0).max():
            return False
    return True


def mismatch(call):
    """How the device differs from the CPU, or None; and whether the CPU raised."""
    PROGRESS.on("cpu")
    want, after_cpu = run(*call, "cpu")
    PROGRESS.on(DEVICE)
    got, after = run(*call, DEVICE)
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is type(got) or MORE_THAN_THE_CPU.search(str(want)):
            return None, True
        if isinstance(got, IndexError) and isinstance(want, RuntimeError) and OUT_OF_RANGE.search(str(want)):
            return None, True
        text = [str(v).split("\n")[0][:100] if isinstance(v, Exception) else "" for v in (got, want)]
        return f"{type(got).__name__}({text[0]}), on the CPU {type(want).__name__}({text[1]})", True
    if PRIVATE.search(str(call[0])) and isinstance(want, tuple):
        got, want = got[:1], want[:1]
    found = difference(got, want) or difference(after, after_cpu)
    if found and is_as_exact(call, (got, after), (want, after_cpu)):
        found = None
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
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    parser.add_argument("--ops", default="", help="regular expression over the names of PyTorch's operator database")
    parser.add_argument("--aten", default="", help="regular expression over the names of overloads")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every call before it runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.case is None and options.progress is None:
        return supervised(options)
    if options.progress:
        PROGRESS.file = os.open(options.progress, os.O_RDWR)
    ops = [op for op in op_db if re.search(options.ops, op.name)]
    counts, wrong = collections.Counter(), 0
    last = options.first + options.cases
    for case in [options.case] if options.case is not None else range(options.first, last):
        PROGRESS.case = case
        PROGRESS.on("nowhere")
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
        if excluded(call):
            counts["excluded"] += 1
            continue
        if options.verbose:
            print(case, described(call), flush=True)
        found, raised = mismatch(call)
        counts["raised on both" if raised and not found else "compared"] += 1
        if found:
            wrong += 1
            call = simplest(call)
            print(f"seed {options.seed} case {case}: {described(call)}\n    {mismatch(call)[0] or found}", flush=True)
    print(f"{wrong} mismatches;", ", ".join(f"{count} {what}" for what, count in counts.most_common()), flush=True)
    return int(wrong > 0)


def supervised(options):
    """The cases in a process of their own: one that dies is reported, and the next case goes on."""
    first, last, failed = options.first, options.first + options.cases, False
    with tempfile.NamedTemporaryFile() as progress:
        while first < last:
            given = [f"--seed={options.seed}", f"--ops={options.ops}", f"--aten={options.aten}"]
            given += [f"--first={first}", f"--cases={last - first}", f"--progress={progress.name}"]
            given += ["-v"] if options.verbose else []
            code = subprocess.run([sys.executable, __file__, *given], check=False).returncode
            failed |= code != 0
            if code in (0, 1):
                break
            with open(progress.name) as file:
                case, device = file.readline().split()
            print(f"seed {options.seed} case {case}: signal {-code} on {device}", flush=True)
            first = int(case) + 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
