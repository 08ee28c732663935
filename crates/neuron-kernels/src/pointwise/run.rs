//! Running a compiled program over its tiles.

use super::layout::{Axis, Layout};
use super::program::{Program, Step, set_scalars};
use super::transfer::{Grid, gather, scatter};
use super::{NAME, Pointwise};
use crate::{Kernel, KernelError, pool};
use neuron_ir::Scalar;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cache line of scratch memory.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "reached through pointers only")] [u8; 64]);

/// What a thread needs to run tiles; kept by the thread, so that a launch allocates nothing.
#[derive(Default)]
struct Scratch {
    tiles: Vec<Line>,
    splats: Vec<u64>,
    /// Address of each slot.
    slots: Vec<*mut u8>,
    /// Address of the current tile in each view; for a coordinate its value.
    views: Vec<*mut u8>,
    /// Position in each loop.
    position: Vec<usize>,
    /// What each kept tile holds: address, rows, columns.
    kept: Vec<(*mut u8, usize, usize)>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Buffers of the launch, to share among tasks.
struct Buffers<'a>(&'a [*mut u8]);

// SAFETY: tasks write disjoint elements; see `Kernel::run`.
unsafe impl Sync for Buffers<'_> {}

impl Buffers<'_> {
    /// Address of the first element that a view sees. Coordinates count from address 0.
    fn base(&self, buffer: Option<usize>) -> *mut u8 {
        buffer.map_or(std::ptr::null_mut(), |b| self.0[b])
    }
}

impl Kernel for Pointwise {
    unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        if buffers.len() < self.buffers || scalars.len() < self.scalars {
            let what = format!("a launch with {} buffers and {} scalars", buffers.len(), scalars.len());
            return Err(KernelError::Unsupported { kernel: NAME, what });
        }
        if self.layout.rows == 0 {
            return Ok(());
        }
        let in_place = self.stored.iter().any(|s| self.loaded.iter().any(|l| buffers[*s] == buffers[*l]));
        let program = if in_place { &self.in_place } else { &self.separate };
        let mut splats: SmallVec<[u64; 32]> = SmallVec::from_slice(&program.splats);
        set_scalars(program, scalars, &mut splats);
        let buffers = Buffers(buffers);
        if !program.once.is_empty() {
            // SAFETY: the caller's promise for the buffers.
            unsafe { self.run_once(program, &buffers, &mut splats)? };
        }
        let tiles = self.layout.tiles();
        if tiles <= self.tiles_per_task {
            // SAFETY: as above.
            return if unsafe { self.run_tiles(program, &buffers, &splats, 0, tiles) } {
                Ok(())
            } else {
                Err(KernelError::ZeroDivision)
            };
        }
        let failed = AtomicBool::new(false);
        pool::parallel_for(tiles.div_ceil(self.tiles_per_task), |task| {
            let first = task * self.tiles_per_task;
            let last = (first + self.tiles_per_task).min(tiles);
            // SAFETY: as above; tiles are disjoint.
            if !unsafe { self.run_tiles(program, &buffers, &splats, first, last) } {
                failed.store(true, Ordering::Relaxed);
            }
        });
        if failed.load(Ordering::Relaxed) { Err(KernelError::ZeroDivision) } else { Ok(()) }
    }

    fn cost(&self) -> u64 {
        self.cost
    }
}

