//! One vector pass of one operator over tiles.

use crate::simd::{Isa, Level, compiled_per_isa};
use std::mem::MaybeUninit;

/// `d[..n] = f(a[..n])`
pub type Pass1 = unsafe fn(d: *mut u8, a: *const u8, n: usize);
/// `d[..n] = f(a[..n], b[..n])`; a splat operand is one element.
pub type Pass2 = unsafe fn(d: *mut u8, a: *const u8, b: *const u8, n: usize);
/// `d[..n] = f(c[..n], a[..n], b[..n])`; a splat operand is one element.
pub type Pass3 = unsafe fn(d: *mut u8, c: *const u8, a: *const u8, b: *const u8, n: usize);

/// A function of one element.
pub trait Map1 {
    /// Operand.
    type In: Copy;
    /// Result.
    type Out: Copy;
    /// So long that a scalar remainder would show: the last elements are padded to a vector.
    const LONG: bool = false;
    /// The function.
    fn eval<I: Isa>(a: Self::In) -> Self::Out;
}

/// A function of two elements.
pub trait Map2 {
    /// Operands.
    type In: Copy;
    /// Result.
    type Out: Copy;
    /// As for [`Map1`].
    const LONG: bool = false;
    /// The function.
    fn eval<I: Isa>(a: Self::In, b: Self::In) -> Self::Out;
}

/// Elements of the padded remainder of a long function.
const PAD: usize = 32;

/// # Safety
/// `a` is readable and `d` writable for `n` elements, and they do not overlap.
#[inline(always)]
unsafe fn map1<I: Isa, O: Map1>(d: *mut u8, a: *const u8, n: usize) {
    // SAFETY: the caller's promise; `MaybeUninit` because tiles and outputs may hold anything.
    let (d, a) = unsafe {
        (
            std::slice::from_raw_parts_mut(d.cast::<MaybeUninit<O::Out>>(), n),
            std::slice::from_raw_parts(a.cast::<O::In>(), n),
        )
    };
    let main = if O::LONG { n & !(PAD - 1) } else { n };
    for (d, a) in d[..main].iter_mut().zip(&a[..main]) {
        d.write(O::eval::<I>(*a));
    }
    if O::LONG && main < n {
        let rest = n - main;
        let mut x = [a[main]; PAD];
        x[..rest].copy_from_slice(&a[main..]);
        let mut y = [MaybeUninit::<O::Out>::uninit(); PAD];
        for (y, x) in y.iter_mut().zip(&x) {
            y.write(O::eval::<I>(*x));
        }
        d[main..].copy_from_slice(&y[..rest]);
    }
}

compiled_per_isa! {
    /// The pass of a function of one element.
    pub fn pass1<O: Map1> = map1(d: *mut u8, a: *const u8, n: usize)
}

/// Both operands are tiles.
pub const TILES: u8 = 0;
/// The second operand is a splat.
pub const SPLAT_B: u8 = 1;
/// The first operand is a splat.
pub const SPLAT_A: u8 = 2;

/// # Safety
/// Tiles have `n` elements and splats one; `d` overlaps none of them.
#[inline(always)]
unsafe fn map2<I: Isa, O: Map2, const KIND: u8>(d: *mut u8, a: *const u8, b: *const u8, n: usize) {
    if n == 0 {
        return;
    }
    let (len_a, len_b) = (if KIND == SPLAT_A { 1 } else { n }, if KIND == SPLAT_B { 1 } else { n });
    // SAFETY: the caller's promise.
    let (d, a, b) = unsafe {
        (
            std::slice::from_raw_parts_mut(d.cast::<MaybeUninit<O::Out>>(), n),
            std::slice::from_raw_parts(a.cast::<O::In>(), len_a),
            std::slice::from_raw_parts(b.cast::<O::In>(), len_b),
        )
    };
    let main = if O::LONG { n & !(PAD - 1) } else { n };
    let (a0, b0) = (a[0], b[0]);
    match KIND {
        SPLAT_A => {
            for (d, b) in d[..main].iter_mut().zip(&b[..main]) {
                d.write(O::eval::<I>(a0, *b));
            }
        }
        SPLAT_B => {
            for (d, a) in d[..main].iter_mut().zip(&a[..main]) {
                d.write(O::eval::<I>(*a, b0));
            }
        }
        _ => {
            for ((d, a), b) in d[..main].iter_mut().zip(&a[..main]).zip(&b[..main]) {
                d.write(O::eval::<I>(*a, *b));
            }
        }
    }
    if O::LONG && main < n {
        let rest = n - main;
        let (mut x, mut y) = ([a0; PAD], [b0; PAD]);
        if KIND != SPLAT_A {
            x[..rest].copy_from_slice(&a[main..]);
        }
        if KIND != SPLAT_B {
            y[..rest].copy_from_slice(&b[main..]);
        }
        let mut z = [MaybeUninit::<O::Out>::uninit(); PAD];
        for ((z, x), y) in z.iter_mut().zip(&x).zip(&y) {
            z.write(O::eval::<I>(*x, *y));
        }
        d[main..].copy_from_slice(&z[..rest]);
    }
}

