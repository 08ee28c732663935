//! Lines of the patch matrix: what some columns read of a channel at one kernel position.

#[cfg(target_arch = "x86_64")]
use super::geometry::LANES;
use super::geometry::Reads;
use crate::gemm::element::{Accumulator, Element};
#[cfg(target_arch = "x86_64")]
use crate::gemm::load16::{Bf16, F16, F32, Load16};
#[cfg(target_arch = "x86_64")]
use crate::gemm::micro::Level;
#[cfg(target_arch = "x86_64")]
use neuron_ir::DType;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

/// Which lines of the patch matrix to gather: `rows` counts kernel positions within channels.
pub(super) struct Lines<'a> {
    pub reads: &'a Reads,
    pub rows: Range<usize>,
    pub taps: usize,
    /// Elements between channels of the input.
    pub channel_step: isize,
    /// Elements between neighbouring columns.
    pub step: isize,
}

/// Writes the lines one after the other, `width` columns apart, zero in the padding and up to `width`.
///
/// # Safety
/// `input` is the first channel, of type `S`, and holds what the runs read; `to` has room for all lines.
pub(super) unsafe fn gather<A: Accumulator, S: Element<A>>(lines: &Lines, input: *const S, width: usize, to: *mut A) {
    #[cfg(target_arch = "x86_64")]
    if A::DTYPE == DType::F32
        && A::micro().level == Level::Avx512
        && width % LANES == 0
        && (1..=2).contains(&lines.step)
    {
        let (input, to) = (input.cast::<u8>(), to.cast::<f32>());
        // SAFETY: as the caller promises; `S` is the type its dtype names, and the processor has the level.
        unsafe {
            match (S::DTYPE, lines.step) {
                (DType::F32, 1) => return gather_vectors::<F32, false>(lines, input, width, to),
                (DType::F32, _) => return gather_vectors::<F32, true>(lines, input, width, to),
                (DType::BF16, 1) => return gather_vectors::<Bf16, false>(lines, input, width, to),
                (DType::BF16, _) => return gather_vectors::<Bf16, true>(lines, input, width, to),
                (DType::F16, 1) => return gather_vectors::<F16, false>(lines, input, width, to),
                (DType::F16, _) => return gather_vectors::<F16, true>(lines, input, width, to),
                _ => {}
            }
        }
    }
    for (i, row) in lines.rows.clone().enumerate() {
        let (channel, tap) = (row / lines.taps, row % lines.taps);
        // SAFETY: as the caller promises.
        unsafe {
            let input = input.offset(channel as isize * lines.channel_step);
            let line = std::slice::from_raw_parts_mut(to.add(i * width), width);
            line.fill(A::default());
            for run in lines.reads.tap(tap) {
                for (k, to) in line[run.to..run.to + run.count].iter_mut().enumerate() {
                    *to = (*input.offset(run.at + k as isize * lines.step)).widen();
                }
            }
        }
    }
}

/// As [`gather`], a vector of columns at a time. `TWO`: every second element of the input is read.
///
/// # Safety
/// As [`gather`]; `input` is of `L`'s type.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn gather_vectors<L: Load16, const TWO: bool>(lines: &Lines, input: *const u8, width: usize, to: *mut f32) {
    let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    let vectors = lines.reads.vectors();
    let (mut channel, mut tap) = (lines.rows.start / lines.taps, lines.rows.start % lines.taps);
    let mut to = to;
    for _ in lines.rows.clone() {
        let input = input.wrapping_offset(channel as isize * lines.channel_step * L::SIZE as isize);
        for v in 0..width / LANES {
            let mut line = _mm512_setzero_ps();
            if v < vectors {
                for run in lines.reads.vector(tap, v) {
                    let lane = run.to % LANES;
                    // Lanes outside the run are masked out, so where they would be read from does not matter.
                    let mask = ((1u32 << run.count) - 1) << lane;
                    let first = run.at - lane as isize * if TWO { 2 } else { 1 };
                    let from = input.wrapping_offset(first * L::SIZE as isize);
                    // SAFETY: the masks select what the run reads.
                    let read = unsafe {
                        if TWO {
                            let spread = spread_bits(mask);
                            let low = L::load(from, spread & 0xffff);
                            let high = L::load(from.wrapping_add(16 * L::SIZE), spread >> 16);
                            _mm512_permutex2var_ps(low, even, high)
                        } else {
                            L::load(from, mask)
                        }
                    };
                    line = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(line), _mm512_castps_si512(read)));
                }
            }
            // SAFETY: the line has `width` columns.
            unsafe { _mm512_storeu_ps(to.add(v * LANES), line) };
        }
        to = to.wrapping_add(width);
        tap += 1;
        if tap == lines.taps {
            (tap, channel) = (0, channel + 1);
        }
    }
}

/// The low 16 bits spread to the even ones of 32.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn spread_bits(bits: u32) -> u32 {
    let x = (bits | bits << 8) & 0x00ff_00ff;
    let x = (x | x << 4) & 0x0f0f_0f0f;
    let x = (x | x << 2) & 0x3333_3333;
    (x | x << 1) & 0x5555_5555
}
