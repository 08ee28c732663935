"""PyTorch's operator database on the device, against the CPU.

By default one sample of each operator in one dtype, which is what a change breaks first; with NEURON_TESTS=all (`make
conformance`) every sample in every dtype the CPU has.
"""

import os
import unittest

import pytest
import torch
from op_samples import ANY_VALUES, alike, call, moved, on_cpu, op_db, tensors
from torch.testing._internal.common_device_type import OpDTypes, instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase

ALL = os.environ.get("NEURON_TESTS") == "all"
DTYPES = OpDTypes.supported if ALL else OpDTypes.any_one
SAMPLES = 40 if ALL else 2


def usable(op, dtype, most=SAMPLES, requires_grad=False):
    """Samples with what the CPU makes of them; an operator without any is skipped."""
    found = 0
    try:
        samples = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    except Exception as e:
        raise unittest.SkipTest(f"no samples: {e}") from e
    for sample in samples:
        want = on_cpu(call(op), sample, op)
        if want is None:
            continue
        yield sample, want
        found += 1
        if found == most:
            return
    if found == 0:
        raise unittest.SkipTest("no sample that the CPU takes")


def compare_each(op, samples, function):
    """Compares what a function makes of samples; a test that had nothing to compare is skipped, not passed."""
    compared = 0
    for sample in samples:
        want = on_cpu(function, sample, op)
        if want is not None:
            want.check(function(*moved(sample, op)), op)
            compared += 1
    if compared == 0:
        raise unittest.SkipTest("nothing that the CPU takes")


def transposed_like(t):
    """A tensor of the same shape whose strides ascend."""
    return torch.zeros(t.shape[::-1], dtype=t.dtype, device=t.device).permute(*range(t.dim() - 1, -1, -1))


# PyTorch's own default kernel for every device but the CPU raises another type.
# The CPU's own check of equal aminmax outputs comes before the general one of overlaps.
OTHER_ERRORS = {"narrow_copy": IndexError, "aminmax": RuntimeError}


def finished(op, sample):
    """Runs the operator on the device and waits for it: what depends on values is raised late."""
    call(op)(*moved(sample, op))
    torch.accelerator.synchronize()


class TestOpDb(TestCase):
    """One test for each operator and dtype."""

    @ops(op_db, dtypes=DTYPES)
    def test_forward(self, device, dtype, op):
        for sample, want in usable(op, dtype):
            want.check(call(op)(*moved(sample, op)), op)

    @ops([op for op in op_db if op.inplace_variant], dtypes=DTYPES)
    def test_in_place(self, device, dtype, op):
        def function(value, args, kwargs):
            return op.inplace_variant(value.clone(), *args, **kwargs)

        compare_each(op, (s for s, _ in usable(op, dtype) if not s.broadcasts_input), function)

    @ops([op for op in op_db if op.supports_out], dtypes=DTYPES)
    def test_out(self, device, dtype, op):
        def into(make):
            def function(value, args, kwargs):
                result = op(value, *args, **kwargs)
                if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
                    raise NotImplementedError
                out = make(result)
                returned = op(value, *args, **kwargs, out=out)
                # PyTorch's own CPU kernels write some strided out= tensors wrongly (gelu, narrow_copy, avg_pool3d).
                if out.device.type == "cpu" and op.name not in ANY_VALUES and not alike(returned, result):
                    raise NotImplementedError
                return returned, out

            return function

        # One of another shape is resized, one with strides keeps them.
        for make in (lambda r: torch.empty(0, dtype=r.dtype, device=r.device), transposed_like):
            compare_each(op, (s for s, _ in usable(op, dtype)), into(make))

    @ops([op for op in op_db if op.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_gradients(self, device, dtype, op):
        def function(value, args, kwargs):
            out = op(value, *args, **kwargs)
            if process is not None:
                out = process(out)
            outs = [t for t in tensors(out) if t.requires_grad]
            ins = [t for t in tensors((value, args, kwargs)) if t.requires_grad]
            grads = torch.autograd.grad(outs, ins, [torch.ones_like(o) for o in outs], allow_unused=True)
            return [g for g in grads if g is not None]

        def samples():
            nonlocal process
            for sample, _ in usable(op, dtype, requires_grad=True):
                process = sample.output_process_fn_grad
                yield sample

        process = None
        compare_each(op, samples(), function)

    @ops([op for op in op_db if op.error_inputs_func], dtypes=OpDTypes.none)
    def test_errors(self, device, op):
        refused = 0
        for error in op.error_inputs("cpu"):
            sample = error.sample_input
            if any(t.device.type != "cpu" for t in tensors((sample.input, sample.args, sample.kwargs))):
                continue
            try:
                call(op)(*moved(sample, op, "cpu"))
                continue  # the CPU of this PyTorch takes it
            except Exception as e:
                expected = (type(e), OTHER_ERRORS.get(op.name, type(e)))
            with pytest.raises(expected):
                finished(op, sample)
            refused += 1
        if refused == 0:
            raise unittest.SkipTest("nothing that the CPU refuses")


instantiate_device_type_tests(TestOpDb, globals(), only_for="privateuse1")
