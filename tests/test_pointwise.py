"""Activations, pointwise losses and their gradients, against the CPU."""

import math

import pytest
import torch
from against_cpu import DEVICE, check, check_raises, draw

functional = torch.nn.functional

ACTIVATIONS = {
    "elu": lambda x: functional.elu(x, 0.7),
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 1.3),
    "hardshrink": lambda x: functional.hardshrink(x, 0.6),
    "softshrink": lambda x: functional.softshrink(x, 0.6),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "logsigmoid": functional.logsigmoid,
    "glu": functional.glu,
    "glu_first": lambda x: functional.glu(x, 0),
    "softplus": functional.softplus,
    "mish": functional.mish,
    "hardtanh": functional.hardtanh,
    "threshold": lambda x: functional.threshold(x, 0.2, -3.0),
    "rrelu": lambda x: functional.rrelu(x, training=False),
    "tanhshrink": functional.tanhshrink,
}


def gradients(function, *arguments):
    result = function(*arguments)
    grad = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result)
    return result.detach(), *torch.autograd.grad(result, [a for a in arguments if a.requires_grad], grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_gradient(name, dtype, no_fallback):
    x = (draw(6, 34) * 3).to(dtype).requires_grad_()
    check(lambda x: gradients(ACTIVATIONS[name], x), x)
    check(lambda x: gradients(ACTIVATIONS[name], x), x.detach().t().requires_grad_())


@pytest.mark.parametrize("name", ["elu", "hardshrink", "hardswish", "logsigmoid", "hardsigmoid"])
def test_activations_of_special_values(name, no_fallback):
    check(ACTIVATIONS[name], torch.tensor([0.0, -0.0, math.inf, -math.inf, 0.6, -0.6, 3.0, -3.0]))


def test_prelu(no_fallback):
    for weights in (1, 5):
        x, weight = draw(3, 5, 4).requires_grad_(), torch.rand(weights).requires_grad_()
        check(lambda x, w: gradients(functional.prelu, x, w), x, weight)


def test_rrelu_draws_slopes_for_negative_elements(no_fallback):
    x = torch.randn(10_000, device=DEVICE, requires_grad=True)
    y = functional.rrelu(x, 0.1, 0.3, training=True)
    slope = torch.autograd.grad(y.sum(), x)[0]
    negative = x < 0
    assert bool((slope[~negative] == 1).all())
    assert slope[negative].min() >= 0.1
    assert slope[negative].max() <= 0.3
    assert abs(slope[negative].mean().item() - 0.2) < 0.01


LOSSES = {
    "huber": lambda x, t, r: functional.huber_loss(x, t, reduction=r, delta=0.8),
    "smooth_l1": lambda x, t, r: functional.smooth_l1_loss(x, t, reduction=r, beta=0.7),
    "smooth_l1 without a curve": lambda x, t, r: functional.smooth_l1_loss(x, t, reduction=r, beta=0.0),
    "mse": lambda x, t, r: functional.mse_loss(x, t, reduction=r),
    "bce": lambda x, t, r: functional.binary_cross_entropy(x.sigmoid(), t.sigmoid(), reduction=r),
    "bce weighted": lambda x, t, r: functional.binary_cross_entropy(
        x.sigmoid(), t.sigmoid(), torch.full_like(t, 0.3), reduction=r
    ),
    "bce with logits": lambda x, t, r: functional.binary_cross_entropy_with_logits(x, t.sigmoid(), reduction=r),
    "soft_margin": lambda x, t, r: functional.soft_margin_loss(x, t, reduction=r),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient(name, reduction, no_fallback):
    x, target = (draw(7, 9) * 2).requires_grad_(), draw(7, 9)
    check(lambda x, t: gradients(lambda x: LOSSES[name](x, t, reduction), x), x, target)


def test_predictions_have_to_be_probabilities():
    check_raises(RuntimeError, functional.binary_cross_entropy, torch.tensor([0.5, 1.5]), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_outer_product_added(dtype, no_fallback):
    x, row, column = draw(4, 5, dtype=dtype), draw(4, dtype=dtype), draw(5, dtype=dtype)
    for numbers in ({}, {"beta": 0}, {"alpha": 3}, {"beta": 2, "alpha": -2}):
        check(lambda x, a, b, n=numbers: torch.addr(x, a, b, **n), x, row, column)
