//! Orthogonal polynomials of any degree, one element at a time, by their recurrences in the operand's precision.

/// Degrees that are no `i64` count as negative, for which every polynomial is 0.
fn degree(n: f64) -> i64 {
    if n.abs() < 9.2e18 { n as i64 } else { -1 }
}

macro_rules! polynomials {
    ($module:ident, $t:ident, $hermite_limit:expr) => {
        /// In this precision.
        pub mod $module {
            use super::degree;

            /// `r(k) = 2 x r(k - 1) - r(k - 2)` from `1` and `first`.
            fn chebyshev(x: $t, n: i64, first: $t) -> $t {
                let (mut p, mut q) = (1.0, first);
                if n == 0 {
                    return p;
                }
                let mut k = 2;
                while k <= n && !q.is_nan() {
                    (p, q) = (q, (x + x) * q - p);
                    k += 1;
                }
                q
            }

            /// 1, or -1 for odd degrees.
            fn parity(n: i64) -> $t {
                if n % 2 == 0 { 1.0 } else { -1.0 }
            }

            /// Chebyshev polynomial of the first kind.
            pub fn chebyshev_t(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                if n < 0 {
                    0.0
                } else if x.abs() == 1.0 {
                    if x > 0.0 { 1.0 } else { parity(n) }
                } else if n > 6 && x.abs() < 1.0 {
                    (n as $t * x.acos()).cos()
                } else {
                    chebyshev(x, n, x)
                }
            }

            /// Chebyshev polynomial of the second kind.
            pub fn chebyshev_u(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                let next = n.wrapping_add(1) as $t;
                if n < 0 {
                    0.0
                } else if x.abs() == 1.0 {
                    if x > 0.0 { next } else { parity(n) * next }
                } else if n > 8 && x.abs() < 1.0 {
                    let angle = x.acos();
                    let sine = angle.sin();
                    if sine != 0.0 { (next * angle).sin() / sine } else { next * (next * angle).cos() / x }
                } else {
                    chebyshev(x, n, x + x)
                }
            }

            /// Chebyshev polynomial of the third kind.
            pub fn chebyshev_v(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                let odd = n.wrapping_add(n).wrapping_add(1) as $t;
                if n < 0 {
                    0.0
                } else if x.abs() == 1.0 {
                    if x > 0.0 { 1.0 } else { parity(n) * odd }
                } else if n > 8 && x.abs() < 1.0 {
                    let angle = x.acos();
                    if (angle / 2.0).sin() == 1.0 {
                        return parity(n) * odd;
                    }
                    ((n as $t + 0.5) * angle).cos() / (angle / 2.0).cos()
                } else {
                    chebyshev(x, n, x + x - 1.0)
                }
            }

            /// Chebyshev polynomial of the fourth kind.
            pub fn chebyshev_w(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                let odd = n.wrapping_add(n).wrapping_add(1) as $t;
                if n < 0 {
                    0.0
                } else if x.abs() == 1.0 {
                    if x > 0.0 { odd } else { parity(n) }
                } else if n > 8 && x.abs() < 1.0 {
                    let angle = x.acos();
                    if (angle / 2.0).cos() == 1.0 {
                        return if x > 0.0 { odd } else { parity(n) };
                    }
                    ((n as $t + 0.5) * angle).sin() / (angle / 2.0).sin()
                } else {
                    chebyshev(x, n, x + x + 1.0)
                }
            }

            /// Physicist's Hermite polynomial; NaN for degrees beyond PyTorch's limit.
            pub fn hermite_h(x: $t, n: $t) -> $t {
                hermite(x + x, degree(n as f64), 2.0)
            }

            /// Probabilist's Hermite polynomial; NaN for degrees beyond PyTorch's limit.
            pub fn hermite_he(x: $t, n: $t) -> $t {
                hermite(x, degree(n as f64), 1.0)
            }

            /// `r(k + 1) = y r(k) - c k r(k - 1)`
            fn hermite(y: $t, n: i64, c: $t) -> $t {
                match n {
                    ..0 => return 0.0,
                    0 => return 1.0,
                    1 => return y,
                    n if n > $hermite_limit => return $t::NAN,
                    _ => {}
                }
                let (mut p, mut q) = (1.0, y);
                for k in 1..n {
                    (p, q) = (q, y * q - c * k as $t * p);
                }
                q
            }

            /// Laguerre polynomial.
            pub fn laguerre_l(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                if n < 0 {
                    return 0.0;
                }
                if x == 0.0 || n == 0 {
                    return 1.0;
                }
                let (mut p, mut q) = (1.0, 1.0 - x);
                let mut k = 1;
                while k < n && !q.is_nan() {
                    let i = k as $t;
                    (p, q) = (q, ((i + i + (1.0 - x)) * q - i * p) / (i + 1.0));
                    k += 1;
                }
                q
            }

            /// Legendre polynomial.
            pub fn legendre_p(x: $t, n: $t) -> $t {
                let n = degree(n as f64);
                if n < 0 {
                    return 0.0;
                }
                if x.abs() == 1.0 {
                    return if x > 0.0 { 1.0 } else { parity(n) };
                }
                if n == 0 {
                    return 1.0;
                }
                let (mut p, mut q) = (1.0, x);
                let mut k = 1;
                while k < n && !q.is_nan() {
                    let i = k as $t;
                    (p, q) = (q, ((i + i + 1.0) * x * q - i * p) / (i + 1.0));
                    k += 1;
                }
                q
            }
        }
    };
}
polynomials!(single, f32, 128);
polynomials!(double, f64, 512);

#[cfg(test)]
mod tests {
    use super::double::*;

    #[test]
    fn recurrence_and_trigonometric_form_agree() {
        // Degrees on both sides of where the form changes.
        for n in 0..14 {
            for i in -9..=9 {
                let x = i as f64 / 10.0;
                let (n, angle) = (n as f64, x.acos());
                let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-11, "{n} {x}: {got} {want}");
                close(chebyshev_t(x, n), (n * angle).cos());
                close(chebyshev_u(x, n), ((n + 1.0) * angle).sin() / angle.sin());
                close(chebyshev_v(x, n), ((n + 0.5) * angle).cos() / (angle / 2.0).cos());
                close(chebyshev_w(x, n), ((n + 0.5) * angle).sin() / (angle / 2.0).sin());
            }
        }
    }

    #[test]
    fn low_degrees() {
        let x = 0.3;
        assert!((hermite_h(x, 3.0) - (8.0 * x * x * x - 12.0 * x)).abs() < 1e-14);
        assert!((hermite_he(x, 3.0) - (x * x * x - 3.0 * x)).abs() < 1e-14);
        assert!((laguerre_l(x, 2.0) - (0.5 * x * x - 2.0 * x + 1.0)).abs() < 1e-14);
        assert!((legendre_p(x, 2.0) - (1.5 * x * x - 0.5)).abs() < 1e-14);
        assert_eq!((legendre_p(x, -1.0), hermite_h(x, f64::NAN)), (0.0, 0.0));
        assert!(hermite_h(x, 513.0).is_nan());
    }
}
