//! Captured graphs.

use super::status::{give, guard};
use crate::capture::graph::{Graph, Memory, finish};
use crate::capture::record;
use neuron_runtime::{Error, Status};
use std::ffi::c_void;

/// `NeuronTensor` of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NeuronTensor {
    /// First element.
    address: *mut c_void,
    /// Bytes it reaches over, or of the storage.
    bytes: i64,
    /// Number of the storage, of an output.
    storage: i32,
    dtype: i32,
    rank: i32,
    reserved: i32,
    /// In elements, within the storage.
    offset: i64,
    sizes: *const i64,
    strides: *const i64,
}

/// A graph with the layouts of its inputs and new outputs.
#[derive(Debug)]
pub struct NeuronGraph {
    /// The programs.
    pub graph: Graph,
    inputs: Vec<NeuronTensor>,
    outputs: Vec<NeuronTensor>,
    /// What these point into.
    _layouts: Vec<Box<[i64]>>,
    device: i32,
}

// SAFETY: the pointers of the descriptions point into `_layouts`, which is never changed.
unsafe impl Send for NeuronGraph {}
// SAFETY: as above.
unsafe impl Sync for NeuronGraph {}

/// # Safety
/// There are `count` descriptions whose sizes and strides have `rank` elements.
unsafe fn keep(from: *const NeuronTensor, count: usize, layouts: &mut Vec<Box<[i64]>>) -> Vec<NeuronTensor> {
    (0..count)
        .map(|i| {
            // SAFETY: the caller's contract.
            let mut t = unsafe { *from.add(i) };
            for dims in [&mut t.sizes, &mut t.strides] {
                let copy: Box<[i64]> = match t.rank {
                    0 => Box::default(),
                    // SAFETY: the caller's contract.
                    rank => unsafe { std::slice::from_raw_parts(*dims, rank as usize) }.into(),
                };
                *dims = copy.as_ptr();
                layouts.push(copy);
            }
            t
        })
        .collect()
}

/// Ends the recording of this thread and makes a graph of it; `graph` is null, and the message says why, where it cannot be
/// replayed.
///
/// # Safety
/// Descriptions as for `keep`: of the inputs, of the new outputs, and of the outputs' storages; `graph` is valid for
/// writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_graph_finish(
    inputs: *const NeuronTensor,
    input_count: usize,
    outputs: *const NeuronTensor,
    output_count: usize,
    storages: *const NeuronTensor,
    storage_count: usize,
    graph: *mut *mut NeuronGraph,
) -> Status {
    guard(|| {
        let recording = record::end().ok_or_else(|| Error::Value("nothing is recorded on this thread".to_string()))?;
        let mut layouts = Vec::new();
        // SAFETY: the caller's contract.
        let (inputs, outputs) =
            unsafe { (keep(inputs, input_count, &mut layouts), keep(outputs, output_count, &mut layouts)) };
        // SAFETY: the caller's contract.
        let storages: Vec<NeuronTensor> = (0..storage_count).map(|i| unsafe { *storages.add(i) }).collect();
        let memory = |t: &NeuronTensor| Memory { address: t.address.addr(), bytes: t.bytes as usize };
        let device = recording.place.map_or(-1, |p| p.0);
        let made = finish(
            recording,
            &inputs.iter().map(memory).collect::<Vec<_>>(),
            &storages.iter().map(memory).collect::<Vec<_>>(),
        );
        let address = match made {
            Ok(graph) => Box::into_raw(Box::new(NeuronGraph { graph, inputs, outputs, _layouts: layouts, device })),
            Err(why) => {
                super::status::set_message(&why);
                std::ptr::null_mut()
            }
        };
        // SAFETY: the caller's contract.
        unsafe { give(graph, address) }
    })
}

/// What a graph takes and makes: inputs, new outputs, bytes of their storages, values that each random launch consumes.
///
/// # Safety
/// `graph` comes from [`neuron_graph_finish`], and the other pointers are valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_graph_describe(
    graph: *const NeuronGraph,
    inputs: *mut *const NeuronTensor,
    outputs: *mut *const NeuronTensor,
    storages: *mut *const usize,
    random: *mut *const u64,
    counts: *mut [usize; 4],
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        let g = &*graph;
        inputs.write(g.inputs.as_ptr());
        outputs.write(g.outputs.as_ptr());
        storages.write(g.graph.storages.as_ptr());
        random.write(g.graph.random().as_ptr());
        counts.write([g.inputs.len(), g.outputs.len(), g.graph.storages.len(), g.graph.random().len()]);
        g.device
    }
}

/// Launches a graph on a stream.
///
/// # Safety
/// `graph` as for [`neuron_graph_describe`]; there are as many addresses and pairs of seed and offset as it says, of memory
/// with the layouts it says, that stays allocated until the stream has passed this point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_graph_launch(
    graph: *const NeuronGraph,
    inputs: *const *mut c_void,
    storages: *const *mut c_void,
    seeds: *const [u64; 2],
    device: i32,
    stream: u64,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe {
            let g = &*graph;
            let addresses = |from: *const *mut c_void, n: usize| -> smallvec::SmallVec<[*mut u8; 32]> {
                (0..n).map(|i| (*from.add(i)).cast()).collect()
            };
            let inputs = addresses(inputs, g.inputs.len());
            let storages = addresses(storages, g.graph.storages.len());
            let seeds: smallvec::SmallVec<[(u64, u64); 8]> =
                (0..g.graph.random().len()).map(|i| ((*seeds.add(i))[0], (*seeds.add(i))[1])).collect();
            g.graph.replay(&inputs, &storages, &seeds, device, stream)
        }
    })
}
