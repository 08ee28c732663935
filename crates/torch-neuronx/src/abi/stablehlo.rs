//! The StableHLO of launched calls, recorded on request: what a test compiles elsewhere and compares.

use neuron_ir::{DType, Destination, Graph, Scalar, TensorType, stablehlo};
use neuron_runtime::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A logical tensor: number of its dtype, sizes, and row-major bytes where values are recorded.
pub(crate) type Value = (u8, Vec<i64>, Option<Vec<u8>>);

/// A launched call.
#[derive(Debug)]
pub(crate) struct Record {
    /// Qualified name of the operator.
    pub op: &'static str,
    /// StableHLO text, or why there is none.
    pub text: Result<String, String>,
    /// The text's arguments: tensors, then scalars.
    pub arguments: Vec<Value>,
    /// Its results.
    pub results: Vec<Value>,
}

static RECORDING: AtomicBool = AtomicBool::new(false);
static VALUES: AtomicBool = AtomicBool::new(false);
static RECORDS: Mutex<Vec<Record>> = Mutex::new(Vec::new());

/// Starts or ends recording; with `values` arguments and results are copied, and every launch is waited for.
pub(crate) fn record(on: bool, values: bool) {
    VALUES.store(values, Ordering::Relaxed);
    RECORDING.store(on, Ordering::Relaxed);
}

/// What has been recorded since the last call.
pub(crate) fn take() -> Vec<Record> {
    std::mem::take(&mut *RECORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// True while calls are to be recorded.
#[inline(always)]
pub(crate) fn recording() -> bool {
    RECORDING.load(Ordering::Relaxed)
}

/// Launches with `launch` and records the call.
///
/// # Safety
/// The buffers are those the graph was compiled for.
pub(crate) unsafe fn launched(
    op: &'static str,
    graph: &Graph,
    buffers: &[*mut u8],
    scalars: &[Scalar],
    synchronize: impl Fn() -> Result<(), Error>,
    launch: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let text = stablehlo::write(graph).map_err(|e| e.to_string());
    let values = VALUES.load(Ordering::Relaxed) && text.is_ok();
    if values {
        synchronize()?;
    }
    let read = |ty: &TensorType, buffer: usize| {
        // SAFETY: the caller's contract; nothing runs on the stream.
        let bytes = values.then(|| unsafe { row_major(ty, buffers[buffer]) });
        (ty.dtype as u8, ty.sizes.to_vec(), bytes)
    };
    let mut arguments: Vec<Value> = graph.params.iter().enumerate().map(|(i, ty)| read(ty, i)).collect();
    arguments.extend(stablehlo::scalars(graph).into_iter().map(|(index, dtype)| {
        let bytes = scalars.get(index).map(|s| number(*s, dtype));
        (dtype as u8, Vec::new(), bytes)
    }));
    launch()?;
    if values {
        synchronize()?;
    }
    let place = |to: Destination| match to {
        Destination::Fresh(i) => graph.params.len() + i,
        Destination::Param(i) => i,
    };
    let results = graph.outputs.iter().map(|o| read(&o.layout, place(o.to))).collect();
    let record = Record { op, text, arguments, results };
    RECORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(record);
    Ok(())
}

/// The elements of a tensor in row-major order.
///
/// # Safety
/// `from` is such a tensor.
unsafe fn row_major(ty: &TensorType, from: *const u8) -> Vec<u8> {
    let size = ty.dtype.size();
    let mut bytes = Vec::with_capacity(ty.numel() as usize * size);
    let mut at = vec![0i64; ty.rank()];
    for _ in 0..ty.numel() {
        let offset: i64 = at.iter().zip(&ty.strides).map(|(i, s)| i * s).sum();
        // SAFETY: an element of the tensor.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(from.offset(offset as isize * size as isize), size)
        });
        for d in (0..ty.rank()).rev() {
            at[d] += 1;
            if at[d] < ty.sizes[d] {
                break;
            }
            at[d] = 0;
        }
    }
    bytes
}

fn number(value: Scalar, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => (value.to_f64() as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_f64().to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(value.to_f64() != 0.0)],
        _ => value.to_i64().to_le_bytes().to_vec(),
    }
}
