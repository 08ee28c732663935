"""Sorting, selecting, searching, counting, and moving elements."""

import math

import pytest
import torch
from against_cpu import check, check_raises, draw

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = [*INTEGERS, *FLOATS]
REAL = [torch.bool, *NUMBERS]


pytestmark = pytest.mark.usefixtures("native_family")


def ties(rows, n, values, dtype, nan=False):
    """Few different values, so that their order is a matter of the algorithm."""
    x = torch.randint(0, min(values, 100), (rows, n)).to(dtype)
    if nan and dtype.is_floating_point:
        x[:, ::7] = math.nan
    return x


@pytest.mark.parametrize("n", [1, 2, 16, 17, 40, 300, 5000])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_equal_elements_stand_in_the_order_of_the_cpu(dtype, n):
    for values in (1, 3, 100):
        x = ties(3, n, values, dtype, nan=values == 3)
        for descending in (False, True):
            check(lambda x, d=descending: torch.sort(x, descending=d), x, exact=True)
            check(lambda x, d=descending: torch.sort(x, dim=0, descending=d), x.t().contiguous(), exact=True)
        for k in {1, n // 70, n // 3, n} - {0}:
            for largest in (False, True):
                check(lambda x, k=k, big=largest: torch.topk(x, k, largest=big), x, exact=True)
                check(lambda x, k=k, big=largest: torch.topk(x, k, largest=big, sorted=False), x, exact=True)
            check(lambda x, k=k: torch.kthvalue(x, k), x, exact=True)
        check(lambda x: torch.median(x, 1), x, exact=True)
        check(lambda x: torch.nanmedian(x, 1, keepdim=True), x, exact=True)
        check(lambda x: (torch.cummax(x, 1), torch.cummin(x, 0)), x, exact=True)
    check(lambda x: torch.mode(x, 1), ties(3, n, 5, dtype), exact=True)
    check(lambda x: (torch.sort(x), torch.topk(x, x.numel()), torch.median(x)), ties(1, n, 3, dtype)[0], exact=True)


def test_long_lines_are_sorted_as_the_cpu_does():
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        x = ties(1, 150_000, 100, dtype)[0]
        check(torch.sort, x, exact=True)
        check(lambda x: torch.sort(x, descending=True), x, exact=True)
    check(torch.sort, torch.randperm(150_000).float(), exact=True)
    check(torch.sort, torch.zeros(1).expand(100), exact=True)


def test_selection_refuses_what_the_cpu_refuses():
    x = torch.zeros(4, dtype=torch.bool)
    with pytest.raises(RuntimeError):
        torch.topk(x, 5)
    check_raises(RuntimeError, lambda x: torch.kthvalue(x, 9), torch.arange(4))


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_moving(dtype):
    x = draw(4, 6, 5, dtype=dtype)
    for t in (x, x.transpose(0, 2)):
        for function in (
            lambda t: torch.flip(t, [0, 2]),
            lambda t: torch.flip(t, [-1]),
            lambda t: torch.roll(t, 7),
            lambda t: torch.roll(t, (2, -1, 0), (0, 1, 2)),
            lambda t: torch.narrow_copy(t, 1, 1, 3),
            lambda t: torch.cat([t, t[:0], torch.empty(0, device=t.device, dtype=t.dtype)], 0),
            lambda t: torch.cat([t, t.float()], 1),
            lambda t: torch.nonzero_static(t, size=9, fill_value=-3),
            lambda t: torch.nonzero_static(t, size=400),
            lambda t: torch.take(t, torch.tensor([[0, -1], [33, 7]], device=t.device)),
            lambda t: t.masked_scatter(t == t, t.flip(0)),
            lambda t: t.new_zeros(t.shape).masked_scatter_(t.bool(), t),
        ):
            check(function, t, exact=True)
    check(lambda t: (torch.flip(t, [0]), torch.roll(t, 3)), draw(200_000, dtype=dtype), exact=True)
    check(lambda t: (torch.flip(t, []), torch.roll(t, 1)), x[0, 0, 0], exact=True)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_zero_dimensional_indexing(dtype):
    x, line, zero = draw(1, dtype=dtype)[0], draw(5, dtype=dtype), torch.tensor(0)
    check(lambda x, i: (x.gather(0, i), x.index_select(0, i), x.take(i)), x, zero, exact=True)
    check(lambda x, i: (x.gather(0, i.view(1)), x.index_select(0, i)), line, zero, exact=True)
    check(lambda x, i: (x.scatter(0, i, x), x.scatter(0, i, 1), x.scatter_add(0, i, x)), x, zero)
    check(lambda x, i: (x.index_add(0, i, x), x.index_copy(0, i, x), x.index_fill(0, i, 1)), x, zero)
    check(lambda x, i: (x.gather(0, i), x.scatter_add(0, i, x)), line, torch.empty(0, dtype=torch.int64), exact=True)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_reducing_scatters(dtype, include_self):
    x, source = draw(6, 5, dtype=dtype), draw(9, 5, dtype=dtype)
    index, rows = torch.randint(0, 6, (9, 5)), torch.randint(0, 6, (9,))
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        how = {"reduce": reduce, "include_self": include_self}
        check(lambda x, i, s, how=how: x.scatter_reduce(0, i, s, **how), x, index, source)
        check(lambda x, i, s, how=how: x.scatter_reduce_(0, i, s, **how), x, index, source)
        if reduce != "sum":
            check(lambda x, i, s, how=how: x.index_reduce(0, i, s, **how), x, rows, source)
    for reduce in ("add", "multiply"):
        check(lambda x, i, s, r=reduce: x.scatter(0, i, s, reduce=r), x, index, source)
        check(lambda x, i, r=reduce: x.scatter_(0, i, 2, reduce=r), x, index)
    check(lambda x, i, s: x.index_add(0, i, s, alpha=2), x, rows, source)
    check(lambda x, i, s: x.index_copy_(0, i[:3], s[:3]), x, torch.randperm(6), source, exact=True)
    check(lambda x, i: x.index_fill_(1, i, 3), x, torch.tensor([0, -1]), exact=True)
    check(lambda x, i, v: x.index_fill_(0, i, v), x, torch.tensor([2]), source[0, 0], exact=True)
    check(lambda x, i, s: x.put_(i, s), x, torch.tensor([3, -1, 7]), source[0, :3], exact=True)
    check(lambda x, i, s: x.put_(i, s, accumulate=True), x, torch.tensor([3, -1, 3]), source[0, :3])


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, 2.5, -1.5, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_any_order(dtype, order):
    x = draw(4, 1, 6, dtype=dtype) + 0.1
    for dim in (None, 0, 1, (0, 2)):
        check(lambda x, dim=dim: torch.linalg.vector_norm(x, order, dim), x)
        check(lambda x, dim=dim: torch.linalg.vector_norm(x, order, dim, keepdim=True, dtype=torch.float64), x)
    check(lambda x: torch.norm(x, order, dim=2), x)
    check(lambda x: torch.linalg.vector_norm(x, order), x[0, 0, 0])
    if order > 0:
        check(lambda x: torch.renorm(x, order, 0, 0.7), x)
        check(lambda x: x.renorm_(order, 2, 0.7), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions(dtype):
    x = draw(5, 7, dtype=dtype)
    holes = x.clone()
    holes[1::2, ::3] = math.nan
    for correction in (0, 1, 2, 0.5, 9):
        check(lambda x, c=correction: torch.var(x, 1, correction=c), x)
        check(lambda x, c=correction: torch.std_mean(x, (0, 1), correction=c), x)
    check(lambda x: (torch.nansum(x), torch.nansum(x, 1), torch.nansum(x, 0, dtype=torch.float64)), holes)
    for function in (torch.aminmax, lambda x: torch.aminmax(x, dim=1), lambda x: torch.count_nonzero(x, (0, 1))):
        check(function, holes)
    check(lambda x: (torch.max(x, 0), torch.min(x, 0), torch.aminmax(x, dim=0)), x[0, 0])
    check(lambda x: (torch.logcumsumexp(x, 1), torch.logcumsumexp(x, 0)), x)
    check(lambda x: torch.logcumsumexp(x, 0), torch.tensor([-math.inf, -math.inf, 1, math.inf, 2], dtype=dtype))
    check(torch.trace, x)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_searching(dtype):
    sequence, values = draw(3, 8, dtype=dtype).sort(1).values, draw(3, 6, dtype=dtype)
    for right in (False, True):
        check(lambda s, v, r=right: torch.searchsorted(s, v, right=r), sequence, values)
        check(lambda s, v, r=right: torch.searchsorted(s[0], v, right=r, out_int32=True), sequence, values)
        check(lambda s, v, r=right: torch.bucketize(v, s[1], right=r), sequence, values)
        check(lambda s, r=right: torch.bucketize(2, s[1], right=r), sequence)
    order = torch.stack([torch.randperm(8) for _ in range(3)])
    shuffled = torch.empty_like(sequence).scatter_(1, order, sequence)
    check(lambda s, v, o: torch.searchsorted(s, v, sorter=o, side="right"), shuffled, values, order)
    check(lambda s, v: torch.searchsorted(s, v), sequence[0], values[0, 0])
    check(lambda s, v: torch.searchsorted(s.double(), v), sequence, values)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_distinct_values(dtype):
    x = draw(7, 3, dtype=dtype) if dtype == torch.bool else torch.randint(0, 3, (7, 3)).to(dtype)
    both = {"return_inverse": True, "return_counts": True}
    for t in (x, x.flatten(), x[:0], x[0, 0]):
        check(lambda t: torch.unique(t, **both), t, exact=True)
        check(lambda t: torch.unique_consecutive(t, **both), t, exact=True)
        check(torch.unique, t, exact=True)
    for dim in (0, 1):
        check(lambda t, d=dim: torch.unique(t, dim=d, **both), x, exact=True)
        check(lambda t, d=dim: torch.unique_consecutive(t, dim=d, **both), x, exact=True)


def test_counting():
    x = torch.tensor([3, 1, 3, 0, 7])
    check(torch.bincount, x)
    check(lambda x, w: (torch.bincount(x, w), torch.bincount(x, w.double(), 12)), x, draw(5))
    check(lambda x: torch.bincount(x, minlength=4), x[:0])
    check_raises(RuntimeError, torch.bincount, torch.tensor([1, -1]))
    check(lambda x: torch.repeat_interleave(x), x)
    check(lambda x: torch.repeat_interleave(x, x, output_size=14), x)
    check(lambda v, r: torch.repeat_interleave(v, r, dim=0), draw(5, 2), x)
    values, weight = draw(200), draw(200).abs()
    for density in (False, True):
        check(lambda v, d=density: torch.histogram(v, 10, density=d), values)
        check(lambda v, w, d=density: torch.histogram(v, 7, range=(-1.0, 2.0), weight=w, density=d), values, weight)
        check(lambda v, b, d=density: torch.histogram(v, b, density=d), values, torch.tensor([-1.0, 0.0, 0.5, 3.0]))
        check(lambda v, d=density: torch.histogramdd(v.view(100, 2), [3, 5], density=d), values)
    check(lambda v: torch.histc(v, 20), values)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_distances(p):
    def run(x, y):
        d = torch.cdist(x, y, p)
        grads = torch.autograd.grad(d.sum(), (x, y)) if p > 0 else ()
        return (d, *grads)

    for shapes in (((5, 4), (6, 4)), ((3, 30, 7), (3, 40, 7)), ((2, 1, 5, 4), (3, 6, 4))):
        check(run, *(draw(*s).requires_grad_() for s in shapes), tolerance=(1e-4, 1e-4))

    def pairs(x):
        d = torch.nn.functional.pdist(x, p)
        return (d, *torch.autograd.grad(d.sum(), x))

    check(pairs, draw(7, 5).requires_grad_(), tolerance=(1e-4, 1e-4))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_segments(dtype, reduce):
    lengths = torch.tensor([2, 0, 3, 1])

    def run(x, lengths):
        y = torch.segment_reduce(x, reduce, lengths=lengths, initial=1)
        return (y, *torch.autograd.grad(y.sum(), x))

    check(run, draw(6, 3, dtype=dtype).requires_grad_(), lengths)
    check(run, draw(6, dtype=dtype).requires_grad_(), lengths)


def test_rows_of_an_embedding_are_shortened():
    table, index = draw(10, 4) * 3, torch.tensor([1, 3, 3, 7])
    for order in (1.0, 2.0, math.inf):
        check(lambda t, i, p=order: torch.embedding_renorm_(t, i, 1.5, p), table, index)


def test_windows_and_channels():
    x = draw(3, 12, 4).requires_grad_()

    def windows(x):
        return torch.autograd.grad(x.unfold(1, 5, 2).square().sum(), x)

    check(windows, x)
    check(lambda x: torch.nn.functional.channel_shuffle(x, 3), draw(2, 6, 4, 4), exact=True)
    check(lambda a, b: torch.linalg.cross(a, b), draw(4, 3), draw(1, 3))
    check(lambda a: torch.eye(3, 5, out=a), draw(3, 5))


def test_a_source_too_short_for_its_mask_is_refused():
    def scatter(mask, source):
        torch.zeros(4, device=mask.device).masked_scatter_(mask, source)

    check_raises((RuntimeError, IndexError), scatter, torch.ones(4, dtype=torch.bool), torch.ones(2))
