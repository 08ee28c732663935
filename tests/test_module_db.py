"""PyTorch's module database on the device, against the CPU: forward and backward, in training and in evaluation.

By default float32; with NEURON_TESTS=all (`make conformance`) every dtype the CPU has.
"""

import copy
import os
import unittest

import torch
from against_cpu import DEVICE
from op_samples import Expected, alike, tensors
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_utils import TestCase, freeze_rng_state
from torch.utils._pytree import tree_map

ALL = os.environ.get("NEURON_TESTS") == "all"


class Named:
    """What `Expected.check` asks of an operator."""

    name = "module"


def run(module, args, kwargs):
    """Results and gradients of parameters and arguments."""
    module.zero_grad()
    out = module(*args, **kwargs)
    outs = [t for t in tensors(out) if t.requires_grad]
    if not outs:
        return out, None
    torch.autograd.backward(outs, [torch.ones_like(t) for t in outs])
    leaves = [*module.parameters(), *tensors((args, kwargs))]
    return out, [t.grad for t in leaves if t.grad is not None], list(module.buffers())


def copied(value, device):
    return tree_map(
        lambda t: (
            t.detach().to(device, copy=True).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t
        ),
        value,
    )


class TestModuleDb(TestCase):
    """One test for each module, mode and dtype."""

    @modules(module_db, **({} if ALL else {"allowed_dtypes": (torch.float32,)}))
    def test_forward_and_backward(self, device, dtype, module_info, training):
        inputs = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        compared = 0
        for inputs_of in inputs:
            build = inputs_of.constructor_input
            with freeze_rng_state():
                module = module_info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
            call = inputs_of.forward_input
            if call is None:
                continue
            on_device = copy.deepcopy(module).to(DEVICE)
            try:
                runs = [run(copy.deepcopy(module), *copied((call.args, call.kwargs), "cpu")) for _ in range(2)]
            except Exception:
                continue
            first, second = (tensors(r) for r in runs)
            same = all(alike(a, b) for a, b in zip(first, second, strict=True))
            got = run(on_device, *copied((call.args, call.kwargs), DEVICE))
            Expected(runs[0], same).check(got, Named)
            compared += 1
        if compared == 0:
            raise unittest.SkipTest("nothing that the CPU takes")


instantiate_device_type_tests(TestModuleDb, globals(), only_for="privateuse1")
