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
