//! Replaying a recording on other memory.

use super::record::{Recording, Segment};
use neuron_compiler::{Program, compile};
use neuron_ir::Scalar;
use neuron_runtime::executor::panic_message;
use neuron_runtime::{Error, device};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Alignment of memory within the scratch block.
const ALIGNMENT: usize = 64;

/// Where a buffer of a program is at a replay.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In an input, so many bytes on.
    Input(usize, usize),
    /// In the storage of an output.
    Storage(usize, usize),
    /// In the scratch block.
    Scratch(usize),
    /// Where it was: memory that was there before and that something else keeps, such as a constant.
    Kept(usize),
}

#[derive(Debug)]
struct Part {
    program: Arc<Program>,
    places: Vec<Place>,
    scalars: Vec<Scalar>,
    /// Which scalars are the seed and the offset, and of which random launch of the graph.
    random: Vec<(usize, usize)>,
}

/// Memory that came in, or goes out.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Where it begins.
    pub address: usize,
    /// How much it is.
    pub bytes: usize,
}

impl Memory {
    fn contains(&self, address: usize) -> bool {
        // Memory of no bytes is at its address.
        address == self.address || (self.address < address && address < self.address + self.bytes)
    }
}

/// A graph that can be replayed.
#[derive(Debug)]
pub struct Graph {
    parts: Vec<Part>,
    /// Bytes that exist only during a replay: memory between programs, then the workspace of the largest.
    scratch: usize,
    workspace: usize,
    /// How many values of the generator each random launch consumes.
    random: Vec<u64>,
    /// Bytes of the storages of new outputs.
    pub storages: Vec<usize>,
    launches: usize,
}

/// What a graph became, for people and tests.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Operators recorded.
    pub operators: usize,
    /// Programs they became.
    pub programs: usize,
    /// Kernels of these.
    pub kernels: usize,
    /// Bytes of memory that exist only during a replay.
    pub scratch: usize,
}

/// Makes a graph of a recording whose inputs and new outputs lie in this memory.
///
/// # Errors
/// Why it cannot be replayed: then it has to be executed as it was recorded.
pub fn finish(mut r: Recording, inputs: &[Memory], storages: &[Memory]) -> Result<Graph, String> {
    if r.foreign > 0 {
        return Err("work of the host, of another stream or on foreign memory".to_string());
    }
    let tape = std::mem::take(&mut r.tape);
    if !r.launches.is_empty() {
        let joined = tape.finish(|start, end| {
            let overlaps = |m: &Memory| start < m.address + m.bytes && m.address < end;
            !r.is_born(start, end) || inputs.iter().chain(storages).any(overlaps)
        });
        r.segments.push(Segment { joined, launches: std::mem::take(&mut r.launches) });
    }
    let scratch = Scratch::new(&r, inputs, storages);
    let mut graph = Graph {
        parts: Vec::new(),
        scratch: scratch.bytes,
        workspace: 0,
        random: Vec::new(),
        storages: storages.iter().map(|s| s.bytes).collect(),
        launches: 0,
    };
    for segment in &r.segments {
        let program = compiled(&segment.joined.graph)?.with_outer_workspace();
        graph.workspace = graph.workspace.max(program.workspace());
        let places = segment.joined.buffers.iter().map(|origin| {
            let address = segment.launches[origin.launch].addresses[origin.buffer];
            let within =
                |all: &[Memory]| all.iter().position(|m| m.contains(address)).map(|i| (i, address - all[i].address));
            if let Some((i, offset)) = within(storages) {
                Place::Storage(i, offset)
            } else if let Some((i, offset)) = within(inputs) {
                Place::Input(i, offset)
            } else {
                scratch.place(address).map_or(Place::Kept(address), Place::Scratch)
            }
        });
        let places = places.collect();
        let (mut scalars, mut random) = (Vec::new(), Vec::new());
        for l in &segment.launches {
            scalars.extend_from_slice(&l.scalars);
            if l.random > 0 {
                random.push((scalars.len() - 2, graph.random.len()));
                graph.random.push(l.random);
            }
        }
        graph.launches += segment.launches.len();
        graph.parts.push(Part { program: Arc::new(program), places, scalars, random });
    }
    Ok(graph)
}

/// A fault of the compiler costs speed, not the user's run: the graph then runs operator by operator.
fn compiled(graph: &neuron_ir::Graph) -> Result<Program, String> {
    match catch_unwind(AssertUnwindSafe(|| compile(graph))) {
        Ok(program) => program.map_err(|e| e.to_string()),
        Err(payload) => Err(format!("internal error: {}", panic_message(&*payload))),
    }
}

