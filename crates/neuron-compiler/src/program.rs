//! Programs: kernels in order, with where each finds its buffers.

use crate::fusible;
use neuron_ir::{Destination, Graph, Scalar, TensorType};
use neuron_kernels::{Kernel, KernelError};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Temporaries larger than this are returned to the system after a run.
const KEEP_WORKSPACE: usize = 32 << 20;

/// Alignment of temporaries: one cache line, one AVX-512 vector.
pub(crate) const ALIGNMENT: usize = 64;

/// Where a kernel finds a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Part of buffer `index` of the launch.
    Argument {
        /// Position among the buffers of the launch.
        index: usize,
        /// Where in the buffer, in bytes.
        offset: usize,
    },
    /// A temporary, at this byte of the workspace.
    Temporary {
        /// Byte offset.
        offset: usize,
    },
}

impl Slot {
    /// The whole of buffer `index` of the launch.
    pub fn argument(index: usize) -> Slot {
        Slot::Argument { index, offset: 0 }
    }

    /// What lies `bytes` further on.
    pub fn after(self, bytes: usize) -> Slot {
        match self {
            Slot::Argument { index, offset } => Slot::Argument { index, offset: offset + bytes },
            Slot::Temporary { offset } => Slot::Temporary { offset: offset + bytes },
        }
    }
}

/// Where a kernel finds a scalar beyond those of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarSource {
    /// Scalar of this number of the launch.
    Launch(usize),
    /// An `i64` in memory.
    Memory(Slot),
}

/// One kernel of a program.
#[derive(Debug)]
pub struct Step {
    /// What runs.
    pub kernel: Box<dyn Kernel>,
    /// Its buffers, in the kernel's order.
    pub buffers: SmallVec<[Slot; 6]>,
    /// Further scalars for the kernel, after those of the launch.
    pub scalars: SmallVec<[ScalarSource; 2]>,
}

impl Step {
    /// All memory it refers to.
    pub(crate) fn slots(&mut self) -> impl Iterator<Item = &mut Slot> {
        let scalars = self.scalars.iter_mut().filter_map(|s| match s {
            ScalarSource::Memory(slot) => Some(slot),
            ScalarSource::Launch(_) => None,
        });
        self.buffers.iter_mut().chain(scalars)
    }
}

/// A compiled graph: kernels in order and the workspace they share.
///
/// Buffers of a launch are the tensor arguments of the graph in order, then its fresh tensors in order.
#[derive(Debug)]
pub struct Program {
    steps: Vec<Step>,
    workspace: usize,
    cost: u64,
    /// The one step takes the buffers of the launch as they come: nothing needs to be rearranged.
    direct: bool,
    id: u64,
    graph: Graph,
    extents: Box<[usize]>,
    written: Box<[usize]>,
    fuses: bool,
    /// The workspace is the last buffer of a launch, after those of the graph.
    outer_workspace: bool,
}

thread_local! {
    /// Taken while a program runs: one that runs as a kernel of another has its own.
    static WORKSPACES: RefCell<Vec<Vec<MaybeUninit<Line>>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "space that kernels write through pointers")] [u8; ALIGNMENT]);

impl Program {
    /// A program of kernels that come from no graph; a launch has so many buffers. It is never joined with others.
    pub fn of_steps(steps: Vec<Step>, buffers: usize) -> Program {
        let params = vec![TensorType::contiguous(neuron_ir::DType::U8, &[]); buffers];
        Program::new(Graph { params, ..Graph::default() }, steps, 0)
    }

    /// A program of these steps, which compute what the graph says.
    pub(crate) fn new(graph: Graph, steps: Vec<Step>, workspace: usize) -> Program {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let extents: Box<[usize]> = graph.buffers().map(TensorType::extent).collect();
        let arguments = extents.len();
        let direct = workspace == 0
            && steps.len() == 1
            && steps[0].scalars.is_empty()
            && steps[0].buffers.len() == arguments
            && steps[0].buffers.iter().enumerate().all(|(i, s)| *s == Slot::argument(i));
        let cost = steps.iter().map(|s| s.kernel.cost()).sum();
        let written = graph.outputs.iter().map(|o| match o.to {
            Destination::Param(i) => i,
            Destination::Fresh(i) => graph.params.len() + i,
        });
        let written = written.collect();
        let fuses = fusible::is_fusible(&graph);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Program { steps, workspace, cost, direct, id, graph, extents, written, fuses, outer_workspace: false }
    }

