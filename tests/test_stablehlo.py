"""The StableHLO of eager calls, compiled and run by XLA's CPU client, against what the device made of the same arguments.

Every call that PyTorch's operator database makes on the device is recorded with its arguments and results. By default one
sample of some operators of each family in one dtype, with NEURON_TESTS=all samples of all operators in all dtypes.
"""

import os

# Half floats are rounded where the text says so, and NaN is what `maximum` says it is.
os.environ.setdefault("XLA_FLAGS", "--xla_allow_excess_precision=false --xla_cpu_enable_fast_min_max=false")

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
import torch_neuronx
from jax.extend.backend import get_backend
from jaxlib import _jax, xla_client
from op_samples import call, moved, on_cpu, op_db, tensors
from torch_neuronx import _C

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

ALL = os.environ.get("NEURON_TESTS") == "all"

# By the number of PyTorch's dtype.
NUMPY = {
    0: np.uint8,
    1: np.int8,
    2: np.int16,
    3: np.int32,
    4: np.int64,
    5: np.float16,
    6: np.float32,
    7: np.float64,
    11: np.bool_,
    15: ml_dtypes.bfloat16,
    23: ml_dtypes.float8_e5m2,
    24: ml_dtypes.float8_e4m3fn,
}

# Relative tolerance by dtype; absolute it is that much of the largest result, sums being of numbers of all sizes, or a
# twentieth of that of the largest argument, of which a result may be what cancellation leaves.
TOLERANCES = {np.float64: 1e-9, np.float32: 2e-5, np.float16: 2e-3, ml_dtypes.bfloat16: 1.6e-2}

# Operators of each family that the quick run takes.
QUICK = """
abs add addmm allclose amax argmax asinh atan2 bitwise_left_shift bmm cat cdist clamp copysign cummax cumsum digamma div
dot erfinv exp2 expm1 eye flip floor_divide fmod frexp gather gcd heaviside hypot i0 index_add index_copy index_fill
index_put index_select isinf lerp logcumsumexp logit logsumexp masked_fill matmul max mean median minimum nanmedian
nextafter nn.functional.avg_pool2d nn.functional.batch_norm nn.functional.conv2d nn.functional.conv_transpose2d
nn.functional.cross_entropy nn.functional.embedding nn.functional.gelu nn.functional.group_norm
nn.functional.interpolate nn.functional.layer_norm nn.functional.max_pool2d nn.functional.nll_loss nn.functional.pad
nn.functional.rms_norm nn.functional.scaled_dot_product_attention nn.functional.unfold nonzero norm pow prod remainder
roll round scatter scatter_add scatter_reduce searchsorted sgn sigmoid sign softmax sort special.bessel_j0 special.i1e
special.legendre_polynomial_p special.log_ndtr std sum take topk trapz tril trunc unique var_mean where xlogy
"""


@pytest.fixture(scope="session")
def xla():
    """A function that compiles StableHLO text and calls it."""
    client = get_backend("cpu")
    devices = _jax.DeviceList(tuple(client.local_devices()[:1]))
    options = xla_client.CompileOptions()

    def run(text, arguments):
        executable = client.compile_and_load(text, devices, options)
        return [np.asarray(r) for r in executable.execute([jax.device_put(a) for a in arguments])]

    return run


@pytest.fixture
def recorded():
    """A function that calls another and returns the records of what it launched."""

    def run(function):
        _C.recorded_stablehlo()
        _C.record_stablehlo(True, values=True)
        try:
            function()
            torch.accelerator.synchronize()
        finally:
            _C.record_stablehlo(False)
        return _C.recorded_stablehlo()

    return run


def array(value):
    """A recorded tensor."""
    dtype, sizes, data = value
    return np.frombuffer(data, NUMPY[dtype]).reshape(sizes)


def largest(values):
    """The largest magnitude of finite numbers of tensors, within reason."""
    numbers = [np.abs(v.astype(np.float64)) for v in values if v.size and v.dtype.type in TOLERANCES]
    return min(max((n[np.isfinite(n)].max(initial=0.0) for n in numbers), default=0.0), 1e3)


