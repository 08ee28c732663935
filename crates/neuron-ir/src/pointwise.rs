//! The elementwise operators: one list, from which the IR, the text form and the tile interpreter take their names.
//!
//! Arithmetic is defined on the compute types only (`f32`, `f64`, `i64`, `bool`; see [`crate::DType::compute`]); the
//! storage types appear in conversions. Floating point follows IEEE 754 with PyTorch's conventions for NaN.

macro_rules! operators {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every operator of this arity.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name in the text form of the IR.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

operators! {
    /// Elementwise operators of one operand; the result has the operand's type unless said otherwise.
    UnaryOp {
        /// Negation; wraps for integers.
        Neg = "neg",
        /// Absolute value.
        Abs = "abs",
        /// -1, 0 or 1; NaN stays NaN.
        Sign = "sign",
        /// e^x
        Exp = "exp",
        /// 2^x
        Exp2 = "exp2",
        /// e^x - 1 without cancellation
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// Base-2 logarithm.
        Log2 = "log2",
        /// Base-10 logarithm.
        Log10 = "log10",
        /// log(1 + x) without cancellation
        Log1p = "log1p",
        /// Square root.
        Sqrt = "sqrt",
        /// 1 / sqrt(x), correctly rounded division of a correctly rounded root.
        Rsqrt = "rsqrt",
        /// 1 / x
        Reciprocal = "reciprocal",
        /// Sine, argument reduced exactly.
        Sin = "sin",
        /// Cosine, argument reduced exactly.
        Cos = "cos",
        /// Tangent.
        Tan = "tan",
        /// Inverse sine.
        Asin = "asin",
        /// Inverse cosine.
        Acos = "acos",
        /// Inverse tangent.
        Atan = "atan",
        /// Hyperbolic sine.
        Sinh = "sinh",
        /// Hyperbolic cosine.
        Cosh = "cosh",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Inverse hyperbolic sine.
        Asinh = "asinh",
        /// Inverse hyperbolic cosine.
        Acosh = "acosh",
        /// Inverse hyperbolic tangent.
        Atanh = "atanh",
        /// Error function.
        Erf = "erf",
        /// Complementary error function.
        Erfc = "erfc",
        /// Inverse error function.
        Erfinv = "erfinv",
        /// Logarithm of the absolute value of the gamma function.
        Lgamma = "lgamma",
        /// Logistic function.
        Sigmoid = "sigmoid",
        /// Logarithmic derivative of the gamma function; the infinity of the other sign at zeros, NaN at negative integers.
        Digamma = "digamma",
        /// Derivative of the digamma function.
        Trigamma = "trigamma",
        /// Modified Bessel function of the first kind, order 0.
        I0 = "i0",
        /// e^-|x| I0(x)
        I0e = "i0e",
        /// Modified Bessel function of the first kind, order 1.
        I1 = "i1",
        /// e^-|x| I1(x)
        I1e = "i1e",
        /// Modified Bessel function of the second kind, order 0.
        K0 = "k0",
        /// e^x K0(x)
        K0e = "k0e",
        /// Modified Bessel function of the second kind, order 1.
        K1 = "k1",
        /// e^x K1(x)
        K1e = "k1e",
        /// Bessel function of the first kind, order 0; NaN at infinity, as PyTorch's.
        BesselJ0 = "bessel_j0",
        /// Bessel function of the first kind, order 1.
        BesselJ1 = "bessel_j1",
        /// Bessel function of the second kind, order 0.
        BesselY0 = "bessel_y0",
        /// Bessel function of the second kind, order 1.
        BesselY1 = "bessel_y1",
        /// sin(x) / x, the spherical Bessel function of order 0.
        SphericalBesselJ0 = "spherical_bessel_j0",
        /// Airy function Ai; NaN at the infinities, as PyTorch's.
        AiryAi = "airy_ai",
        /// Inverse of the normal distribution function.
        Ndtri = "ndtri",
        /// Logarithm of the normal distribution function.
        LogNdtr = "log_ndtr",
        /// e^(x^2) erfc(x)
        Erfcx = "erfcx",
        /// The factor of `x = m 2^e` in [1/2, 1).
        FrexpMantissa = "frexp_mantissa",
        /// The exponent of `x = m 2^e`, as a number of the operand's type; 0 where `x` is not finite.
        FrexpExponent = "frexp_exponent",
        /// Largest integer not above.
        Floor = "floor",
        /// Smallest integer not below.
        Ceil = "ceil",
        /// Towards zero.
        Trunc = "trunc",
        /// To nearest, ties to even.
        Round = "round",
        /// Bitwise complement of integers, logical complement of bool.
        Not = "not",
        /// True where NaN; `bool` result.
        IsNan = "is_nan",
        /// True where infinite; `bool` result.
        IsInf = "is_inf",
        /// Sign bit set; `bool` result.
        Signbit = "signbit",
    }
}

operators! {
    /// Elementwise operators of two operands of one type.
    BinaryOp {
        /// Addition; wraps for integers, or for bool.
        Add = "add",
        /// Subtraction; wraps for integers.
        Sub = "sub",
        /// Multiplication; wraps for integers, and for bool.
        Mul = "mul",
        /// Division: IEEE for floats, towards zero for integers (division by zero is an error of the launch).
        Div = "div",
        /// Division rounded towards negative infinity: Python's `//`.
        FloorDiv = "floor_div",
        /// Python's `%`: the result has the sign of the divisor.
        Remainder = "remainder",
        /// C's `%` and `fmod`: the result has the sign of the dividend.
        Fmod = "fmod",
        /// Power; integer powers by squaring.
        Pow = "pow",
        /// Quadrant-aware inverse tangent.
        Atan2 = "atan2",
        /// Larger operand; NaN if either is.
        Maximum = "maximum",
        /// Smaller operand; NaN if either is.
        Minimum = "minimum",
        /// Larger operand; the other if one is NaN.
        Fmax = "fmax",
        /// Smaller operand; the other if one is NaN.
        Fmin = "fmin",
        /// Magnitude of the first, sign of the second.
        Copysign = "copysign",
        /// sqrt(x^2 + y^2) without overflow
        Hypot = "hypot",
        /// `(a, x)`: regularised lower incomplete gamma function.
        Igamma = "igamma",
        /// `(a, x)`: regularised upper incomplete gamma function.
        Igammac = "igammac",
        /// `(s, q)`: Hurwitz zeta function.
        Zeta = "zeta",
        /// `(x, n)`: Chebyshev polynomial of the first kind, as for all polynomials with the degree truncated to an integer.
        ChebyshevT = "chebyshev_t",
        /// `(x, n)`: Chebyshev polynomial of the second kind.
        ChebyshevU = "chebyshev_u",
        /// `(x, n)`: Chebyshev polynomial of the third kind.
        ChebyshevV = "chebyshev_v",
        /// `(x, n)`: Chebyshev polynomial of the fourth kind.
        ChebyshevW = "chebyshev_w",
        /// `(x, n)`: [`BinaryOp::ChebyshevT`] of `2 x - 1`.
        ShiftedChebyshevT = "shifted_chebyshev_t",
        /// `(x, n)`: [`BinaryOp::ChebyshevU`] of `2 x - 1`.
        ShiftedChebyshevU = "shifted_chebyshev_u",
        /// `(x, n)`: [`BinaryOp::ChebyshevV`] of `2 x - 1`.
        ShiftedChebyshevV = "shifted_chebyshev_v",
        /// `(x, n)`: [`BinaryOp::ChebyshevW`] of `2 x - 1`.
        ShiftedChebyshevW = "shifted_chebyshev_w",
        /// `(x, n)`: physicist's Hermite polynomial.
        HermiteH = "hermite_h",
        /// `(x, n)`: probabilist's Hermite polynomial.
        HermiteHe = "hermite_he",
        /// `(x, n)`: Laguerre polynomial.
        LaguerreL = "laguerre_l",
        /// `(x, n)`: Legendre polynomial.
        LegendreP = "legendre_p",
        /// The next number of the operands' type after the first, towards the second.
        Nextafter = "nextafter",
        /// As [`BinaryOp::Nextafter`], of `bf16` numbers in `f32`.
        NextafterBf16 = "nextafter_bf16",
        /// As [`BinaryOp::Nextafter`], of `f16` numbers in `f32`.
        NextafterF16 = "nextafter_f16",
        /// Greatest common divisor of integers, not negative.
        Gcd = "gcd",
        /// Least common multiple of integers, not negative; 0 if both are.
        Lcm = "lcm",
        /// Bitwise and, logical and of bool.
        And = "and",
        /// Bitwise or, logical or of bool.
        Or = "or",
        /// Bitwise exclusive or, also of bool.
        Xor = "xor",
        /// Left shift; 0 where the distance is out of range.
        Shl = "shl",
        /// Arithmetic right shift; the sign where the distance is out of range.
        Shr = "shr",
        /// Equal; `bool` result, as for all comparisons.
        Eq = "eq",
        /// Not equal.
        Ne = "ne",
        /// Less.
        Lt = "lt",
        /// Less or equal.
        Le = "le",
        /// Greater.
        Gt = "gt",
        /// Greater or equal.
        Ge = "ge",
    }
}

impl UnaryOp {
    /// True where the result is `bool` whatever the operand.
    pub const fn is_predicate(self) -> bool {
        matches!(self, UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::Signbit)
    }
}

impl BinaryOp {
    /// True where the result is `bool` whatever the operands.
    pub const fn is_comparison(self) -> bool {
        matches!(self, BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge)
    }
}
