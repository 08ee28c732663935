//! Keys: unsigned integers in the order that PyTorch sorts values in.

use half::{bf16, f16};

/// An element type that can be sorted.
pub(super) trait SortKey: Copy {
    /// Order-preserving: NaNs are equal and the largest, zeros of both signs are equal.
    fn key(self) -> u64;
}

macro_rules! key_int {
    ($($t:ty: $unsigned:ty),*) => {$(
        impl SortKey for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                u64::from(self as $unsigned ^ <$t>::MIN as $unsigned)
            }
        }
    )*};
}
key_int!(u8: u8, i8: u8, i16: u16, i32: u32, i64: u64);

macro_rules! key_float {
    ($($t:ty: $unsigned:ty),*) => {$(
        impl SortKey for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                const SIGN: $unsigned = 1 << (<$unsigned>::BITS - 1);
                const INFINITY: $unsigned = <$t>::INFINITY.to_bits();
                let bits = self.to_bits();
                let magnitude = bits & !SIGN;
                let key = if bits > SIGN { !bits } else { magnitude | SIGN };
                u64::from(if magnitude > INFINITY { <$unsigned>::MAX } else { key })
            }
        }
    )*};
}
key_float!(f16: u16, bf16: u16, f32: u32, f64: u64);

/// A key with the position it came from. Comparing entries compares keys, then positions: the order is stable.
pub(super) trait Entry: Copy + Ord + Send + Sync + Default {
    fn new(key: u64, position: u32) -> Self;
    /// Byte `pass` of the key, the lowest first.
    fn digit(self, pass: usize) -> usize;
    fn position(self) -> u32;
    fn key(self) -> u64;
}

/// For keys of at most 32 bits: the key above the position.
impl Entry for u64 {
    #[inline(always)]
    fn new(key: u64, position: u32) -> Self {
        key << 32 | u64::from(position)
    }
    #[inline(always)]
    fn digit(self, pass: usize) -> usize {
        (self >> (32 + 8 * pass)) as usize & 0xFF
    }
    #[inline(always)]
    fn position(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
    }
}

/// For keys of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wide {
    key: u64,
    position: u32,
}

impl Entry for Wide {
    #[inline(always)]
    fn new(key: u64, position: u32) -> Self {
        Wide { key, position }
    }
    #[inline(always)]
    fn digit(self, pass: usize) -> usize {
        (self.key >> (8 * pass)) as usize & 0xFF
    }
    #[inline(always)]
    fn position(self) -> u32 {
        self.position
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self.key
    }
}

/// How the keys of a line become those of its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    /// Bits inverted: all of the key if the order is descending.
    invert: u64,
    /// Taken off afterwards: the smallest.
    base: u64,
    /// Bytes that can differ.
    pub bytes: usize,
}

impl Keys {
    /// Keys of elements of `size` bytes as they are.
    pub fn new(size: usize, descending: bool) -> Self {
        Keys { invert: if descending { u64::MAX >> (64 - 8 * size) } else { 0 }, base: 0, bytes: size }
    }

    /// Keys from 0 on, of as few bytes as a line needs.
    ///
    /// # Safety
    /// `line` is valid for `count` elements of type `T` at `stride` bytes from each other.
    #[inline(always)]
    pub unsafe fn reduced<T: SortKey>(self, line: *const u8, stride: isize, count: usize) -> Self {
        let (mut low, mut high) = (u64::MAX, 0);
        for i in 0..count as isize {
            // SAFETY: the caller's contract.
            let key = unsafe { *line.offset(i * stride).cast::<T>() }.key() ^ self.invert;
            (low, high) = (low.min(key), high.max(key));
        }
        let bits = u64::BITS - high.saturating_sub(low).leading_zeros();
        Keys { base: low, bytes: bits.div_ceil(8) as usize, ..self }
    }

    #[inline(always)]
    fn of<T: SortKey>(self, value: T) -> u64 {
        (value.key() ^ self.invert).wrapping_sub(self.base)
    }

    /// Entries of the elements from position `first` on.
    ///
    /// # Safety
    /// As [`Keys::reduced`] for `first + out.len()` elements.
    #[inline(always)]
    pub unsafe fn entries<T: SortKey, E: Entry>(self, line: *const u8, stride: isize, first: usize, out: &mut [E]) {
        if stride == size_of::<T>() as isize {
            // SAFETY: a gapless part of the line.
            let values = unsafe { std::slice::from_raw_parts(line.cast::<T>().add(first), out.len()) };
            for (i, (out, value)) in out.iter_mut().zip(values).enumerate() {
                *out = E::new(self.of(*value), (first + i) as u32);
            }
            return;
        }
        for (i, out) in out.iter_mut().enumerate() {
            let position = first + i;
            // SAFETY: the caller's contract.
            let value = unsafe { *line.offset(position as isize * stride).cast::<T>() };
            *out = E::new(self.of(value), position as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_the_order() {
        let floats = [f32::NEG_INFINITY, -2.0, -1.0, -f32::MIN_POSITIVE, 0.0, 1e-40, 1.0, f32::INFINITY, f32::NAN];
        assert!(floats.windows(2).all(|w| w[0].key() < w[1].key()));
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        assert_eq!((-f32::NAN).key(), f32::NAN.key());
        assert!(f64::MAX.key() < (-f64::NAN).key() && f16::MAX.key() < f16::NAN.key());
        assert!((-1i64).key() < 0i64.key() && i64::MIN.key() == 0 && 3u8.key() == 3);
        assert!((-1i16).key() < 0i16.key() && bf16::NEG_ONE.key() < bf16::ZERO.key());
    }
}
