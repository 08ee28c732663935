"""Batch, instance, group, layer and RMS norms with their gradients, against the CPU's."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import check, draw

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FAMILY = ("_norm",)
SHAPES = [(4, 6), (4, 6, 10), (3, 6, 5, 7), (2, 6, 3, 4, 5)]


pytestmark = pytest.mark.usefixtures("native_family")


def gradients(function, *tensors):
    tensors = [t.detach().requires_grad_() if t.is_floating_point() else t for t in tensors]
    out = function(*tensors)
    weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype).to(out.device)
    return [out, *torch.autograd.grad((out * weight).sum(), tensors)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(shape, training, dtype):
    """The running statistics are arguments: `check` compares what became of them."""
    x = draw(*shape, dtype=dtype) * 2 + 1
    parameters = [draw(6, dtype=dtype) for _ in range(2)]
    running = [draw(6, dtype=dtype), draw(6, dtype=dtype).abs()]
    check(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training, 0.3, 1e-3), x, *running, *parameters)
    check(lambda x, m, v: F.batch_norm(x, m, v, None, None, training, 0.3, 1e-3), x, *running)
    if dtype in (torch.float32, torch.float64):
        mean, var = running
        check(
            lambda x, w, b, m, v: gradients(lambda x, w, b: F.batch_norm(x, m, v, w, b, training, 0.1, 1e-3), x, w, b),
            x, *parameters, mean, var, tolerance=(1e-4, 1e-4),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_of_mixed_types(dtype):
    x = draw(3, 6, 5, 7, dtype=dtype)
    rest = [draw(6), draw(6).abs(), draw(6), draw(6)]
    check(lambda x, *rest: F.batch_norm(x, *rest, True, 0.1, 1e-3), x, *rest, tolerance=(2e-2, 2e-2))


def test_batch_norm_overloads():
    x, w, b, m, v = draw(3, 6, 5, 7), draw(6), draw(6), draw(6), draw(6).abs()
    aten = torch.ops.aten
    check(lambda *a: aten.native_batch_norm(*a, True, 0.1, 1e-5), x, w, b, m, v)
    check(lambda *a: aten.native_batch_norm(*a, False, 0.1, 1e-5), x, w, b, m, v)
    check(lambda *a: aten._native_batch_norm_legit(*a, True, 0.1, 1e-5), x, w, b, m, v)
    check(lambda *a: aten._native_batch_norm_legit(*a, False, 0.1, 1e-5), x, w, b, m, v)
    check(lambda *a: aten._native_batch_norm_legit.no_stats(*a, True, 0.1, 1e-5), x, w, b)
    check(lambda *a: aten._batch_norm_with_update(*a, 0.1, 1e-5), x, w, b, m, v)


@pytest.mark.parametrize("module", [torch.nn.BatchNorm2d, torch.nn.InstanceNorm2d])
def test_modules(module):
    torch.manual_seed(3)
    for options in ({}, {"affine": False}, {"track_running_stats": False}):
        net = module(6, **options)
        x = draw(4, 6, 5, 7)

        def run(x, net=net):
            import copy

            mine = copy.deepcopy(net).to(x.device)
            out = [mine(x), mine(x * 2)]
            return out, list(mine.state_dict().values())

        check(run, x, tolerance=(1e-4, 1e-4))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm(shape, groups, dtype):
    x, w, b = draw(*shape, dtype=dtype) + 1, draw(6, dtype=dtype), draw(6, dtype=dtype)
    check(lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3), x, w, b)
    check(lambda x: F.group_norm(x, groups, None, None, 1e-3), x)
    if dtype in (torch.float32, torch.float64):

        def run(x, w, b):
            return gradients(lambda *a: F.group_norm(a[0], groups, *a[1:], 1e-3), x, w, b)

        check(run, x, w, b, tolerance=(1e-4, 1e-4))


def test_group_norm_channels_last():
    x = draw(2, 8, 5, 7).to(memory_format=torch.channels_last)
    check(lambda x: F.group_norm(x, 4), x)
    check(lambda x: F.batch_norm(x, None, None, training=True), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "normalized"), [((3, 5), (5,)), ((2, 3, 4), (3, 4)), ((0, 5), (5,))])
def test_layer_norm(shape, normalized, dtype):
    x, w, b = draw(*shape, dtype=dtype), draw(*normalized, dtype=dtype), draw(*normalized, dtype=dtype)
    check(lambda *a: torch.native_layer_norm(a[0], normalized, *a[1:], 1e-5), x, w, b)
    check(lambda x: torch.native_layer_norm(x, normalized, None, None, 1e-5), x)
    if dtype == torch.float32:
        check(lambda *a: gradients(lambda x, w, b: F.layer_norm(x, normalized, w, b), *a), x, w, b)
        check(lambda *a: gradients(lambda x, w: F.rms_norm(x, normalized, w), *a), x, w)
