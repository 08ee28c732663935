"""Dtypes, promotion and the special values of each."""

import itertools
import math

import pytest
import torch
from against_cpu import DEVICE, check, check_raises, draw

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
REAL = [torch.bool, *INTEGERS, *FLOATS]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 1e-40, 3.4e38, -2.5]

ARITHMETIC = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "eq": torch.eq,
    "lt": torch.lt,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > y, x, y),
}


def nonzero(*shape, dtype):
    x = draw(*shape, dtype=dtype)
    return torch.where(x == 0, torch.ones_like(x), x)


@pytest.mark.parametrize("dtypes", [*itertools.product(REAL, REAL)], ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_promotion_of_tensors(dtypes):
    x, y = draw(3, 7, dtype=dtypes[0]), nonzero(7, dtype=dtypes[1])
    for function in ARITHMETIC.values():
        check(function, x, y)
    # A 0-dimensional tensor does not widen one of the same category.
    for function in ARITHMETIC.values():
        check(function, x, y[0])
        check(function, x[0, 0], y)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("scalar", [2, -3, 0.5, 1e-3, True, 2**40], ids=str)
def test_promotion_with_python_scalars(dtype, scalar):
    x = draw(5, 6, dtype=dtype)
    if scalar == 2**40 and dtype in (torch.float16, *INTEGERS[:4]):
        scalar = 100
    for function in (torch.add, torch.mul, torch.div, torch.eq, torch.lt):
        check(lambda x, function=function: function(x, scalar), x)
    check(lambda x: scalar / (x.abs() + 1) if x.dtype != torch.bool else x + 0, x)
    check(lambda x: torch.where(x > 0, x, scalar), x)


def test_float_scalar_with_integer_tensor_is_not_truncated():
    check(lambda x: torch.div(x, 0.5), torch.arange(5), exact=True)
    check(lambda x: x * 0.5, torch.arange(5), exact=True)
    check(lambda x: x + 0.25, torch.arange(5, dtype=torch.int8), exact=True)
    check_raises(RuntimeError, lambda x: x.mul_(0.5), torch.arange(5))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("rounding", [None, "trunc", "floor"])
def test_division(dtype, rounding):
    x, y = draw(9, 11, dtype=dtype), nonzero(9, 11, dtype=dtype)
    check(lambda x, y: torch.div(x, y, rounding_mode=rounding), x, y)
    check(lambda x: torch.div(x, x, rounding_mode=rounding), y, exact=True)
    check(lambda x: torch.div(x, 3, rounding_mode=rounding), x)
    check(torch.remainder, x, y)
    check(torch.fmod, x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division_by_zero_raises(dtype):
    check_raises(RuntimeError, lambda x: torch.div(x, 0 * x, rounding_mode="floor"), torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, -1 if info.min else 0, 0, 1, info.max - 1, info.max], dtype=dtype)
    check(lambda x: x + x, x)
    check(lambda x: x * x, x)
    check(lambda x: x - 1, x)
    check(lambda x: x.abs() if info.min else x + 1, x)
    check(lambda x: -x, x)
    check(lambda x: x.cumsum(0, dtype=x.dtype), x)
    check(lambda x: x.sum(), x)
    check(lambda x: ~x, x)
    check(lambda x: x << 1, x)
    check(lambda x: x >> 1, x)


def test_integers_beyond_the_floats():
    x = torch.tensor([2**53 + 1, 2**62 + 3, -(2**62) - 7, 2**31, -(2**31) - 1])
    check(lambda x: x + 1, x)
    check(lambda x: x * 3, x)
    check(lambda x: x.sum(), x)
    check(lambda x: x.max(), x)
    check(lambda x: x == x + 1, x)
    check(lambda x: x > x - 1, x)
    check(lambda x: torch.where(x > 0, x, x - 1), x)
    check(lambda x: x.sort().values, x)
    check(lambda x: x // 7, x)
    check(lambda x: x % 7, x)
    check(lambda x: x.view(5, 1) @ torch.ones(1, 2, dtype=torch.int64, device=x.device), x)
    check(lambda x: torch.full((3,), 2**53 + 1, device=x.device), x)
    assert x.to(DEVICE).tolist() == x.tolist()
    assert x.to(DEVICE)[0].item() == 2**53 + 1


def test_float64_is_exact():
    """Rotary embeddings of diffusion models are computed in double precision."""
    position = torch.arange(0, 4096, dtype=torch.float64)

    def rope(position):
        frequency = 1.0 / 10000 ** (torch.arange(0, 64, 2, dtype=torch.float64, device=position.device) / 64)
        angle = torch.outer(position, frequency)
        return angle.cos().float(), angle.sin().float()

    check(rope, position)
    check(lambda x: (x + 1e-12) - x, position)


@pytest.mark.parametrize("dtypes", [*itertools.product(REAL, REAL)], ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_conversion(dtypes):
    x = draw(5, 33, dtype=dtypes[0])
    if dtypes[1] == torch.uint8 and dtypes[0].is_signed:
        x = x.abs()  # of a negative float it is undefined
    check(lambda x: x.to(dtypes[1]), x, exact=True)
    check(lambda x: torch.empty(33, 5, device=x.device, dtype=dtypes[1]).copy_(x.t()), x, exact=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_conversion_of_what_no_integer_holds(dtype):
    x = torch.tensor([math.inf, -math.inf, math.nan, 2.9, -2.9, 0.0])
    check(lambda x: x.to(dtype), x.repeat(9))


def test_rounding_to_half_precision():
    x = torch.cat([torch.randn(4096) * 10.0**e for e in range(-9, 6)] + [torch.tensor(SPECIAL)])
    check(lambda x: x.to(torch.bfloat16), x, exact=True)
    check(lambda x: x.to(torch.float16), x, exact=True)
    check(lambda x: x.double().to(torch.float16).float(), x, exact=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(dtype):
    x = torch.tensor(SPECIAL * 5).to(dtype)
    y = x[torch.randperm(len(x))]
    for function in (
        torch.relu,
        torch.sign,
        torch.reciprocal,
        torch.neg,
        torch.abs,
        torch.isnan,
        torch.isinf,
        torch.isfinite,
        torch.signbit,
        torch.floor,
        torch.round,
        torch.trunc,
        torch.square,
        torch.logical_not,
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp(min=0.0),
        lambda x: x.clamp(max=torch.zeros_like(x)),
        lambda x: x.clamp(min=math.nan),
        torch.nan_to_num,
        torch.nn.functional.leaky_relu,
        torch.nn.functional.hardtanh,
    ):
        check(function, x, exact=True)
    for function in (torch.sqrt, torch.rsqrt, torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.erf, torch.sin):
        check(function, x.clamp(-1e4, 1e4))
    for function in (
        torch.maximum,
        torch.minimum,
        torch.fmax,
        torch.fmin,
        torch.eq,
        torch.ne,
        torch.le,
        torch.gt,
        torch.copysign,
    ):
        check(function, x, y, exact=True)
    for function in (torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.atan2):
        check(function, x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sign_of_zero(dtype):
    zeros = torch.tensor([0.0, -0.0], dtype=dtype)
    for function in (
        torch.neg,
        torch.abs,
        torch.floor,
        torch.round,
        torch.sqrt,
        torch.relu,
        lambda x: x * -1,
        lambda x: x + 0.0,
    ):
        check(lambda x, function=function: torch.signbit(function(x)), zeros)
    check(lambda x: 1 / x, zeros)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("position", [0, 17, 99])
def test_special_values_in_reductions(special, position):
    x = torch.randn(4, 100)
    x[1, position] = special
    for function in (
        lambda x: x.sum(1),
        lambda x: x.mean(1),
        lambda x: x.amax(1),
        lambda x: x.amin(1),
        lambda x: x.max(1),
        lambda x: x.min(),
        lambda x: x.argmax(1),
        lambda x: x.argmin(1),
        lambda x: x.prod(1),
        lambda x: x.cumsum(1),
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(0),
        lambda x: x.var(1),
        lambda x: x.norm(dim=1),
        lambda x: x.logsumexp(1),
        lambda x: x.sort(1),
        lambda x: torch.nn.functional.layer_norm(x, (100,)),
        lambda x: x.nansum(1),
        lambda x: x @ x.t(),
    ):
        check(function, x)


def test_mean_of_integers_is_refused():
    check_raises(RuntimeError, lambda x: x.mean(), torch.arange(4))


def test_bool_arithmetic():
    x, y = draw(40, dtype=torch.bool), draw(40, dtype=torch.bool)
    for function in (
        torch.add,
        torch.mul,
        torch.logical_and,
        torch.logical_or,
        torch.logical_xor,
        torch.bitwise_and,
        torch.eq,
    ):
        check(function, x, y)
    check(lambda x: x.sum(), x)
    check(lambda x: ~x, x)
    check(lambda x: x.cumsum(0), x)
    check(lambda x: (x.any(), x.all(), x[:0].any(), x[:0].all()), x)
    check_raises(RuntimeError, lambda x: x - x, x)
    check_raises(RuntimeError, lambda x: -x, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_accumulates_in_float32(dtype):
    ones = torch.ones(4096, dtype=dtype)
    check(lambda x: x.sum(), ones, exact=True)
    check(lambda x: x.mean(), ones, exact=True)
    check(lambda x: x.view(1, -1) @ x.view(-1, 1), ones, exact=True)
    check(lambda x: x.view(4, -1).cumsum(1)[:, -1], ones[:512], exact=True)


def test_zero_dimensional_cpu_tensors_mix_with_device_tensors():
    x = torch.arange(4.0, device=DEVICE)
    assert (x * torch.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert (torch.tensor(2) + x).dtype == torch.float32
    with pytest.raises(RuntimeError, match=r"same device|neuron:0 and cpu|cpu and neuron:0"):
        x + torch.ones(4)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype):
    x, y = draw(5, 6, dtype=torch.complex64).to(dtype), draw(5, 6, dtype=torch.complex64).to(dtype)
    for function in (torch.add, torch.mul, torch.div, lambda x, y: x @ y.t(), lambda x, y: (x * y.conj()).real):
        check(function, x, y, tolerance=(1e-4, 1e-5))
    check(torch.abs, x)
    check(lambda x: x.conj().clone(), x)
    assert x.to(DEVICE).tolist() == x.tolist()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64], ids=str
)
def test_dtypes_that_only_store(dtype):
    x = torch.tensor([0.0, 1.0, 2.0, 16.0]).to(dtype)
    y = x.to(DEVICE)
    assert torch.equal(y.cpu().float(), x.float())
    assert torch.equal(y.float().cpu(), x.float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_stored_and_converted(dtype, no_fallback):
    """Every code to other types, and numbers between and beyond the codes from them: ties, overflow, NaN."""
    codes = torch.arange(256, dtype=torch.uint8)
    for other in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        check(lambda x, to=other: x.view(dtype).to(to), codes, exact=True)
        numbers = torch.cat([torch.randn(1000) * 10, torch.tensor(SPECIAL), torch.logspace(-8, 6, 2000)]).to(other)
        for x in (numbers, -numbers):
            check(lambda x: x.to(dtype).view(torch.uint8), x, exact=True)
    check(lambda x: x.to(dtype).view(torch.uint8), torch.arange(-70, 500), exact=True)
    check(lambda x: x.to(dtype).t().contiguous().view(torch.uint8), draw(5, 9), exact=True)
    check(lambda x: x.to(dtype).fill_(1.3).view(torch.uint8), draw(5, 9), exact=True)
    check(lambda x: x.to(dtype).clone().zero_().view(torch.uint8), draw(5, 9), exact=True)