def assert_alike(got, want, arguments, what):
    """The same values up to the tolerance of their dtype; integers have to be equal."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    tolerance = TOLERANCES.get(want.dtype.type)
    if tolerance is None:
        assert got.tobytes() == want.tobytes(), f"{got} is not {want}: {what}"
        return
    # Near a zero of a function there are no digits to compare.
    most = largest([want]) + largest(arguments) / 20
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * (most + 1e-3), err_msg=what)


def compare(xla, records):
    """Runs every record that has a text; returns how many were compared and why the others have none."""
    compared, reasons = 0, {}
    for op, text, reason, arguments, results in records:
        if text is None:
            reasons[op] = reason
            continue
        arguments = [array(a) for a in arguments]
        got = xla(text, arguments)
        assert len(got) == len(results), op
        for i, (g, w) in enumerate(zip(got, results, strict=True)):
            assert_alike(g, array(w), arguments, f"{op}, result {i}\n{text}")
        compared += 1
    return compared, reasons


def compare_each(op, samples, function, xla, recorded):
    """Records a function of samples of an operator and compares; what has no text has a reason of the table."""
    seen, reasons = 0, {}
    torch_neuronx.clear_op_tracking()
    for i, sample in enumerate(samples):
        if i == (2 if ALL else 1):
            break
        if on_cpu(function, sample, op) is None:
            continue
        compared, why = compare(xla, recorded(lambda sample=sample: function(*moved(sample, op))))
        seen += compared
        reasons.update(why)
    known = dict(_C.unsupported_stablehlo())
    for name, reason in reasons.items():
        assert reason.partition(": ")[0] in known, f"{name}: {reason}"
    if not seen:
        on_host = torch_neuronx.get_fallback_ops()
        why = f"no StableHLO form: {reasons}" if reasons else f"runs on the CPU: {on_host}" if on_host else "only views"
        pytest.skip(why)


def is_single(case):
    """Of `float32`."""
    return case.values[1] == torch.float32


def dtypes(op):
    """All that the CPU has, or the one that tells most."""
    supported = [d for d in op.supported_dtypes("cpu") if not d.is_complex and d != torch.complex32]
    if ALL:
        return supported
    preferred = (torch.float32, torch.int64, torch.bool)
    return [d for d in preferred if d in supported][:1]


CASES = [
    pytest.param(op, dtype, id=f"{op.name}{'_' + op.variant_test_name if op.variant_test_name else ''}_{dtype}")
    for op in op_db
    if ALL or (op.name in QUICK.split() and not op.variant_test_name)
    for dtype in dtypes(op)
]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_operator(op, dtype, xla, recorded):
    compare_each(op, op.sample_inputs("cpu", dtype), call(op), xla, recorded)


@pytest.mark.parametrize(
    ("op", "dtype"), [case for case in CASES if case.values[0].supports_autograd and is_single(case)]
)
def test_gradient(op, dtype, xla, recorded):
    def gradients(value, args, kwargs):
        outs = [t for t in tensors(op(value, *args, **kwargs)) if t.requires_grad]
        ins = [t for t in tensors((value, args, kwargs)) if t.requires_grad]
        return torch.autograd.grad(outs, ins, [torch.ones_like(o) for o in outs], allow_unused=True)

    compare_each(op, op.sample_inputs("cpu", dtype, requires_grad=True), gradients, xla, recorded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.Adagrad, {"lr_decay": 0.1}),
    ],
)
def test_optimizer(optimizer, options, dtype, xla, recorded):
    parameter = torch.randn(3, 4).to(dtype).to("neuron").requires_grad_()
    parameter.grad = torch.randn(3, 4).to(dtype).to("neuron")
    steps = optimizer([parameter], lr=0.1, fused=True, **options)
    records = [r for _ in range(3) for r in recorded(steps.step) if "_fused" in r[0]]
    compared, reasons = compare(xla, records)
    assert (compared, reasons) == (3, {})