/// Memory that is neither an input nor an output and that programs share, packed.
struct Scratch {
    /// First and last address when recorded, and where that is in the block.
    ranges: Vec<(usize, usize, usize)>,
    bytes: usize,
}

impl Scratch {
    fn new(r: &Recording, inputs: &[Memory], storages: &[Memory]) -> Scratch {
        let mut found: Vec<(usize, usize)> = Vec::new();
        for segment in &r.segments {
            for (origin, ty) in segment.joined.buffers.iter().zip(segment.joined.graph.buffers()) {
                let start = segment.launches[origin.launch].addresses[origin.buffer];
                let end = start + ty.extent();
                // Also what is only read: the memory that it had, uninitialised, is not there at a replay.
                if r.is_born(start, end) && !inputs.iter().chain(storages).any(|m| m.contains(start)) {
                    found.push((start, end));
                }
            }
        }
        found.sort_unstable();
        let mut ranges: Vec<(usize, usize, usize)> = Vec::new();
        for (start, end) in found {
            match ranges.last_mut() {
                Some(last) if start < last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end, 0)),
            }
        }
        let mut bytes: usize = 0;
        for range in &mut ranges {
            range.2 = bytes;
            bytes += (range.1 - range.0).next_multiple_of(ALIGNMENT);
        }
        Scratch { ranges, bytes }
    }

    fn place(&self, address: usize) -> Option<usize> {
        let range = self.ranges.get(self.ranges.partition_point(|r| r.0 <= address).checked_sub(1)?)?;
        (address < range.1).then(|| range.2 + (address - range.0))
    }
}

impl Graph {
    /// How many values of the generator each random launch consumes.
    pub fn random(&self) -> &[u64] {
        &self.random
    }

    /// What the graph became.
    pub fn summary(&self) -> Summary {
        Summary {
            operators: self.launches,
            programs: self.parts.len(),
            kernels: self.parts.iter().map(|p| p.program.steps().len()).sum(),
            scratch: self.scratch + self.workspace,
        }
    }

    /// The programs' graphs, as text.
    pub fn text(&self) -> String {
        self.parts.iter().map(|p| p.program.graph().to_string()).collect::<Vec<_>>().join("\n")
    }

    /// The programs' graphs as StableHLO.
    ///
    /// # Errors
    /// The first operator that has no such form.
    pub fn stablehlo(&self) -> Result<Vec<String>, String> {
        self.parts.iter().map(|p| neuron_ir::stablehlo::write(p.program.graph()).map_err(|e| e.to_string())).collect()
    }

    /// Launches all programs on a stream.
    ///
    /// # Errors
    /// As for allocations and launches.
    ///
    /// # Safety
    /// Inputs and storages have the layouts they were recorded with, and stay allocated until the stream has passed this
    /// point; there are seed and offset for each random launch.
    pub unsafe fn replay(
        &self,
        inputs: &[*mut u8],
        storages: &[*mut u8],
        seeds: &[(u64, u64)],
        index: i32,
        stream: u64,
    ) -> Result<(), Error> {
        let (core, number) = device::get_stream(index, stream)?;
        let bytes = self.scratch + self.workspace;
        let block = device::allocate(index, stream, bytes)?;
        let mut result = Ok(());
        for part in &self.parts {
            let mut buffers: SmallVec<[*mut u8; 16]> = part
                .places
                .iter()
                .map(|place| match *place {
                    Place::Input(i, offset) => inputs[i].wrapping_add(offset),
                    Place::Storage(i, offset) => storages[i].wrapping_add(offset),
                    Place::Scratch(offset) => block.wrapping_add(offset),
                    Place::Kept(address) => std::ptr::with_exposed_provenance_mut(address),
                })
                .collect();
            buffers.push(block.wrapping_add(self.scratch));
            let mut scalars: SmallVec<[Scalar; 8]> = SmallVec::from_slice(&part.scalars);
            for (at, launch) in &part.random {
                let (seed, offset) = seeds[*launch];
                scalars[*at] = Scalar::I64(seed as i64);
                scalars[*at + 1] = Scalar::I64(offset as i64);
            }
            // SAFETY: the caller's contract; the block is freed in stream order.
            result = unsafe { core.queue.launch(number, &part.program, &buffers, &scalars, "compiled graph", None) };
            if result.is_err() {
                break;
            }
        }
        device::free(block);
        result
    }
}
