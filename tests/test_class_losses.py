"""Losses over classes and their gradients, against the CPU's."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, draw

REDUCTIONS = ["none", "mean", "sum"]
FAMILY = ("nll_loss", "margin_loss", "ctc", "addbmm", "_int_mm", "flash")


pytestmark = pytest.mark.usefixtures("native_family")


def gradients(function, x, *rest):
    x = x.detach().requires_grad_()
    out = function(x, *rest)
    weight = torch.linspace(0.5, 2, out.numel()).reshape(out.shape).to(out.dtype).to(out.device)
    return [out, *torch.autograd.grad((out * weight).sum(), [x])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3), (2, 5, 3, 4), (2, 5, 2, 3, 2)])
def test_cross_entropy(shape, weighted, reduction, dtype):
    x, weight = draw(*shape, dtype=dtype), draw(5, dtype=dtype).abs() if weighted else None
    target = torch.randint(0, 5, (shape[0], *shape[2:]))
    target.view(-1)[0] = -100
    for options in ({}, {"label_smoothing": 0.2}):

        def run(x, t, w, o=options):
            return F.cross_entropy(x, t, w, reduction=reduction, **o)

        check(lambda *a: gradients(run, *a), x, target, weight)
    check(
        lambda *a: gradients(lambda x, t, w: F.nll_loss(x, t, w, ignore_index=2, reduction=reduction), *a),
        x,
        target.clamp(0),
        weight,
    )


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_margin(p, reduction, weighted):
    x, target, weight = draw(6, 5), torch.randint(0, 5, (6,)), draw(5).abs() if weighted else None

    def run(x, t, w):
        return F.multi_margin_loss(x, t, p=p, margin=0.7, weight=w, reduction=reduction)

    check(lambda *a: gradients(run, *a), x, target, weight)
    check(lambda *a: gradients(run, *a), x[0], target[0], weight)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin(reduction):
    x = draw(6, 5)
    target = torch.stack([torch.randperm(5) for _ in range(6)])
    target[1, 3:] = -1
    target[2, 0] = -1
    target[3, 2] = -1

    def run(x, t):
        return F.multilabel_margin_loss(x, t, reduction=reduction)

    check(lambda *a: gradients(run, *a), x, target)
    check(lambda *a: gradients(run, *a), x[0], target[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_addbmm(dtype):
    a, b, c = draw(4, 3, dtype=dtype), draw(5, 4, 6, dtype=dtype), draw(5, 6, 3, dtype=dtype)
    tolerance = (5e-2, 2e-1) if dtype == torch.bfloat16 else (1e-5, 1e-5)
    for options in ({}, {"beta": 2, "alpha": 3}, {"beta": 0}):
        check(lambda *t, o=options: torch.addbmm(*t, **o), a, b, c, tolerance=tolerance)


def test_integer_products():
    a, b = draw(20, 32, dtype=torch.int8), draw(32, 24, dtype=torch.int8)
    check(torch._int_mm, a, b, exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal, dtype):
    q, k, v = draw(2, 3, 8, 16, dtype=dtype), draw(2, 3, 10, 16, dtype=dtype), draw(2, 3, 10, 16, dtype=dtype)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    check(lambda *a: flash(*a, 0.0, causal), q, k, v)

    def backward(q, k, v):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(flash(*leaves, 0.0, causal)[0].sum(), leaves)

    check(backward, q, k, v, tolerance=(3e-2, 3e-2) if dtype == torch.bfloat16 else (1e-4, 1e-4))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ctc(dtype, joined, zero_infinity, reduction):
    x, steps, labels = draw(12, 4, 6, dtype=dtype), [12, 10, 3, 12], [4, 5, 4, 0]
    target = torch.randint(1, 6, (4, 5))
    target[0, 1] = target[0, 0]
    if joined:
        target = torch.cat([t[:n] for t, n in zip(target, labels, strict=True)])

    def run(x, t):
        return F.ctc_loss(x.log_softmax(2), t, steps, labels, reduction=reduction, zero_infinity=zero_infinity)

    check(lambda *a: gradients(run, *a), x, target, tolerance=(1e-4, 1e-4))
