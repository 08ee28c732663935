"""PyTorch's optimizer database on the device: a few steps of every optimizer in every configuration, against the CPU."""

import copy
import os

import torch
from against_cpu import DEVICE
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
    optims,
)
from torch.testing._internal.common_utils import TestCase

ALL = os.environ.get("NEURON_TESTS") == "all"


def train(info, model, kwargs, steps):
    """Parameters after some steps."""
    device = next(model.parameters()).device
    kwargs = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    parameters = (
        [p for p in model.parameters() if p.dim() == 2] if info.optim_cls is torch.optim.Muon else model.parameters()
    )
    optimizer = info.optim_cls(list(parameters), **kwargs)
    x = torch.linspace(-1, 1, 40, device=device, dtype=next(model.parameters()).dtype).reshape(8, 5)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x[:, :3]).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return [p.detach().cpu() for p in model.parameters()]


class TestOptimDb(TestCase):
    """One test for each optimizer and dtype."""

    @optims([o for o in optim_db if o.optim_cls is not torch.optim.SparseAdam], dtypes=[torch.float32])
    def test_steps(self, device, dtype, optim_info):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).to(dtype)
        inputs = _get_optim_inputs_including_global_cliquey_kwargs(DEVICE, dtype, optim_info)
        compared = 0
        for optim_input in inputs if ALL else inputs[:8]:
            kwargs = optim_input.kwargs
            if kwargs.get("capturable") or kwargs.get("differentiable"):
                continue
            # Away from the minimum it runs off to infinity.
            if optim_info.optim_cls is torch.optim.LBFGS and kwargs.get("maximize"):
                continue
            # A line search amplifies the last bit of every step.
            steps = 1 if optim_info.optim_cls is torch.optim.LBFGS else 3
            try:
                want = train(optim_info, copy.deepcopy(model), kwargs, steps)
            except Exception:
                continue
            got = train(optim_info, copy.deepcopy(model).to(DEVICE), kwargs, steps)
            torch.testing.assert_close(
                got, want, rtol=1e-4, atol=2e-4 if steps == 1 else 1e-5, msg=lambda m, at=optim_input.desc: f"{at}: {m}"
            )
            compared += 1
        assert compared > 0


instantiate_device_type_tests(TestOptimDb, globals(), only_for="privateuse1")