impl Pointwise {
    /// The part of the program that is the same for all elements.
    ///
    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn run_once(&self, program: &Program, buffers: &Buffers, splats: &mut [u64]) -> Result<(), KernelError> {
        let base = splats.as_mut_ptr();
        let at = |slot: u16| base.wrapping_add(slot as usize).cast::<u8>();
        for step in &program.once {
            // SAFETY: these steps have splats for operands, whose slots are their positions.
            unsafe {
                match *step {
                    Step::Pass1 { pass, d, a, .. } => pass(at(d), at(a), 1),
                    Step::Pass2 { pass, d, a, b, .. } => pass(at(d), at(a), at(b), 1),
                    Step::Pass3 { pass, d, c, a, b, .. } => pass(at(d), at(c), at(a), at(b), 1),
                    Step::Splat { view, d, pass } => pass(at(d), buffers.base(self.view_buffers[view as usize]), 1),
                    Step::CheckDivisor { b, .. } if at(b).cast::<i64>().read() == 0 => {
                        return Err(KernelError::ZeroDivision);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Runs tiles `first..last`; false after a division by zero.
    ///
    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn run_tiles(
        &self,
        program: &Program,
        buffers: &Buffers,
        splats: &[u64],
        first: usize,
        last: usize,
    ) -> bool {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        // SAFETY: the caller's promise.
        let ok = unsafe { scratch.run(self, program, buffers, splats, first, last) };
        SCRATCH.set(Some(scratch));
        ok
    }
}

impl Scratch {
    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn run(
        &mut self,
        kernel: &Pointwise,
        program: &Program,
        buffers: &Buffers,
        splats: &[u64],
        first: usize,
        last: usize,
    ) -> bool {
        let layout = &kernel.layout;
        let lines = program.scratch.div_ceil(64);
        if self.tiles.len() < lines {
            self.tiles.resize(lines, Line([0; 64]));
        }
        self.splats.clear();
        self.splats.extend_from_slice(splats);
        self.slots.clear();
        self.slots.resize(program.slots, std::ptr::null_mut());
        for (i, splat) in self.splats.iter_mut().enumerate() {
            self.slots[i] = (splat as *mut u64).cast();
        }
        let memory = self.tiles.as_mut_ptr().cast::<u8>();
        for (slot, offset) in &program.tiles {
            self.slots[*slot as usize] = memory.wrapping_add(*offset);
        }
        self.kept.clear();
        self.kept.resize(program.kept, (std::ptr::null_mut(), 0, 0));

        self.position.clear();
        self.position.resize(layout.loops.len(), 0);
        self.views.clear();
        self.views.extend(kernel.view_buffers.iter().map(|b| buffers.base(*b)));
        let mut rest = first;
        for (position, l) in self.position.iter_mut().zip(&layout.loops).rev() {
            *position = rest % l.count;
            rest /= l.count;
            for (view, stride) in self.views.iter_mut().zip(&l.strides) {
                *view = view.wrapping_offset(stride * *position as isize);
            }
        }
        let staging = memory.wrapping_add(program.staging);
        for tile in first..last {
            let (rows, cols) = self.extent(layout);
            for (slot, view) in &program.bound {
                self.slots[*slot as usize] = self.views[*view as usize];
            }
            for step in &program.steps {
                // SAFETY: slots and views of a compiled program are in range and hold `rows * cols` elements of the
                // types its passes expect, or one for splats.
                if !unsafe { self.step(step, layout, rows, cols, staging) } {
                    return false;
                }
            }
            if tile + 1 < last {
                self.advance(layout);
            }
        }
        true
    }

    /// Rows and columns of the current tile.
    #[inline]
    fn extent(&self, layout: &Layout) -> (usize, usize) {
        let (mut rows, mut cols) = (layout.rows.min(layout.row_extent), layout.cols);
        for (position, l) in self.position.iter().zip(&layout.loops) {
            match l.axis {
                Axis::Rows => rows = rows.min(layout.row_extent - position * layout.rows),
                Axis::Cols => cols = cols.min(layout.col_extent - position * layout.cols),
                Axis::Outer => {}
            }
        }
        (rows, cols)
    }

    /// Moves to the next tile.
    #[inline]
    fn advance(&mut self, layout: &Layout) {
        for (position, l) in self.position.iter_mut().zip(&layout.loops).rev() {
            *position += 1;
            if *position < l.count {
                for (view, stride) in self.views.iter_mut().zip(&l.strides) {
                    *view = view.wrapping_offset(*stride);
                }
                return;
            }
            for (view, stride) in self.views.iter_mut().zip(&l.strides) {
                *view = view.wrapping_offset(-stride * (l.count as isize - 1));
            }
            *position = 0;
        }
    }

    /// # Safety
    /// The slots and views that the step names are valid for the tile.
    #[inline]
    unsafe fn step(&mut self, step: &Step, layout: &Layout, rows: usize, cols: usize, staging: *mut u8) -> bool {
        let elements = rows * cols;
        let count = |one: bool| if one { 1 } else { elements };
        let at = |slot: u16| self.slots[slot as usize];
        let grid = |view: u16| {
            let v = &layout.views[view as usize];
            Grid { rows, cols, row_stride: v.row_stride, col_stride: v.col_stride }
        };
        // SAFETY: the caller's promise.
        unsafe {
            match *step {
                Step::Pass1 { pass, d, a, one } => pass(at(d), at(a), count(one)),
                Step::Pass2 { pass, d, a, b, one } => pass(at(d), at(a), at(b), count(one)),
                Step::Pass3 { pass, d, c, a, b, one } => pass(at(d), at(c), at(a), at(b), count(one)),
                Step::CheckDivisor { b, one } => {
                    let divisors = std::slice::from_raw_parts(at(b).cast::<i64>(), count(one));
                    return !divisors.iter().fold(false, |zero, b| zero | (*b == 0));
                }
                Step::Splat { view, d, pass } => pass(at(d), self.views[view as usize], 1),
                Step::Fetch { view, d, pass, size, grid: scattered, kept } => {
                    let (d, source) = (at(d), self.views[view as usize]);
                    if let Some(k) = kept {
                        let now = (source, rows, cols);
                        if std::mem::replace(&mut self.kept[k as usize], now) == now {
                            return true;
                        }
                    }
                    match (pass, scattered) {
                        (Some(pass), true) => {
                            gather(size as usize, staging, source, grid(view));
                            pass(d, staging, elements);
                        }
                        (Some(pass), false) => pass(d, source, elements),
                        (None, true) => gather(size as usize, d, source, grid(view)),
                        (None, false) => std::ptr::copy_nonoverlapping(source, d, elements * size as usize),
                    }
                }
                Step::Coordinates { view, d, one } => {
                    let v = &layout.views[view as usize];
                    let first = self.views[view as usize].addr() as i64;
                    let d = at(d).cast::<i64>();
                    let (rows, cols) = if one { (1, 1) } else { (rows, cols) };
                    for r in 0..rows {
                        let start = first + r as i64 * v.row_stride as i64;
                        for c in 0..cols {
                            d.add(r * cols + c).write(start + c as i64 * v.col_stride as i64);
                        }
                    }
                }
                Step::Scatter { view, a, pass, size, one } => {
                    let target = self.views[view as usize];
                    let size = size as usize;
                    let source = match (pass, one) {
                        (None, false) => at(a),
                        (Some(pass), false) => {
                            pass(staging, at(a), elements);
                            staging
                        }
                        (pass, true) => {
                            let mut value = [0u8; 8];
                            match pass {
                                Some(pass) => pass(value.as_mut_ptr(), at(a), 1),
                                None => std::ptr::copy_nonoverlapping(at(a), value.as_mut_ptr(), size),
                            }
                            for i in 0..elements {
                                std::ptr::copy_nonoverlapping(value.as_ptr(), staging.add(i * size), size);
                            }
                            staging
                        }
                    };
                    scatter(size, target, source, grid(view));
                }
            }
        }
        true
    }
}