compiled_per_isa! {
    fn pass2_of<O: Map2, const KIND: u8> = map2(d: *mut u8, a: *const u8, b: *const u8, n: usize)
}

/// The pass of a function of two elements, where `splat_a` or `splat_b` operands are one element.
pub fn pass2<O: Map2>(level: Level, splat_a: bool, splat_b: bool) -> Pass2 {
    match (splat_a, splat_b) {
        (true, false) => pass2_of::<O, SPLAT_A>(level),
        (false, true) => pass2_of::<O, SPLAT_B>(level),
        // Two splats are two tiles of one element.
        _ => pass2_of::<O, TILES>(level),
    }
}

/// An element moved as bits.
pub trait Bits: Copy {}
impl Bits for u8 {}
impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

/// `KIND` has bit 0 set where `a` is a splat and bit 1 where `b` is.
///
/// # Safety
/// As for [`map2`]; `c` is a tile of `n` bytes.
#[expect(clippy::extra_unused_type_parameters, reason = "the instruction set is that of the caller")]
#[inline(always)]
unsafe fn choose<I: Isa, T: Bits, const KIND: u8>(d: *mut u8, c: *const u8, a: *const u8, b: *const u8, n: usize) {
    if n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let (d, c, a, b) = unsafe {
        (
            std::slice::from_raw_parts_mut(d.cast::<MaybeUninit<T>>(), n),
            std::slice::from_raw_parts(c, n),
            std::slice::from_raw_parts(a.cast::<T>(), if KIND & 1 != 0 { 1 } else { n }),
            std::slice::from_raw_parts(b.cast::<T>(), if KIND & 2 != 0 { 1 } else { n }),
        )
    };
    let (a0, b0) = (a[0], b[0]);
    for (i, (d, c)) in d.iter_mut().zip(c).enumerate() {
        let x = if KIND & 1 != 0 { a0 } else { a[i] };
        let y = if KIND & 2 != 0 { b0 } else { b[i] };
        d.write(if *c != 0 { x } else { y });
    }
}

compiled_per_isa! {
    fn choose_of<T: Bits, const KIND: u8> = choose(d: *mut u8, c: *const u8, a: *const u8, b: *const u8, n: usize)
}

/// The pass of a selection among elements of `size` bytes.
pub fn select(level: Level, size: usize, splat_a: bool, splat_b: bool) -> Pass3 {
    fn of<T: Bits>(level: Level, splat_a: bool, splat_b: bool) -> Pass3 {
        match (splat_a, splat_b) {
            (false, false) => choose_of::<T, 0>(level),
            (true, false) => choose_of::<T, 1>(level),
            (false, true) => choose_of::<T, 2>(level),
            (true, true) => choose_of::<T, 3>(level),
        }
    }
    match size {
        1 => of::<u8>(level, splat_a, splat_b),
        2 => of::<u16>(level, splat_a, splat_b),
        4 => of::<u32>(level, splat_a, splat_b),
        _ => of::<u64>(level, splat_a, splat_b),
    }
}

/// # Safety
/// `a` is one element, `d` writable for `n`.
#[expect(clippy::extra_unused_type_parameters, reason = "the instruction set is that of the caller")]
#[inline(always)]
unsafe fn broadcast<I: Isa, T: Bits>(d: *mut u8, a: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let value = a.cast::<T>().read();
        std::slice::from_raw_parts_mut(d.cast::<MaybeUninit<T>>(), n).fill(MaybeUninit::new(value));
    }
}

compiled_per_isa! {
    fn broadcast_of<T: Bits> = broadcast(d: *mut u8, a: *const u8, n: usize)
}

/// The pass that spreads a splat of `size` bytes over a tile.
pub fn fill(level: Level, size: usize) -> Pass1 {
    match size {
        1 => broadcast_of::<u8>(level),
        2 => broadcast_of::<u16>(level),
        4 => broadcast_of::<u32>(level),
        _ => broadcast_of::<u64>(level),
    }
}

/// # Safety
/// `a` is readable and `d` writable for `n` elements; they may be the same.
unsafe fn copy_of<T>(d: *mut u8, a: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(a.cast::<T>(), d.cast::<T>(), n) }
}

/// The pass that copies elements of `size` bytes.
pub fn copy(size: usize) -> Pass1 {
    match size {
        1 => copy_of::<u8>,
        2 => copy_of::<u16>,
        4 => copy_of::<u32>,
        _ => copy_of::<u64>,
    }
}
