"""Optimizers of torch.optim by every path PyTorch has for them, against the CPU."""

import copy
import inspect

import pytest
import torch
from against_cpu import DEVICE, assert_same

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "Rprop": {"lr": 0.01},
    "Adafactor": {"lr": 0.01},
}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(9, 17), torch.nn.LayerNorm(17), torch.nn.Tanh(), torch.nn.Linear(17, 5, bias=False)
    )


def run(device, make, steps=4):
    """Parameters after some steps on `device`, with gradients given: no rounding of a backward pass to amplify."""
    model = network().to(device)
    optimizer = make(model.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(device)
        optimizer.step()
    return [p.detach() for p in model.parameters()], copy.deepcopy(optimizer.state_dict())


PATHS = [
    (name, path)
    for path in ({}, {"foreach": True}, {"foreach": False}, {"capturable": True}, {"fused": True})
    for name in OPTIMIZERS
    if set(path) <= set(inspect.signature(getattr(torch.optim, name)).parameters)
]


@pytest.mark.parametrize(("name", "path"), PATHS, ids=str)
def test_optimizer_steps_as_on_the_cpu(name, path):
    cls, options = getattr(torch.optim, name), OPTIMIZERS[name]
    want, want_state = run("cpu", lambda p: cls(p, **options))
    got, got_state = run(DEVICE, lambda p: cls(p, **options, **path))
    assert_same(got, want, tolerance=(1e-5, 1e-6))
    assert got_state["state"].keys() == want_state["state"].keys()


def test_lbfgs():
    def run(device):
        model = network().to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
        x = torch.linspace(-1, 1, 72).view(8, 9).to(device)

        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        return [p.detach() for p in model.parameters()]

    assert_same(run(DEVICE), run("cpu"), tolerance=(1e-3, 1e-4))


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_gradient_clipping(foreach, norm):
    def run(device, foreach):
        model = network().to(device)
        model(torch.ones(3, 9, device=device)).square().sum().backward()
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm, foreach=foreach)
        return total, [p.grad for p in model.parameters()]

    assert_same(run(DEVICE, foreach), run("cpu", None))


@pytest.mark.parametrize("foreach", [True, False])
def test_gradient_scaler(foreach):
    """A step with infinite gradients is skipped and lowers the scale; the others are taken."""
    model = network().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = model(torch.ones(3, 9, device=DEVICE)).square().mean()
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved = any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
        assert moved == (step != 1)
    assert scales == [2.0**10, 2.0**9, 2.0**9, 2.0**10]


def test_state_moves_with_its_checkpoint():
    _, state = run(DEVICE, lambda p: torch.optim.AdamW(p, lr=0.01))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(state)
    assert {t.device.type for s in optimizer.state.values() for t in s.values()} == {"cpu"}


@pytest.mark.parametrize(("name", "path"), PATHS, ids=str)
def test_no_operator_of_an_optimizer_falls_back(name, path, no_fallback):
    run(DEVICE, lambda p: getattr(torch.optim, name)(p, **OPTIMIZERS[name], **path))


@pytest.mark.parametrize("foreach", [True, False])
def test_no_operator_around_a_step_falls_back(foreach, no_fallback):
    test_gradient_clipping(foreach, 2.0)
    test_gradient_scaler(foreach)


FUSED = {
    "Adam": [{}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.1}],
    "AdamW": [{}, {"weight_decay": 0.1, "amsgrad": True}],
    "SGD": [{}, {"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), [(n, o) for n, all_of in FUSED.items() for o in all_of], ids=str)
def test_fused_steps(name, options, dtype, no_fallback):
    """Options, dtypes and layouts of fused steps, with a learning rate that changes from step to step."""

    def run(device):
        generator = torch.Generator().manual_seed(1)
        shapes = [(7,), (3, 5), (0,), (4, 6)]
        tensors = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
        tensors[3] = tensors[3].t()
        parameters = [torch.nn.Parameter(t.to(device)) for t in tensors]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1, fused=True, **options)
        for step in range(3):
            for p in parameters:
                # Of the parameter's layout: the CPU's kernels take memory in order, whatever the strides.
                p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        return [p.detach() for p in parameters]

    assert_same(run(DEVICE), run("cpu"), tolerance=(2e-2, 1e-2) if dtype == torch.bfloat16 else (1e-5, 1e-6))


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_with_a_gradient_scaler(name, no_fallback):
    """The scale divides the gradients within the step, and an infinite one takes no step."""
    model = network().to(DEVICE)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
    for step in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = model(torch.ones(3, 9, device=DEVICE)).square().mean()
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
        assert moved == (step != 1)


def test_a_new_learning_rate_makes_no_new_plan():
    """Numbers of a fused step are scalars of its launch: compiling anew at every step would take milliseconds."""
    weight = torch.nn.Parameter(torch.ones(1000, device=DEVICE))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    lowest = weight.max().item()
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1)
        optimizer.step()
        assert weight.max().item() < lowest
        lowest = weight.max().item()
