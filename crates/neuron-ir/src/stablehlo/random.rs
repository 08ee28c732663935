//! Random tensors: the counter-based generator Philox4x32-10 in integer arithmetic, bit for bit the kernels'.

use super::text::{El, Text, V};
use super::{Call, Written};
use crate::RandomOp;

const MULTIPLIER: [i64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [i64; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

pub(super) fn write(t: &mut Text, c: &Call, op: RandomOp) -> Written {
    let shape = c.result();
    let el = El::from(shape.dtype);
    let count = shape.numel();
    let long = op == RandomOp::Bits || el == El::F64;
    let per_element = if long { 2 } else { 1 };
    // Normal values come in pairs.
    let made = (count + 1) / 2 * 2;
    let words = words(t, &c.args[0], &c.args[1], (made * per_element + 3) / 4);
    let words = t.slice(&words, 0, 0, made * per_element, 1);
    let words = if long { joined(t, &words, made) } else { words };
    let values = match op {
        RandomOp::Bits => t.bitcast(&words, El::I64),
        RandomOp::Uniform => uniform(t, &words, el),
        RandomOp::Normal => normal(t, &words),
    };
    let values = t.slice(&values, 0, 0, count, 1);
    Ok(vec![t.reshape(&values, &shape.sizes)])
}

/// 32-bit words of the generator, four for each block.
fn words(t: &mut Text, seed: &V, offset: &V, blocks: i64) -> V {
    let seed = t.bitcast(seed, El::U64);
    let offset = t.bitcast(offset, El::U64);
    let first = t.bin_int("divide", &offset, 4);
    let first = t.broadcast(&first, &[blocks]);
    let block = t.iota(El::U64, &[blocks], 0);
    let counter = t.add(&first, &block);
    let seed = t.broadcast(&seed, &[blocks]);
    let [c0, c1] = halves(t, &counter);
    let [mut k0, mut k1] = halves(t, &seed);
    let zero = t.like_int(&c0, 0);
    let mut state = [c0, c1, zero.clone(), zero];
    for _ in 0..ROUNDS {
        let [even_low, even_high] = product(t, &state[0], MULTIPLIER[0]);
        let [odd_low, odd_high] = product(t, &state[2], MULTIPLIER[1]);
        let a = t.bin("xor", &odd_high, &state[1]);
        let a = t.bin("xor", &a, &k0);
        let b = t.bin("xor", &even_high, &state[3]);
        let b = t.bin("xor", &b, &k1);
        state = [a, odd_low, b, even_low];
        k0 = t.bin_int("add", &k0, WEYL[0]);
        k1 = t.bin_int("add", &k1, WEYL[1]);
    }
    let columns: Vec<V> = state.iter().map(|s| t.reshape(s, &[blocks, 1])).collect();
    let columns: Vec<&V> = columns.iter().collect();
    let all = t.concat(&columns, 1);
    t.reshape(&all, &[4 * blocks])
}

/// The lower and the upper half of 64-bit words.
fn halves(t: &mut Text, a: &V) -> [V; 2] {
    let low = t.bin_int("and", a, 0xffff_ffff);
    let high = t.bin_int("shift_right_logical", a, 32);
    [t.convert(&low, El::U32), t.convert(&high, El::U32)]
}

fn product(t: &mut Text, a: &V, factor: i64) -> [V; 2] {
    let wide = t.convert(a, El::U64);
    let p = t.bin_int("multiply", &wide, factor);
    halves(t, &p)
}

/// Pairs of words as one of 64 bits, the first word low.
fn joined(t: &mut Text, words: &V, count: i64) -> V {
    let pairs = t.reshape(words, &[count, 2]);
    let pairs = t.convert(&pairs, El::U64);
    let (low, high) = (t.slice(&pairs, 1, 0, 1, 1), t.slice(&pairs, 1, 1, 1, 1));
    let (low, high) = (t.reshape(&low, &[count]), t.reshape(&high, &[count]));
    let high = t.bin_int("shift_left", &high, 32);
    t.or(&low, &high)
}

/// In [0, 1); half floats are cut, not rounded, since rounding could reach 1.
fn uniform(t: &mut Text, words: &V, el: El) -> V {
    if words.el == El::U64 {
        return fraction(t, words, 11, El::F64);
    }
    let u = fraction(t, words, 8, El::F32);
    let kept = match el {
        El::BF16 => 0xffff_0000,
        El::F16 => 0xffff_e000,
        _ => return u,
    };
    let bits = t.bitcast(&u, El::U32);
    let bits = t.bin_int("and", &bits, kept);
    t.bitcast(&bits, El::F32)
}

/// The upper bits of words as a fraction.
fn fraction(t: &mut Text, words: &V, dropped: i64, el: El) -> V {
    let bits = if words.el == El::U64 { 64 } else { 32 };
    let upper = t.bin_int("shift_right_logical", words, dropped);
    let value = t.convert(&upper, el);
    t.bin_num("multiply", &value, (-((bits - dropped) as f64)).exp2())
}

/// Two values from two words, by Box and Muller: radius from the first, angle from the second. Computed in `f64`.
fn normal(t: &mut Text, words: &V) -> V {
    let pairs = words.numel() / 2;
    let split = t.reshape(words, &[pairs, 2]);
    let (radius, angle) = (t.slice(&split, 1, 0, 1, 1), t.slice(&split, 1, 1, 1, 1));
    let (u, turn) = if words.el == El::U64 {
        let upper = t.bin_int("shift_right_logical", &radius, 11);
        let upper = t.bin_int("add", &upper, 1);
        let u = t.convert(&upper, El::F64);
        (t.bin_num("multiply", &u, (-53f64).exp2()), fraction(t, &angle, 11, El::F64))
    } else {
        // 31 bits and half a unit more, as an f32.
        let upper = t.bin_int("shift_right_logical", &radius, 1);
        let u = t.convert(&upper, El::F32);
        let u = t.bin_num("multiply", &u, (-31f64).exp2());
        let u = t.bin_num("add", &u, (-32f64).exp2());
        let turn = t.convert(&angle, El::F64);
        (t.convert(&u, El::F64), t.bin_num("multiply", &turn, (-32f64).exp2()))
    };
    let log = t.un("log", &u);
    let square = t.bin_num("multiply", &log, -2.0);
    let zero = t.like(&square, 0.0);
    let square = t.bin("maximum", &square, &zero);
    let r = t.un("sqrt", &square);
    let angle = t.bin_num("multiply", &turn, std::f64::consts::TAU);
    let (cosine, sine) = (t.un("cosine", &angle), t.un("sine", &angle));
    let (x, y) = (t.mul(&r, &cosine), t.mul(&r, &sine));
    let both = t.concat(&[&x, &y], 1);
    let to = if words.el == El::U64 { El::F64 } else { El::F32 };
    let both = t.convert(&both, to);
    t.reshape(&both, &[2 * pairs])
}
