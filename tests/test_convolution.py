"""Convolutions and their gradients against the CPU's: values, dtypes, layouts, and that none falls back."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, draw

TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-8, 1e-8),
    torch.bfloat16: (3e-2, 3e-2),
    torch.float16: (5e-3, 5e-3),
}


FAMILY = ("convolution",)


pytestmark = pytest.mark.usefixtures("native_family")


def gradients(function, *tensors):
    tensors = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
    out = function(*tensors)
    torch.manual_seed(1)
    weight = torch.randn(out.shape).to(out.dtype).to(out.device)
    return [out, *torch.autograd.grad((out * weight).sum(), [t for t in tensors if t.requires_grad])]


CASES = [
    # dimensions, input, weight, options
    (1, (2, 4, 30), (6, 4, 3), {}),
    (1, (2, 4, 30), (6, 2, 5), {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    (1, (4, 30), (6, 4, 3), {"padding": 1}),
    (2, (2, 3, 19, 23), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    (2, (2, 24, 14, 14), (40, 24, 3, 3), {"padding": 1}),
    (2, (2, 24, 14, 14), (40, 24, 1, 1), {}),
    (2, (2, 24, 15, 14), (40, 24, 1, 1), {"stride": 2}),
    (2, (2, 24, 13, 14), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    (2, (2, 24, 13, 14), (24, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 24}),
    (2, (1, 8, 9, 11), (12, 4, 3, 2), {"padding": (2, 0), "dilation": (2, 3), "groups": 2}),
    (2, (3, 9, 11), (5, 3, 3, 3), {"padding": 1}),
    (2, (2, 5, 7, 7), (300, 5, 3, 3), {"padding": "same"}),
    (3, (2, 3, 6, 7, 8), (5, 3, 3, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dims", "x", "w", "options"), CASES)
def test_convolution(dims, x, w, options, dtype):
    function = getattr(F, f"conv{dims}d")
    scale = (w[1] * torch.Size(w[2:]).numel()) ** -0.5
    args = draw(*x, dtype=dtype), draw(*w, dtype=dtype) * scale, draw(w[0], dtype=dtype)
    # The CPU rounds sums of half floats more than once in some of its kernels.
    check(lambda *a: function(*a, **options), *args, strides=True, tolerance=TOLERANCE[dtype])
    if dtype in (torch.float32, torch.float64):
        check(lambda *a: gradients(lambda *b: function(*b, **options), *a), *args, tolerance=(1e-4, 1e-3))
        check(lambda *a: gradients(lambda *b: function(*b, None, **options), *a), *args[:2], tolerance=(1e-4, 1e-3))


TRANSPOSED = [
    (1, (2, 4, 20), (4, 3, 3), {"stride": 2, "output_padding": 1}),
    (2, (2, 24, 9, 8), (24, 20, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    (2, (2, 8, 9, 8), (8, 5, 4, 4), {"stride": 3, "padding": 1, "groups": 2, "dilation": 2}),
    (2, (2, 8, 9, 8), (8, 5, 1, 1), {"stride": 2}),
    (2, (2, 6, 9, 8), (6, 1, 3, 3), {"groups": 6}),
    (3, (1, 3, 4, 5, 6), (3, 4, 2, 3, 2), {"stride": 2, "padding": 1}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dims", "x", "w", "options"), TRANSPOSED)
def test_transposed(dims, x, w, options, dtype):
    function = getattr(F, f"conv_transpose{dims}d")
    out = w[1] * options.get("groups", 1)
    args = draw(*x, dtype=dtype), draw(*w, dtype=dtype) * (w[0] * w[1]) ** -0.5, draw(out, dtype=dtype)
    check(lambda *a: function(*a, **options), *args, tolerance=TOLERANCE[dtype])
    if dtype == torch.float32:
        check(lambda *a: gradients(lambda *b: function(*b, **options), *a), *args, tolerance=(1e-4, 1e-3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("last", ["input", "weight", "both"])
def test_channels_last(kernel, last, dtype):
    x, w = draw(2, 16, 12, 10, dtype=dtype), draw(20, 16, kernel, kernel, dtype=dtype) * 0.1
    b = draw(20, dtype=dtype)
    if last != "weight":
        x = x.to(memory_format=torch.channels_last)
    if last != "input":
        w = w.to(memory_format=torch.channels_last)

    def run(*a):
        return F.conv2d(*a, padding=kernel // 2)

    check(run, x, w, b, strides=True, tolerance=TOLERANCE[dtype])
    if dtype == torch.float32:
        check(lambda *a: gradients(run, *a), x, w, b, strides=True, tolerance=(1e-4, 1e-3))


@pytest.mark.parametrize("dtype", [torch.int64])
def test_integers(dtype):
    args = torch.randint(-9, 9, (2, 4, 10, 9), dtype=dtype), torch.randint(-9, 9, (6, 2, 3, 3), dtype=dtype)
    check(lambda *a: F.conv2d(*a, padding=1, groups=2), *args, exact=True)


@pytest.mark.parametrize("shape", [(0, 4, 8, 8), (2, 4, 8, 8)])
def test_empty_batches_and_frozen_operands(shape):
    x, w = draw(*shape), draw(6, 4, 3, 3)
    check(lambda *a: gradients(lambda *b: F.conv2d(*b), *a), x, w, tolerance=(1e-4, 1e-4))

    def input_only(x, w):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.conv2d(x, w).sum(), [x])

    check(input_only, x, w, tolerance=(1e-4, 1e-4))


def test_views_as_operands():
    x, w = draw(2, 8, 12, 10), draw(5, 4, 3, 3)
    check(lambda x, w: F.conv2d(x[:, ::2, 1:, ::2], w), x, w, tolerance=(1e-4, 1e-4))
    check(lambda x, w: F.conv2d(x.transpose(2, 3)[:, :4], w.flip(0)), x, w, tolerance=(1e-4, 1e-4))
    check(lambda x, w: F.conv2d(x[:1, :4].expand(3, 4, 12, 10), w), x, w, tolerance=(1e-4, 1e-4))
