//! Bessel and Airy functions, one element at a time.
//!
//! The Bessel functions of real order 0 and 1 are the C library's. The modified ones are Chebyshev series of what is
//! left when the exponential and the root of the argument are taken out; near 0 those of the second kind are their power
//! series. The coefficients were computed for these intervals with 40 digits.

use std::f64::consts::{FRAC_PI_4, PI};

unsafe extern "C" {
    #[link_name = "j0"]
    safe fn c_j0(x: f64) -> f64;
    #[link_name = "j1"]
    safe fn c_j1(x: f64) -> f64;
    #[link_name = "y0"]
    safe fn c_y0(x: f64) -> f64;
    #[link_name = "y1"]
    safe fn c_y1(x: f64) -> f64;
}

/// The sum of `c[k] T(k, t)`, by Clenshaw.
#[inline(always)]
fn chebyshev<const N: usize>(c: &[f64; N], t: f64) -> f64 {
    let (mut b0, mut b1) = (0.0, 0.0);
    for c in c[1..].iter().rev() {
        (b0, b1) = (2.0 * t * b0 - b1 + c, b0);
    }
    t * b0 - b1 + c[0]
}

/// e^-|x| I0(x)
pub fn i0e(x: f64) -> f64 {
    let x = x.abs();
    if x <= 8.0 { chebyshev(&I0_SMALL, x / 4.0 - 1.0) } else { chebyshev(&I0_LARGE, 16.0 / x - 1.0) / x.sqrt() }
}

/// e^-|x| I1(x)
pub fn i1e(x: f64) -> f64 {
    let a = x.abs();
    let y = if a <= 8.0 {
        chebyshev(&I1_SMALL, a / 4.0 - 1.0) * a
    } else {
        chebyshev(&I1_LARGE, 16.0 / a - 1.0) / a.sqrt()
    };
    if x < 0.0 { -y } else { y }
}

macro_rules! modified {
    ($i0:ident, $i1:ident, $t:ty) => {
        /// Modified Bessel function of the first kind, order 0; overflows where the exponential does.
        pub fn $i0(x: $t) -> $t {
            (x.abs().exp() as f64 * i0e(x as f64)) as $t
        }

        /// Modified Bessel function of the first kind, order 1; overflows where the exponential does.
        pub fn $i1(x: $t) -> $t {
            (x.abs().exp() as f64 * i1e(x as f64)) as $t
        }
    };
}
modified!(i0_f32, i1_f32, f32);
modified!(i0_f64, i1_f64, f64);

const EULER: f64 = 0.577_215_664_901_532_9;

/// K0 for `0 < x <= 2`.
fn k0_series(x: f64) -> f64 {
    let z = x * x / 4.0;
    let (mut i0, mut sum, mut term, mut harmonic) = (1.0, 0.0, 1.0, 0.0);
    for k in 1..20 {
        let k = k as f64;
        term *= z / (k * k);
        harmonic += 1.0 / k;
        i0 += term;
        sum += term * harmonic;
    }
    sum - ((0.5 * x).ln() + EULER) * i0
}

/// K1 for `0 < x <= 2`.
fn k1_series(x: f64) -> f64 {
    let z = x * x / 4.0;
    // Of I1: x/2 times the sum of z^k / (k! (k + 1)!).
    let (mut i1, mut term, mut psi) = (1.0, 1.0, 1.0 - 2.0 * EULER);
    let mut sum = psi;
    for k in 1..20 {
        let k = k as f64;
        term *= z / (k * (k + 1.0));
        psi += 1.0 / k + 1.0 / (k + 1.0);
        i1 += term;
        sum += term * psi;
    }
    1.0 / x + 0.5 * x * ((0.5 * x).ln() * i1 - 0.5 * sum)
}

/// The value at arguments that are not positive numbers.
fn k_edge(x: f64) -> Option<f64> {
    match x {
        0.0 => Some(f64::INFINITY),
        x if x > 0.0 => None,
        _ => Some(f64::NAN),
    }
}

