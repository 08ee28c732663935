"""Operands that are easy to take for others: expanded weights, negative zeros, infinite means, shapes that do not fit."""

import pytest
import torch
from against_cpu import DEVICE, check, check_raises, draw

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_expanded_and_stepped_class_weights(dtype, reduction):
    x, target = draw(4, 3, dtype=dtype), torch.tensor([0, 2, 1, 1])
    for weight in (draw(1, dtype=dtype).abs(), draw(6, dtype=dtype).abs()):

        def loss(x, target, weight):
            weight = weight.expand(3) if weight.numel() == 1 else weight[::2]
            value, total = aten.nll_loss_forward(x, target, weight, reduction, -100)
            grad = torch.ones_like(value)
            return value, total, aten.nll_loss_backward(grad, x, target, weight, reduction, -100, total)

        check(loss, x, target, weight)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_keep_the_sign_of_zero(dtype):
    def signs(x):
        full = torch.full_like(x, -0.0)
        made = (x / full, x.clone().fill_(-0.0), torch.where(x > 0, -0.0, x), x.to(dtype) * 0 + full, full.clone())
        return [torch.copysign(torch.ones_like(t), t) for t in made]

    check(signs, draw(7, dtype=dtype))
    zero = torch.tensor(-0.0, dtype=dtype).to(DEVICE)
    assert torch.signbit(zero.cpu()), "a copy of one number"


@pytest.mark.parametrize("mean", [float("inf"), float("-inf"), float("nan")])
def test_layer_norm_gradient_of_an_infinite_mean(mean):
    grad, x = draw(3, 6), draw(3, 6)
    means, rstd, weight = torch.tensor([[0.5], [mean], [0.1]]), torch.rand(3, 1) + 0.5, draw(6)
    mask = [True, True, True]
    check(
        lambda *a: aten.native_layer_norm_backward(a[0], a[1], [6], a[2], a[3], a[4], torch.zeros_like(a[4]), mask)[0],
        grad,
        x,
        means,
        rstd,
        weight,
    )


def test_distances_to_nan():
    for p in (1.0, 2.0, 3.0):
        x, y = draw(3, 4), draw(2, 4)
        x[0, 1] = float("nan")
        check(lambda g, x, y, p=p: aten._cdist_backward(g, x, y, p, torch.cdist(x, y, p)), draw(3, 2), x, y)


SHAPES = {
    "layer_norm_backward": lambda x: aten.native_layer_norm_backward(
        x, x, [1], x[:, :1], x[:, :1], x[0], None, [True, True, False]
    ),
    "unfold_backward": lambda x: aten.unfold_backward(x, [3, 4], 1, 2, 1),
    "fractional_max_pool3d": lambda x: aten.fractional_max_pool3d(
        x.new_ones(1, 2, 6, 6, 6), [2, 2, 2], [2, 2, 2], x.new_ones(1, 2, 1)
    ),
    "upsample of no channels": lambda x: aten.upsample_linear1d(x.new_ones(2, 0, 4), [6], False),
    "pooling of empty planes": lambda x: aten._adaptive_avg_pool3d(x.new_ones(3, 3, 8, 8, 0), [2, 2, 2]),
    "grid of empty planes": lambda x: aten.grid_sampler_2d(x.new_ones(2, 3, 0, 0), x.new_ones(2, 0, 0, 2), 0, 0, True),
    "lengths of too much": lambda x: torch.segment_reduce(x[0], "max", lengths=torch.tensor([5, 7]).to(x.device)),
    "no lengths": lambda x: torch.segment_reduce(x[0], "max", lengths=torch.tensor([], dtype=torch.long).to(x.device)),
    "target of a loss": lambda x: torch.nn.functional.binary_cross_entropy(torch.sigmoid(x), x + 5),
    "class of a margin": lambda x: torch.nn.functional.multi_margin_loss(x, torch.tensor([0, 1, 9]).to(x.device)),
    "class of a multilabel margin": lambda x: torch.nn.functional.multilabel_margin_loss(
        x, torch.tensor([[0, -1, 9, 0]] * 3).to(x.device)
    ),
    "position of an element": lambda x: torch.nn.functional.max_unpool1d(x, torch.full((3, 4), 99).to(x.device), 2),
}


@pytest.mark.parametrize("what", SHAPES)
def test_what_does_not_fit_is_refused(what):
    check_raises(RuntimeError, SHAPES[what], draw(3, 4))


def test_slices_of_nothing():
    index = torch.tensor([0, 0])
    check_raises(IndexError, lambda x, i: x.index_reduce(1, i, x.new_ones(0, 2), "amin"), torch.ones(0, 0), index)


def test_histogram_of_half():
    x = draw(20, dtype=torch.float16)
    check(lambda x: torch.histc(x, 10), x)
    check(lambda x: torch.histc(x, 100, -1, 1), draw(500, dtype=torch.float16))
    check_raises(NotImplementedError, lambda x: torch.histogram(x, 3), x)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_filled_and_copied_natively(dtype):
    import torch_neuronx

    torch_neuronx.clear_op_tracking()

    def made(x):
        filled = torch.empty_like(x).fill_(2 - 3j)
        return filled, x.clone().zero_(), x.t().contiguous(), torch.zeros_like(x).copy_(x.real), x.to(torch.complex64)

    check(made, draw(3, 4, dtype=torch.complex64).to(dtype))
    assert not {"aten::fill_.Scalar", "aten::zero_"} & set(torch_neuronx.get_fallback_ops())
