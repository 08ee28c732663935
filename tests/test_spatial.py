"""Pooling, resampling, padding, sampling at a grid, sliding blocks and bags of embeddings."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, check_raises, draw

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


pytestmark = pytest.mark.usefixtures("native_family")


def images(*shape, dtype=torch.float32):
    """The same images row-major, with channels last, as a view of larger ones, and without a batch."""
    x = draw(*shape, dtype=dtype)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    yield x
    if last is not None:
        yield x.contiguous(memory_format=last)
    yield torch.stack([x, x], dim=-1)[..., 0]
    yield x[0]


def with_gradient(function):
    """`function` and the gradient of its first result."""

    def run(x, *rest):
        x = x.detach().requires_grad_()
        out = function(x, *rest)
        first = out if isinstance(out, torch.Tensor) else out[0]
        weights = torch.linspace(-1, 1, first.numel(), dtype=torch.float64).to(first.device, first.dtype)
        (grad,) = torch.autograd.grad(first, x, weights.view(first.shape))
        return out, grad

    return run


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max dilated": lambda x: F.max_pool2d(x, (2, 3), (1, 2), (0, 1), dilation=(3, 1), return_indices=True),
    "max ceil": lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True, return_indices=True),
    "mean": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "mean of what exists": lambda x: F.avg_pool2d(x, (3, 2), 1, (1, 0), ceil_mode=True, count_include_pad=False),
    "mean by a divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=7),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (5, 3), return_indices=True),
    "adaptive mean": lambda x: F.adaptive_avg_pool2d(x, (4, 7)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("pool", POOLS)
def test_pools_of_planes(pool, dtype):
    for x in images(2, 19, 13, 41, dtype=dtype):
        check(with_gradient(POOLS[pool]), x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_pools_of_integers(dtype):
    check(POOLS["max"], draw(2, 3, 9, 33, dtype=dtype), exact=True)
    if dtype == torch.int64:
        check(POOLS["mean"], draw(2, 3, 9, 33, dtype=dtype), exact=True)


@pytest.mark.parametrize("layout", range(4))
def test_pools_of_volumes(layout):
    x = next(itertools.islice(images(2, 17, 6, 7, 9), layout, None))
    check(with_gradient(lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True)), x)
    check(with_gradient(lambda x: F.avg_pool3d(x, (3, 2, 2), (1, 2, 3), 1)), x)
    check(with_gradient(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4))), x)
    check(with_gradient(lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True)), x)


def test_nan_and_infinities_in_windows():
    x = torch.full((1, 18, 6, 40), -math.inf)
    x[..., 2, 5] = math.nan
    x[..., 3, 6] = math.nan
    x[..., 1, 20:24] = math.inf
    x[..., 4, 30] = -0.0
    x[..., 4, 31] = 0.0
    for layout in (x, x.contiguous(memory_format=torch.channels_last)):
        for pool in ("max", "max dilated", "adaptive max"):
            check(POOLS[pool], layout, exact=True)


@pytest.mark.parametrize("dims", [2, 3])
def test_unpooling_and_fractional_windows(dims):
    pool, unpool = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")
    for x in images(2, 5, *[8] * dims):
        check(lambda x: unpool(*pool(x, 2, return_indices=True), 2), x)
    samples = torch.rand(2, 5, dims)
    fractional = getattr(F, f"fractional_max_pool{dims}d")
    check(
        lambda x, s: fractional(x, 2, output_size=[5] * dims, _random_samples=s, return_indices=True),
        draw(2, 5, *[9] * dims),
        samples,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bicubic"])
@pytest.mark.parametrize("size", [(9, 21), (22, 37), (5, 7), (11, 3)], ids=str)
def test_interpolation(mode, dtype, size):
    for dims in (1, 2, 3):
        if mode == "bicubic" and dims != 2:
            continue
        name = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims] if mode == "linear" else mode
        x = draw(2, 17, *(4, 11, 7)[3 - dims :], dtype=dtype)
        target = (3, *size)[3 - dims :]
        layouts = [x, x.contiguous(memory_format=torch.channels_last)] if dims == 2 else [x]
        for layout in layouts:
            check(with_gradient(lambda x, name=name, target=target: F.interpolate(x, target, mode=name)), layout)
            if mode in ("linear", "bicubic"):
                check(
                    lambda x, name=name, target=target: F.interpolate(x, target, mode=name, align_corners=True), layout
                )
                check(
                    lambda x, name=name, n=dims: F.interpolate(
                        x, scale_factor=[1.7, 0.6, 2.3][:n], mode=name, recompute_scale_factor=False
                    ),
                    layout,
                )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(9, 21), (4, 3), (11, 3)], ids=str)
def test_antialiased_interpolation(mode, size):
    for dtype in FLOATS[:2]:
        x = draw(2, 3, 11, 17, dtype=dtype)
        for layout in (x, x.contiguous(memory_format=torch.channels_last)):
            check(with_gradient(lambda x: F.interpolate(x, size, mode=mode, antialias=True)), layout)


def test_nearest_neighbours_of_bytes():
    check(lambda x: F.interpolate(x, (9, 31), mode="nearest"), draw(2, 3, 7, 13, dtype=torch.uint8), exact=True)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_padding(mode, dims):
    for dtype in (*FLOATS, *INTEGERS):
        for x in images(2, 3, *(5, 6, 7)[:dims], dtype=dtype):
            if mode == "circular" and x.dim() != dims + 2:
                continue
            for padding in ([2, 3], [0, 1], [-1, 2], [3, -2]):
                function = lambda x, p=padding: F.pad(x, p * dims, mode=mode)  # noqa: E731
                if mode == "circular" and min(padding) < 0:
                    continue
                check(function if not dtype.is_floating_point else with_gradient(function), x)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_samples_at_a_grid(mode, outside, align_corners):
    def sample(x, grid):
        x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
        out = F.grid_sample(x, grid, mode, outside, align_corners)
        return out, *torch.autograd.grad(out.sum() + (out * out).sum(), (x, grid))

    for dtype in FLOATS[:2]:
        check(sample, draw(2, 5, 6, 9, dtype=dtype), 1.3 * draw(2, 4, 17, 2, dtype=dtype), tolerance=(1e-4, 1e-4))
        if mode != "bicubic":
            x = draw(2, 5, 3, 6, 9, dtype=dtype)
            check(sample, x, 1.3 * draw(2, 3, 4, 7, 3, dtype=dtype), tolerance=(1e-4, 1e-4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sliding_blocks(dtype):
    for x in images(2, 3, 9, 11, dtype=dtype):
        check(with_gradient(lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))), x)
    check(with_gradient(lambda x: F.fold(x, (6, 7), (2, 3), padding=1)), draw(2, 18, 49, dtype=dtype))
    check(with_gradient(lambda x: x.unfold(1, 4, 3)), draw(3, 12, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_shuffles(dtype):
    check(lambda x: F.channel_shuffle(x, 3), draw(2, 6, 4, 5, dtype=dtype), exact=True)
    check(lambda x: F.pixel_shuffle(x, 2), draw(2, 8, 3, 5, dtype=dtype), exact=True)
    check(lambda x: F.pixel_unshuffle(x, 2), draw(2, 3, 4, 6, dtype=dtype), exact=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode, index, dtype):
    table = draw(20, 33, dtype=dtype)
    where = torch.randint(0, 20, (40,), dtype=index)
    offsets = torch.tensor([0, 3, 3, 17, 30], dtype=index)
    for padding in (None, 4):
        check(
            with_gradient(lambda t, i, o, p=padding: F.embedding_bag(i, t, o, mode=mode, padding_idx=p)),
            table,
            where,
            offsets,
        )
        check(
            with_gradient(lambda t, i, p=padding: F.embedding_bag(i, t, mode=mode, padding_idx=p)),
            table,
            where.view(8, 5),
        )
    last = torch.cat([offsets, torch.tensor([40], dtype=index)])
    check(lambda t, i, o: F.embedding_bag(i, t, o, mode=mode, include_last_offset=True), table, where, last)
    if mode == "sum":

        def weighted(w, t, i, o):
            return F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w)

        check(with_gradient(weighted), draw(40, dtype=dtype), table, where, offsets)
        check(with_gradient(lambda t, w, i, o: weighted(w, t, i, o)), table, draw(40, dtype=dtype), where, offsets)


def test_what_lies_outside_is_an_error():
    x, table = draw(1, 1, 2, 2), draw(4, 3)
    check_raises(Exception, lambda x, i: F.max_unpool2d(x, i, 2), x, torch.full((1, 1, 2, 2), 99))
    check_raises(Exception, lambda i, t: F.embedding_bag(i, t), torch.tensor([[0, 4]]), table)
    check_raises(RuntimeError, lambda x: F.max_pool2d(x, 5), x)
    check_raises(RuntimeError, lambda x: F.pad(x, [2, 2, 2, 2], mode="reflect"), x)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 1, 1), (1, 1, 8, 1)], ids=str)
def test_empty_batches_and_extents_of_one(shape):
    x = draw(*shape)
    check(lambda x: F.max_pool2d(x, 1), x)
    check(lambda x: F.avg_pool2d(x, 1), x)
    check(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), x)
    check(lambda x: F.pad(x, [1, 1, 1, 1], mode="replicate"), x)
    if x.numel():
        check(lambda x: F.interpolate(x, (3, 5), mode="bilinear"), x)
        check(lambda x: F.interpolate(x, (3, 5), mode="nearest"), x)