/// e^x K0(x)
pub fn k0e(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k0_series(x) * x.exp(),
        None => chebyshev(&K0_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// Modified Bessel function of the second kind, order 0.
pub fn k0(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k0_series(x),
        None => (-x).exp() * chebyshev(&K0_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// e^x K1(x)
pub fn k1e(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k1_series(x) * x.exp(),
        None => chebyshev(&K1_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// Modified Bessel function of the second kind, order 1.
pub fn k1(x: f64) -> f64 {
    match k_edge(x) {
        Some(edge) => edge,
        None if x <= 2.0 => k1_series(x),
        None => (-x).exp() * chebyshev(&K1_LARGE, 4.0 / x - 1.0) / x.sqrt(),
    }
}

/// PyTorch reduces the angle of infinity to no number.
fn unless_infinite(x: f64, f: fn(f64) -> f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { f(x) }
}

/// Bessel function of the first kind, order 0.
pub fn j0(x: f64) -> f64 {
    unless_infinite(x, |x| c_j0(x))
}

/// Bessel function of the first kind, order 1.
pub fn j1(x: f64) -> f64 {
    unless_infinite(x, |x| c_j1(x))
}

fn second_kind(x: f64, f: fn(f64) -> f64) -> f64 {
    match x {
        0.0 => f64::NEG_INFINITY,
        x if x > 0.0 => unless_infinite(x, f),
        _ => f64::NAN,
    }
}

/// Bessel function of the second kind, order 0.
pub fn y0(x: f64) -> f64 {
    second_kind(x, |x| c_y0(x))
}

/// Bessel function of the second kind, order 1.
pub fn y1(x: f64) -> f64 {
    second_kind(x, |x| c_y1(x))
}

/// Spherical Bessel function of order 0: sin(x) / x
pub fn spherical_j0(x: f64) -> f64 {
    if x.is_infinite() {
        0.0
    } else if x.abs() < 1e-4 {
        1.0 - x * x / 6.0
    } else {
        x.sin() / x
    }
}

/// Where the asymptotic series of the Airy function takes over: good to 1e-9 there.
const AIRY_ASYMPTOTIC: f64 = 6.2;

/// Airy function Ai.
pub fn airy_ai(x: f64) -> f64 {
    if x.is_infinite() || x.is_nan() {
        return f64::NAN;
    }
    if x > 103.892 {
        return 0.0;
    }
    if x.abs() < AIRY_ASYMPTOTIC {
        return airy_series(x);
    }
    // Coefficients u(k) of the expansion in 1 / zeta.
    let zeta = 2.0 / 3.0 * x.abs() * x.abs().sqrt();
    let root = PI.sqrt() * x.abs().sqrt().sqrt();
    let (mut u, mut even, mut odd, mut alternating) = (1.0f64, 1.0f64, 0.0, 1.0);
    for k in 1..14 {
        let n = k as f64;
        let next = u * (6.0 * n - 5.0) * (6.0 * n - 3.0) * (6.0 * n - 1.0) / (216.0 * n * (2.0 * n - 1.0) * zeta);
        if next > u {
            break;
        }
        u = next;
        alternating += if k % 2 == 0 { u } else { -u };
        let sign = if k % 4 < 2 { 1.0 } else { -1.0 };
        if k % 2 == 0 {
            even += sign * u;
        } else {
            odd += sign * u;
        }
    }
    if x > 0.0 {
        (-zeta).exp() * alternating / (2.0 * root)
    } else {
        let (sine, cosine) = (zeta + FRAC_PI_4).sin_cos();
        (sine * even - cosine * odd) / root
    }
}

/// Ai from its two power series.
fn airy_series(x: f64) -> f64 {
    const AT_0: f64 = 0.355_028_053_887_817_2;
    const SLOPE_AT_0: f64 = -0.258_819_403_792_806_8;
    let z = x * x * x;
    let (mut f, mut g, mut sum) = (AT_0, SLOPE_AT_0 * x, AT_0 + SLOPE_AT_0 * x);
    let mut k = 0.0;
    while k < 200.0 {
        k += 3.0;
        f *= z / (k * (k - 1.0));
        g *= z / (k * (k + 1.0));
        sum += f + g;
        if f.abs() + g.abs() < 1e-20 {
            break;
        }
    }
    sum
}

/// `e^-x I0(x)` on [0, 8].
const I0_SMALL: [f64; 30] = [
    0.33839763720473803,
    -0.3046826723431984,
    0.17162090152220877,
    -0.09490109704804764,
    0.04930528423967071,
    -0.02373741480589947,
    0.010546460394594998,
    -0.004324309995050576,
    0.0016394756169413357,
    -0.0005763755745385824,
    0.00018850288509584165,
    -5.754195010082104e-05,
    1.6448448070728896e-05,
    -4.4167383584587505e-06,
    1.1173875391201037e-06,
    -2.670793853940612e-07,
    6.046995022541919e-08,
    -1.300025009986248e-08,
    2.6598237246823866e-09,
    -5.189795601635263e-10,
    9.675809035373237e-11,
    -1.726826291441556e-11,
    2.95505266312964e-12,
    -4.856446783111929e-13,
    7.676185498604936e-14,
    -1.1685332877993451e-14,
    1.715391285555133e-15,
    -2.431279846547955e-16,
    3.3307945188222384e-17,
    -4.4153416464793395e-18,
];

/// `sqrt(x) e^-x I0(x)` from 8 on, in `16 / x - 1`.
const I0_LARGE: [f64; 25] = [
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690638e-07,
    2.266668990498178e-08,
    3.3962320257083865e-09,
    4.94060238822497e-10,
    1.1889147107846439e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
    -4.830504485944178e-18,
    -7.23318048787476e-18,
];

/// `e^-x I1(x) / x` on [0, 8].
const I1_SMALL: [f64; 29] = [
    0.12629359322181682,
    -0.17641651835783406,
    0.1026436586898471,
    -0.05294598120809499,
    0.024726449030626516,
    -0.010564084894626197,
    0.004156422944312888,
    -0.0015135724506312532,
    0.0005122859561685758,
    -0.00016176081582589674,
    4.781565107550054e-05,
    -1.3273163656039436e-05,
    3.4702513081376785e-06,
    -8.568720264695455e-07,
    2.0032947535521353e-07,
    -4.445059128796328e-08,
    9.381537386495773e-09,
    -1.8872497517228294e-09,
    3.625590281552117e-10,
    -6.663489723502027e-11,
    1.1736186298890901e-11,
    -1.9839743977649436e-12,
    3.223793365945575e-13,
    -5.042185504727912e-14,
    7.600684294735408e-15,
    -1.1055969477353862e-15,
    1.5536319577362005e-16,
    -2.111421214358166e-17,
    2.7779141127610464e-18,
];

/// `sqrt(x) e^-x I1(x)` from 8 on.
const I1_LARGE: [f64; 25] = [
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196584e-10,
    -1.8974958123505413e-11,
    3.2526035830154884e-11,
    1.4125807436613782e-11,
    2.0356285441470896e-12,
    -7.198551776245908e-13,
    -4.0835511110921974e-13,
    -2.1015418427726643e-14,
    4.272440016711951e-14,
    1.0420276984128802e-14,
    -3.8144030724370075e-15,
    -1.8803547755107825e-15,
    3.3082023109209285e-16,
    2.96262899764595e-16,
    -3.209525921993424e-17,
    -4.650305368489358e-17,
    4.414348323071704e-18,
    7.517296310842111e-18,
];

/// `sqrt(x) e^x K0(x)` from 2 on, in `4 / x - 1`.
const K0_LARGE: [f64; 25] = [
    1.2201515410329777,
    -0.0314481013119645,
    0.0015698838857300533,
    -0.00012849549581627802,
    1.39498137188765e-05,
    -1.8317555227191195e-06,
    2.766813639445015e-07,
    -4.660489897687948e-08,
    8.574034017414225e-09,
    -1.6975345093890614e-09,
    3.5773972814003283e-10,
    -7.957489244477396e-11,
    1.8559491149549264e-11,
    -4.514597883374519e-12,
    1.1403405882073441e-12,
    -2.9800969231481784e-13,
    8.032890775068375e-14,
    -2.2275133267462965e-14,
    6.340076476276646e-15,
    -1.848593377920907e-15,
    5.5120559994043335e-16,
    -1.6782311257549006e-16,
    5.2103917776435543e-17,
    -1.6475805939842632e-17,
    5.3004337711773354e-18,
];

/// `sqrt(x) e^x K1(x)` from 2 on.
const K1_LARGE: [f64; 25] = [
    1.3603130952422213,
    0.10392373657681724,
    -0.002857816859622779,
    0.00019521551847135162,
    -1.936197974166083e-05,
    2.406484947837217e-06,
    -3.5019606030878126e-07,
    5.7410841254500495e-08,
    -1.0345762465678097e-08,
    2.0150497551970347e-09,
    -4.1903547593419254e-10,
    9.218315187605315e-11,
    -2.129967838427791e-11,
    5.139639673482343e-12,
    -1.2891739609498229e-12,
    3.348419666052243e-13,
    -8.976705182010146e-14,
    2.4771544242195988e-14,
    -7.0198370892147685e-15,
    2.038703166239861e-15,
    -6.057047270643018e-16,
    1.8380935752430455e-16,
    -5.689462849193648e-17,
    1.7940510478863572e-17,
    -5.7567444820733025e-18,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-14 * want.abs(), "{got} is not {want}");
    }

    #[test]
    fn modified_functions_match_their_wronskian() {
        // I0 K1 + I1 K0 = 1 / x
        for i in 1..600 {
            let x = i as f64 * 0.05;
            close(x * (i0e(x) * k1e(x) + i1e(x) * k0e(x)), 1.0);
        }
    }

    #[test]
    fn known_values() {
        close(i0_f64(1.0), 1.266_065_877_752_008_4);
        close(i1_f64(-2.0), -1.590_636_854_637_329);
        close(k0(1.0), 0.421_024_438_240_708_34);
        close(k1(3.0), 0.040_156_431_128_194_19);
        assert!((airy_ai(1.0) - 0.135_292_416_312_881_4).abs() < 1e-15);
        assert!((airy_ai(-7.0) - 0.184_280_835_250_505_54).abs() < 1e-10);
    }

    #[test]
    fn airy_series_meet() {
        for x in [AIRY_ASYMPTOTIC, -AIRY_ASYMPTOTIC] {
            let (inside, outside) = (airy_ai(x * (1.0 - 1e-12)), airy_ai(x * (1.0 + 1e-12)));
            assert!((inside / outside - 1.0).abs() < 1e-6, "{inside} {outside}");
        }
    }
}
