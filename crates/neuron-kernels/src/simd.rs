//! Run-time choice of the instruction set.
//!
//! Kernels are plain loops over slices, compiled once per [`Isa`]; LLVM vectorises them with the features of the
//! function they end up in. Everything between that function and the loop is `#[inline(always)]`.

use std::sync::LazyLock;

/// What a loop may assume of the processor it is compiled for.
pub trait Isa: Copy {
    /// A fused multiply-add is one instruction. Where it is not, the two roundings are cheaper than the call.
    const FMA: bool;
    /// Bytes of the widest vector.
    const BYTES: usize;

    /// `a * b + c`, with one rounding if that costs nothing.
    #[inline(always)]
    fn fma32(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// `a * b + c`, with one rounding if that costs nothing.
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }
}

/// AVX-512 as in x86-64-v4.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;
/// AVX2 with FMA, as in x86-64-v3.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;
/// Whatever the target guarantees: SSE2, NEON, or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Baseline;

impl Isa for Avx512 {
    const FMA: bool = true;
    const BYTES: usize = 64;
}
impl Isa for Avx2 {
    const FMA: bool = true;
    const BYTES: usize = 32;
}
impl Isa for Baseline {
    const FMA: bool = cfg!(target_arch = "aarch64");
    const BYTES: usize = 16;
}

/// The instruction sets that kernels are compiled for, widest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// [`Baseline`]
    Baseline,
    /// [`Avx2`]
    Avx2,
    /// [`Avx512`]
    Avx512,
}

static LEVEL: LazyLock<Level> = LazyLock::new(detect);

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    macro_rules! has {
        ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    let v3 = has!("avx2" "fma" "bmi1" "bmi2" "f16c" "lzcnt" "popcnt" "movbe");
    let v4 = v3 && has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl");
    match (v4, v3) {
        (true, _) => Level::Avx512,
        (_, true) => Level::Avx2,
        _ => Level::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Baseline
}

/// The widest instruction set of this processor.
pub fn level() -> Level {
    *LEVEL
}

/// Defines `$name::<O>(level)`: the address of `$body::<I, O>` compiled for the instruction set of that level.
///
/// The address may be called where the processor has the level, as [`level`] says.
macro_rules! compiled_per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$op:ident: $bound:ident $(, const $k:ident: $kt:ty)?>
     = $body:ident($($arg:ident: $ty:ty),*)) => {
        $(#[$meta])*
        $vis fn $name<$op: $bound $(, const $k: $kt)?>(level: $crate::simd::Level) -> unsafe fn($($ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt,movbe")]
            unsafe fn avx512<$op: $bound $(, const $k: $kt)?>($($arg: $ty),*) {
                // SAFETY: the caller's promise is that of the body.
                unsafe { $body::<$crate::simd::Avx512, $op $(, $k)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt,movbe")]
            unsafe fn avx2<$op: $bound $(, const $k: $kt)?>($($arg: $ty),*) {
                // SAFETY: the caller's promise is that of the body.
                unsafe { $body::<$crate::simd::Avx2, $op $(, $k)?>($($arg),*) }
            }
            unsafe fn baseline<$op: $bound $(, const $k: $kt)?>($($arg: $ty),*) {
                // SAFETY: the caller's promise is that of the body.
                unsafe { $body::<$crate::simd::Baseline, $op $(, $k)?>($($arg),*) }
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx512 => avx512::<$op $(, $k)?>,
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Level::Avx2 => avx2::<$op $(, $k)?>,
                _ => baseline::<$op $(, $k)?>,
            }
        }
    };
}
pub(crate) use compiled_per_isa;

/// Runs `body` compiled for the widest vectors the processor has.
///
/// `body` must be `#[inline(always)]` all the way down, or its loops are compiled for the baseline.
#[inline(always)]
pub fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt")]
        fn avx512<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c,lzcnt,popcnt")]
        fn avx2<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        match level() {
            // SAFETY: the processor has the features of the level.
            Level::Avx512 => return unsafe { avx512(body) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(body) },
            Level::Baseline => {}
        }
    }
    body()
}
