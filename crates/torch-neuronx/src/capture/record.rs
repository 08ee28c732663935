//! Recording what a thread launches.

use neuron_compiler::{Joined, Program, Tape};
use neuron_ir::Scalar;
use std::cell::RefCell;
use std::sync::Arc;

/// A launch on the tape.
#[derive(Debug)]
pub struct Recorded {
    /// Addresses of its buffers.
    pub addresses: Vec<usize>,
    /// Its scalars, as they were.
    pub scalars: Vec<Scalar>,
    /// How many values of the random generator it consumes; its last two scalars are then seed and offset.
    pub random: u64,
}

/// Launches that became one graph.
#[derive(Debug)]
pub struct Segment {
    /// The graph.
    pub joined: Joined,
    /// Its launches.
    pub launches: Vec<Recorded>,
}

/// A recording.
#[derive(Default)]
pub struct Recording {
    /// Finished segments: the tape could not follow what came next.
    pub segments: Vec<Segment>,
    /// The open segment.
    pub tape: Tape,
    /// Its launches.
    pub launches: Vec<Recorded>,
    /// Memory allocated meanwhile: first and last address.
    pub born: Vec<(usize, usize)>,
    /// Device and stream of the launches.
    pub place: Option<(i32, u64)>,
    /// How often something happened that a replay would not repeat: work of the host, a second stream, foreign memory.
    pub foreign: u64,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// Starts recording on this thread; false if it records already.
pub fn begin() -> bool {
    RECORDING.with_borrow_mut(|r| {
        let free = r.is_none();
        if free {
            *r = Some(Recording::default());
        }
        free
    })
}

/// Ends the recording of this thread.
pub fn end() -> Option<Recording> {
    RECORDING.take()
}

/// What [`Recording::foreign`] is now; 0 where nothing is recorded.
pub fn foreign_events() -> u64 {
    RECORDING.with_borrow(|r| r.as_ref().map_or(0, |r| r.foreign))
}

fn with(f: impl FnOnce(&mut Recording)) {
    // Memory may be freed while a recording is being dropped, or after the thread's variables are gone.
    let _ = RECORDING.try_with(|r| {
        if let Ok(mut r) = r.try_borrow_mut()
            && let Some(recording) = r.as_mut()
        {
            f(recording);
        }
    });
}

/// Something that a replay would not repeat.
pub fn foreign() {
    with(|r| r.foreign += 1);
}

/// A launch.
pub fn launch(program: &Arc<Program>, buffers: &[*mut u8], scalars: &[Scalar], random: u64, place: (i32, u64)) {
    with(|r| {
        if *r.place.get_or_insert(place) != place
            || buffers.iter().any(|b| !b.is_null() && neuron_runtime::space::device_of(*b) != Some(place.0 as usize))
        {
            r.foreign += 1;
            return;
        }
        let addresses: Vec<usize> = buffers.iter().map(|b| b.addr()).collect();
        if !r.tape.push(program.graph(), &addresses, scalars.len()) {
            r.cut();
            if !r.tape.push(program.graph(), &addresses, scalars.len()) {
                r.foreign += 1;
                return;
            }
        }
        r.launches.push(Recorded { addresses, scalars: scalars.to_vec(), random });
    });
}

/// Memory was allocated.
pub fn allocated(address: *mut u8, bytes: usize) {
    with(|r| r.born.push((address.addr(), address.addr() + bytes)));
}

/// Memory was freed: what was allocated meanwhile has no other readers.
pub fn freed(address: *mut u8) {
    with(|r| {
        if let Some((start, end)) = r.born.iter().rev().find(|b| b.0 == address.addr()) {
            r.tape.free(*start, end - start);
        }
    });
}

impl Recording {
    /// True if this memory was allocated meanwhile.
    pub fn is_born(&self, start: usize, end: usize) -> bool {
        self.born.iter().any(|b| b.0 <= start && end <= b.1)
    }

    /// Ends the open segment; what it wrote and was not freed may be read by the next.
    fn cut(&mut self) {
        if self.launches.is_empty() {
            return;
        }
        let joined = std::mem::take(&mut self.tape).finish(|_, _| true);
        self.segments.push(Segment { joined, launches: std::mem::take(&mut self.launches) });
    }
}
