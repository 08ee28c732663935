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
use std::ops::Range;

/// Channels gathered for one kernel position after the other: as many pages as the processor keeps at hand.
#[cfg(target_arch = "x86_64")]
const CHANNELS: usize = 32;

/// Which lines of the patch matrix to gather, and how to lay them out.
pub(super) struct Lines<'a> {
    pub reads: &'a Reads,
    /// Kernel positions within channels.
    pub rows: Range<usize>,
    /// Kernel positions of a channel.
    pub taps: usize,
    /// Elements between channels of the input.
    pub channel_step: isize,
    /// Elements between neighbouring columns.
    pub step: isize,
    /// Columns of a panel: the lines of one lie one after the other, then come those of the next.
    pub width: usize,
}

impl Lines<'_> {
    /// Where the columns from `column` on of a line begin.
    #[inline(always)]
    fn place(&self, row: usize, column: usize) -> usize {
        let (panel, at) = (column / self.width, column % self.width);
        (panel * self.rows.len() + row - self.rows.start) * self.width + at
    }
}

/// Writes the lines, zero in the padding and up to the end of the last panel.
///
/// # Safety
/// `input` is the first channel, of type `S`, and holds what the runs read; `to` has room for all panels.
pub(super) unsafe fn gather<A: Accumulator, S: Element<A>>(lines: &Lines, input: *const S, to: *mut A) {
    #[cfg(target_arch = "x86_64")]
    if A::DTYPE == DType::F32
        && A::micro().level == Level::Avx512
        && lines.width.is_multiple_of(LANES)
        && (1..=2).contains(&lines.step)
    {
        let (input, to) = (input.cast::<u8>(), to.cast::<f32>());
        // SAFETY: as the caller promises; `S` is the type its dtype names, and the processor has the level.
        unsafe {
            match S::DTYPE {
                DType::F32 => return vectors::gather::<F32>(lines, input, to),
                DType::BF16 => return vectors::gather::<Bf16>(lines, input, to),
                DType::F16 => return vectors::gather::<F16>(lines, input, to),
                _ => {}
            }
        }
    }
    let panels = lines.reads.columns().div_ceil(lines.width);
    for row in lines.rows.clone() {
        let (channel, tap) = (row / lines.taps, row % lines.taps);
        // SAFETY: as the caller promises.
        unsafe {
            let input = input.offset(channel as isize * lines.channel_step);
            for panel in 0..panels {
                let to = to.add(lines.place(row, panel * lines.width));
                std::slice::from_raw_parts_mut(to, lines.width).fill(A::default());
            }
            for run in lines.reads.tap(tap) {
                for k in 0..run.count {
                    let from = input.offset(run.at + k as isize * lines.step);
                    *to.add(lines.place(row, run.to + k)) = (*from).widen();
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use super::super::geometry::Run;
    use super::*;
    use smallvec::SmallVec;
    use std::arch::x86_64::*;

    /// A run as a masked load: the byte where lane 0 would be read, and the elements that are.
    #[derive(Clone, Copy)]
    struct Load {
        first: isize,
        mask: u32,
    }

    /// As [`super::gather`], a vector of columns at a time.
    ///
    /// # Safety
    /// As [`super::gather`]; `input` is of `L`'s type.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn gather<L: Load16>(lines: &Lines, input: *const u8, to: *mut f32) {
        let Range { start, end } = lines.rows;
        let mut channel = start / lines.taps;
        let step = lines.channel_step * L::SIZE as isize;
        let load = |run: &Run| {
            let lane = run.to % LANES;
            let first = (run.at - lane as isize * lines.step) * L::SIZE as isize;
            let mask = ((1u32 << run.count) - 1) << lane;
            Load { first, mask: if lines.step == 2 { spread_bits(mask) } else { mask } }
        };
        let (panels, each) = (lines.reads.columns().div_ceil(lines.width), lines.width / LANES);
        let panel_size = lines.rows.len() * lines.width;
        if lines.taps == 1 && lines.step == 1 && (0..panels * each).all(|v| lines.reads.vector(0, v).len() < 2) {
            let nothing = Load { first: 0, mask: 0 };
            let loads: SmallVec<[Load; 16]> =
                (0..panels * each).map(|v| lines.reads.vector(0, v).first().map_or(nothing, load)).collect();
            for row in start..end {
                let input = input.wrapping_offset(row as isize * step);
                let ahead = input.wrapping_offset(8 * step);
                for (panel, loads) in loads.chunks_exact(each).enumerate() {
                    let to = to.wrapping_add(panel * panel_size + (row - start) * lines.width);
                    for (v, l) in loads.iter().enumerate() {
                        // Channels are far apart: the processor does not see the next one coming.
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_offset(l.first).cast());
                        // SAFETY: the mask selects what the run reads; a vector of a panel.
                        unsafe { _mm512_storeu_ps(to.add(v * LANES), L::load(input.wrapping_offset(l.first), l.mask)) };
                    }
                }
            }
            return;
        }
        while channel * lines.taps < end {
            for tap in 0..lines.taps {
                let first = channel.max((start + lines.taps - 1 - tap) / lines.taps);
                let last = (channel + CHANNELS).min((end + lines.taps - 1 - tap) / lines.taps);
                if first >= last {
                    continue;
                }
                let (input, count) = (input.wrapping_offset(first as isize * step), last - first);
                let row = first * lines.taps + tap - start;
                let ahead = lines.taps * lines.width;
                for v in 0..panels * each {
                    let to = to.wrapping_add(v / each * panel_size + row * lines.width + v % each * LANES);
                    // SAFETY: the lines of these channels; runs read what exists.
                    unsafe {
                        match (lines.reads.vector(tap, v), lines.step) {
                            ([], _) => fill(to, ahead, count),
                            ([a], 1) => copy::<L, 1>(input, step, [load(a)], to, ahead, count),
                            ([a, b], 1) => copy::<L, 2>(input, step, [a, b].map(load), to, ahead, count),
                            ([a, b, c], 1) => copy::<L, 3>(input, step, [a, b, c].map(load), to, ahead, count),
                            (runs, 1) => {
                                let loads: SmallVec<[Load; 16]> = runs.iter().map(load).collect();
                                for c in 0..count {
                                    let input = input.wrapping_offset(c as isize * step);
                                    let line = loads.iter().fold(_mm512_setzero_ps(), |line, l| {
                                        or(line, L::load(input.wrapping_offset(l.first), l.mask))
                                    });
                                    _mm512_storeu_ps(to.add(c * ahead), line);
                                }
                            }
                            (runs, _) => {
                                let loads: SmallVec<[Load; 16]> = runs.iter().map(load).collect();
                                every_second::<L>(input, step, &loads, to, ahead, count);
                            }
                        }
                    }
                }
            }
            channel += CHANNELS;
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn or(a: __m512, b: __m512) -> __m512 {
        _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)))
    }

    /// # Safety
    /// There are `count` lines `ahead` apart.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fill(to: *mut f32, ahead: usize, count: usize) {
        for c in 0..count {
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_ps(to.add(c * ahead), _mm512_setzero_ps()) };
        }
    }

    /// The same vector of `count` channels, from `N` runs.
    ///
    /// # Safety
    /// The runs exist in each channel; there are `count` lines `ahead` apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn copy<L: Load16, const N: usize>(
        input: *const u8,
        step: isize,
        loads: [Load; N],
        to: *mut f32,
        ahead: usize,
        count: usize,
    ) {
        let mut from = input;
        let mut to = to;
        for _ in 0..count {
            // Channels are far apart: the processor does not see the next one coming.
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_offset(8 * step + loads[0].first).cast());
            let mut line = _mm512_setzero_ps();
            for load in &loads {
                // SAFETY: the masks select what the runs read.
                line = or(line, unsafe { L::load(from.wrapping_offset(load.first), load.mask) });
            }
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_ps(to, line) };
            from = from.wrapping_offset(step);
            to = to.wrapping_add(ahead);
        }
    }

    /// As [`copy`], of every second element.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn every_second<L: Load16>(
        input: *const u8,
        step: isize,
        loads: &[Load],
        to: *mut f32,
        ahead: usize,
        count: usize,
    ) {
        let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        for c in 0..count {
            let input = input.wrapping_offset(c as isize * step);
            let mut line = _mm512_setzero_ps();
            for load in loads {
                let from = input.wrapping_offset(load.first);
                // SAFETY: the masks select what the runs read.
                let (low, high) = unsafe {
                    (L::load(from, load.mask & 0xffff), L::load(from.wrapping_add(16 * L::SIZE), load.mask >> 16))
                };
                line = or(line, _mm512_permutex2var_ps(low, even, high));
            }
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_ps(to.add(c * ahead), line) };
        }
    }

    /// The low 16 bits spread to the even ones of 32.
    #[inline(always)]
    fn spread_bits(bits: u32) -> u32 {
        let x = (bits | bits << 8) & 0x00ff_00ff;
        let x = (x | x << 4) & 0x0f0f_0f0f;
        let x = (x | x << 2) & 0x3333_3333;
        (x | x << 1) & 0x5555_5555
    }
}