    /// The program with its workspace as the last buffer of a launch: memory that its caller accounts for.
    pub fn with_outer_workspace(self) -> Program {
        Program { outer_workspace: true, direct: false, fuses: false, ..self }
    }

    /// Runs the kernels in order.
    ///
    /// # Errors
    /// The first error of a kernel; later kernels do not run.
    ///
    /// # Safety
    /// Each buffer is valid for the layout its argument has in the graph, and nothing else writes them meanwhile.
    pub unsafe fn run(&self, buffers: &[*mut u8], scalars: &[Scalar]) -> Result<(), KernelError> {
        if self.direct {
            // SAFETY: the caller's contract is the kernel's: the buffers are passed on as they are.
            return unsafe { self.steps[0].kernel.run(buffers, scalars) };
        }
        if self.outer_workspace {
            // SAFETY: the caller's contract; the last buffer is the workspace.
            return unsafe { self.run_steps(buffers, scalars, buffers[buffers.len() - 1]) };
        }
        if self.workspace == 0 {
            // SAFETY: no step refers to the workspace.
            return unsafe { self.run_steps(buffers, scalars, std::ptr::null_mut()) };
        }
        let lines = self.workspace.div_ceil(ALIGNMENT);
        let mut memory = WORKSPACES.with_borrow_mut(Vec::pop).unwrap_or_default();
        if memory.len() < lines {
            // Nothing in it is worth copying.
            memory = Vec::new();
            memory.reserve_exact(lines);
            memory.resize_with(lines, MaybeUninit::uninit);
        }
        // SAFETY: the workspace has `self.workspace` bytes, which is what the steps were planned for.
        let result = unsafe { self.run_steps(buffers, scalars, memory.as_mut_ptr().cast()) };
        if memory.len() * ALIGNMENT <= KEEP_WORKSPACE {
            WORKSPACES.with_borrow_mut(|w| w.push(memory));
        }
        result
    }

    /// # Safety
    /// As for [`Program::run`]; `workspace` has the size the steps were planned for.
    unsafe fn run_steps(&self, buffers: &[*mut u8], scalars: &[Scalar], workspace: *mut u8) -> Result<(), KernelError> {
        for step in &self.steps {
            let address = |slot: &Slot| match *slot {
                Slot::Argument { index, offset } => buffers[index].wrapping_add(offset),
                Slot::Temporary { offset } => workspace.wrapping_add(offset),
            };
            let resolved: SmallVec<[*mut u8; 8]> = step.buffers.iter().map(address).collect();
            if step.scalars.is_empty() {
                // SAFETY: the planner gave each kernel buffers of the layouts it was made for.
                unsafe { step.kernel.run(&resolved, scalars)? };
                continue;
            }
            let mut all: SmallVec<[Scalar; 8]> = SmallVec::from_slice(scalars);
            all.extend(step.scalars.iter().map(|s| match s {
                ScalarSource::Launch(i) => scalars[*i],
                // SAFETY: the planner puts only `i64` values there, and earlier steps have written them.
                ScalarSource::Memory(slot) => Scalar::I64(unsafe { address(slot).cast::<i64>().read_unaligned() }),
            }));
            // SAFETY: as above.
            unsafe { step.kernel.run(&resolved, &all)? };
        }
        Ok(())
    }

    /// A number that no other program of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it computes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Bytes that each buffer of a launch reaches over.
    pub fn extents(&self) -> &[usize] {
        &self.extents
    }

    /// The buffers of a launch that it writes.
    pub fn written(&self) -> &[usize] {
        &self.written
    }

    /// True if it gains from being joined with programs before and after it.
    pub fn fuses(&self) -> bool {
        self.fuses
    }

    /// Rough duration in nanoseconds on one thread.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The kernels in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Bytes of temporaries.
    pub fn workspace(&self) -> usize {
        self.workspace
    }
}
