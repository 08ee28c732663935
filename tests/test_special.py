"""Special functions, against the CPU: poles, infinities and NaN among the arguments."""

import math

import pytest
import torch
from against_cpu import check

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.5, -4.5, 1e-30, 8.0, 8.1, 26.5, -26.5, 88.0, 300.0, -100.0]
EDGES += [math.inf, -math.inf, math.nan, 0.999, 6.2, -6.3]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

UNARY = "digamma lgamma i0 special.i0e special.i1 special.i1e special.entr sinc angle logit isposinf isneginf frexp nan_to_num"
# The CPU has no half floats for these.
WIDE = """special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.modified_bessel_i0
special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1 special.scaled_modified_bessel_k0
special.scaled_modified_bessel_k1 special.spherical_bessel_j0 special.ndtri special.log_ndtr special.erfcx"""
BINARY = "igamma igammac xlogy special.xlog1py logaddexp logaddexp2 nextafter heaviside"
POLYNOMIALS = """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"""

# Of the CPU's f32 functions, more than of ours.
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-6, 1e-6),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (5e-3, 1e-3),
}


def resolve(name):
    found = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def values(dtype, n=200):
    return torch.cat([torch.tensor(EDGES, dtype=torch.float64), torch.randn(n, dtype=torch.float64) * 5]).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY.split())
def test_unary(name, dtype, no_fallback):
    check(resolve(name), values(dtype), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WIDE.split())
def test_unary_without_half_floats(name, dtype, no_fallback):
    check(resolve(name), values(dtype), tolerance=TOLERANCE[dtype])


def test_airy(no_fallback):
    x = values(torch.float32)
    check(torch.special.airy_ai, x, tolerance=(1e-4, 1e-4))


@pytest.mark.parametrize("name", ["digamma", "special.i1", "special.erfcx", "sinc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_become_floats(name, dtype, no_fallback):
    check(resolve(name), torch.tensor([0, 1, 2, 7]).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY.split())
def test_binary(name, dtype, no_fallback):
    edges = torch.tensor(EDGES, dtype=torch.float64).to(dtype)
    a, b = edges.repeat(len(EDGES)), edges.repeat_interleave(len(EDGES))
    x, y = values(dtype), values(dtype).flip(0)
    check(resolve(name), torch.cat([a, x, x.abs()]), torch.cat([b, y, y.abs() * 2]), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta(dtype, no_fallback):
    edges = torch.tensor([e for e in EDGES if abs(e) < 200 or e != e], dtype=dtype)
    a, b = edges.repeat(len(edges)), edges.repeat_interleave(len(edges))
    check(torch.special.zeta, a, b, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POLYNOMIALS.split())
def test_polynomials(name, dtype, no_fallback):
    x = torch.tensor([0.0, 1.0, -1.0, 0.5, 0.3, -0.7, 1.5, -2.0, 0.999, math.nan], dtype=dtype)
    degrees = torch.tensor([-1.0, 0, 1, 2, 3, 5.7, 7, 9, 14, math.nan], dtype=dtype)
    polynomial = getattr(torch.special, name)
    check(polynomial, x, degrees[:, None], tolerance=TOLERANCE[dtype])
    check(lambda x: polynomial(x, 4), x, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_polygamma(n, dtype, no_fallback):
    check(lambda x: torch.polygamma(n, x), values(dtype), tolerance=TOLERANCE[dtype])
    check(lambda x: x.polygamma_(n), values(dtype), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("p", [1, 3, 5])
def test_mvlgamma(p, no_fallback):
    check(lambda x: torch.mvlgamma(x, p), torch.rand(50) * 9 + 2.1)


@pytest.mark.parametrize("eps", [None, 0.0, 0.01])
def test_logit(eps, no_fallback):
    x = torch.cat([torch.rand(100), torch.tensor(EDGES)])
    check(lambda x: torch.logit(x, eps), x)
    check(lambda x: x.logit_(eps), x)
    # The CPU's vector and scalar loops disagree on NaN with a margin.
    x = x[~x.isnan()]
    check(lambda g, x: torch.ops.aten.logit_backward(g, x, eps), torch.randn_like(x), x)


@pytest.mark.parametrize("decimals", [0, 2, -1, 5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_round_to_decimals(decimals, dtype, no_fallback):
    check(lambda x: torch.round(x, decimals=decimals), values(dtype) * 11, exact=True)


def test_replacements_of_what_is_not_finite(no_fallback):
    for dtype in FLOATS:
        check(lambda x: torch.nan_to_num(x, 1.5, posinf=7.0), values(dtype), exact=True)
        check(lambda x: x.nan_to_num_(), values(dtype), exact=True)
    check(torch.nan_to_num, torch.arange(5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_divisors(dtype, no_fallback):
    a, b = torch.tensor([0, 12, 18, 7, 0, 100]).to(dtype), torch.tensor([0, 18, 12, 5, 9, 75]).to(dtype)
    check(torch.gcd, a, b)
    check(torch.lcm, a, b)
    if dtype.is_signed:
        check(torch.gcd, -a, b)
        check(torch.lcm, a, -b)


def test_functions_fuse_with_their_neighbours(no_fallback):
    check(lambda x: torch.digamma(x.t() + 1.5).exp() * 2, torch.rand(33, 70))
