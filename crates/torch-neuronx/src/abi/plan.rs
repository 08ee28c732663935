//! Plans: what an operator call was lowered to, found again by the call's key.

use super::stablehlo;
use super::status::{guard, guard_value, set_message};
use crate::capture::record;
use crate::python::stack::issued_at;
use neuron_aten::{Call, OutputType, table};
use neuron_compiler::Program;
use neuron_ir::{DType, Destination, Dims, Scalar, TensorType};
use neuron_runtime::{Error, Status, device, env, tracking};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Mutex};

/// Plans kept before all are dropped: calls whose shapes never repeat must not grow memory without bound.
const CAPACITY: usize = 1 << 16;

/// `NeuronScalar` of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NeuronScalar {
    is_integer: u64,
    bits: u64,
}

/// `NeuronOutput` of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NeuronOutput {
    from_argument: i32,
    dtype: i32,
    rank: i32,
    contiguous: i32,
    bytes: i64,
    sizes: *const i64,
    strides: *const i64,
}

/// A lowered call.
#[derive(Debug)]
pub struct NeuronPlan {
    op: usize,
    /// The program, or why there is none.
    program: Result<Arc<Program>, CString>,
    outputs: Vec<NeuronOutput>,
    /// What `outputs` points into.
    _layouts: Vec<Box<[i64]>>,
    random: u64,
}

// SAFETY: the pointers of `outputs` point into `_layouts`, which is never changed.
unsafe impl Send for NeuronPlan {}
// SAFETY: as above.
unsafe impl Sync for NeuronPlan {}

type Plans = FxHashMap<Box<[u64]>, Arc<NeuronPlan>>;

static PLANS: LazyLock<Mutex<Plans>> = LazyLock::new(Mutex::default);

thread_local! {
    /// This thread's share of [`PLANS`], looked up without a lock.
    static LOCAL: RefCell<Plans> = RefCell::default();
}

/// What is known of an operator beyond its lowering.
struct Operator {
    name: &'static str,
    c_name: CString,
    seen: AtomicBool,
}

static OPERATORS: LazyLock<Vec<Operator>> = LazyLock::new(|| {
    table()
        .iter()
        .map(|e| Operator {
            name: e.name,
            c_name: CString::new(e.name).unwrap_or_default(),
            seen: AtomicBool::new(false),
        })
        .collect()
});

/// How many operators the table has.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_op_count() -> i32 {
    guard_value(0, || OPERATORS.len() as i32)
}

/// The qualified name of an operator.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_op_name(op: i32) -> *const c_char {
    guard_value(c"".as_ptr(), || OPERATORS[op as usize].c_name.as_ptr())
}

/// The plan for a key, or null.
///
/// # Safety
/// `key` points to `words` words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_find(key: *const u64, words: usize) -> *const NeuronPlan {
    guard_value(std::ptr::null(), || {
        // SAFETY: the caller's contract.
        let key = unsafe { std::slice::from_raw_parts(key, words) };
        LOCAL.with_borrow_mut(|local| {
            if let Some(plan) = local.get(key) {
                return Arc::as_ptr(plan);
            }
            let Some(plan) = lock(&PLANS).get(key).cloned() else { return std::ptr::null() };
            let found = Arc::as_ptr(&plan);
            remember(local, key, plan);
            found
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic while it was held left complete entries behind.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn remember(plans: &mut Plans, key: &[u64], plan: Arc<NeuronPlan>) {
    if plans.len() >= CAPACITY {
        plans.clear();
    }
    plans.insert(key.into(), plan);
}

/// Lowers and compiles a call.
///
/// # Safety
/// `key` points to `words` words, `outputs` to `count` descriptions whose sizes and strides have `rank` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_build(
    key: *const u64,
    words: usize,
    outputs: *const NeuronOutput,
    count: usize,
    plan: *mut *const NeuronPlan,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let key = unsafe { std::slice::from_raw_parts(key, words) };
        let described: &[NeuronOutput] = if count == 0 {
            &[]
        } else {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts(outputs, count) }
        };
        // SAFETY: as above, for the sizes and strides.
        let built = Arc::new(unsafe { build(key, described) });
        let address = Arc::as_ptr(&built);
        remember(&mut lock(&PLANS), key, built.clone());
        LOCAL.with_borrow_mut(|local| remember(local, key, built));
        // SAFETY: the caller passes a place for the result.
        unsafe { plan.write(address) };
        Ok(())
    })
}

/// # Safety
/// Sizes and strides of the outputs have `rank` elements.
unsafe fn build(key: &[u64], described: &[NeuronOutput]) -> NeuronPlan {
    let op = (key[0] & 0xffff_ffff) as usize;
    let mut layouts: Vec<Box<[i64]>> = Vec::new();
    let mut outputs = Vec::new();
    let mut types = Vec::new();
    let mut unsupported = None;
    for o in described {
        let mut kept = *o;
        if o.dtype < 0 {
            // Absent, or a number the meta kernel knew: nothing to lower.
            types.push(None);
            outputs.push(kept);
            continue;
        }
        let rank = o.rank as usize;
        let copy = |from: *const i64| -> Box<[i64]> {
            if rank == 0 {
                return Box::default();
            }
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts(from, rank) }.into()
        };
        let (sizes, strides) = (copy(o.sizes), copy(o.strides));
        (kept.sizes, kept.strides) = (sizes.as_ptr(), strides.as_ptr());
        match DType::from_c10(o.dtype as u8) {
            Some(dtype) => {
                let ty = TensorType { dtype, sizes: Dims::from_slice(&sizes), strides: Dims::from_slice(&strides) };
                types.push(Some(OutputType { ty, argument: usize::try_from(o.from_argument).ok() }));
            }
            None => unsupported = Some(format!("a result of dtype number {}", o.dtype)),
        }
        layouts.extend([sizes, strides]);
        outputs.push(kept);
    }
    let lowered = match unsupported {
        Some(why) => Err(why),
        None => lower(key, &types),
    };
    let (program, random) = match lowered {
        Ok((program, random)) => (Ok(Arc::new(program)), random),
        Err(why) => (Err(CString::new(why.replace('\0', " ")).unwrap_or_default()), 0),
    };
    NeuronPlan { op, program, outputs, _layouts: layouts, random }
}

fn lower(key: &[u64], outputs: &[Option<OutputType>]) -> Result<(Program, u64), String> {
    let call = Call::decode(key).map_err(|e| e.to_string())?;
    let (graph, random) = neuron_aten::lower(&call, outputs).map_err(|e| e.to_string())?;
    let fresh = outputs.iter().flatten().filter(|o| o.argument.is_none()).count();
    let stored = graph.outputs.iter().filter(|o| matches!(o.to, Destination::Fresh(_))).count();
    if fresh != stored {
        return Err(format!("{stored} of {fresh} results are lowered"));
    }
    let program = neuron_compiler::compile(&graph).map_err(|e| e.to_string())?;
    Ok((program, random))
}

/// Why a key has no program, or null.
///
/// # Safety
/// `plan` comes from [`neuron_plan_find`] or [`neuron_plan_build`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_unsupported(plan: *const NeuronPlan) -> *const c_char {
    // SAFETY: the caller's contract.
    match unsafe { &(*plan).program } {
        Ok(_) => std::ptr::null(),
        Err(why) => why.as_ptr(),
    }
}

/// The results of a plan.
///
/// # Safety
/// `plan` as for [`neuron_plan_unsupported`]; `outputs` is valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_outputs(plan: *const NeuronPlan, outputs: *mut *const NeuronOutput) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        outputs.write((*plan).outputs.as_ptr());
        (*plan).outputs.len()
    }
}

/// How many values of the generator a launch consumes.
///
/// # Safety
/// `plan` as for [`neuron_plan_unsupported`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_random(plan: *const NeuronPlan) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { (*plan).random }
}

/// Launches a plan on a stream.
///
/// # Safety
/// `plan` as for [`neuron_plan_unsupported`]; the addresses are those of the tensors the key describes, then of the new
/// results, and stay allocated until the stream has passed this point; there are `scalar_count` scalars.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neuron_plan_launch(
    plan: *const NeuronPlan,
    addresses: *const *mut c_void,
    count: usize,
    scalars: *const NeuronScalar,
    scalar_count: usize,
    index: i32,
    stream: u64,
) -> Status {
    guard(|| {
        // SAFETY: the caller's contract.
        let plan = unsafe { &*plan };
        let Ok(program) = &plan.program else {
            return Err(Error::Value("a plan without a program cannot be launched".to_string()));
        };
        let operator = &OPERATORS[plan.op];
        tracking::executed(operator.name, &operator.seen);
        let (core, stream) = device::get_stream(index, stream)?;
        let buffers: SmallVec<[*mut u8; 16]> = (0..count)
            // SAFETY: the caller's contract.
            .map(|i| unsafe { *addresses.add(i) }.cast())
            .collect();
        let scalars: SmallVec<[Scalar; 8]> = (0..scalar_count)
            .map(|i| {
                // SAFETY: the caller's contract.
                let s = unsafe { *scalars.add(i) };
                if s.is_integer != 0 { Scalar::I64(s.bits as i64) } else { Scalar::F64(f64::from_bits(s.bits)) }
            })
            .collect();
        record::launch(program, &buffers, &scalars, plan.random, (index, u64::from(stream)));
        // SAFETY: the caller's contract: the buffers are those the program was compiled for.
        let launch = || unsafe { core.queue.launch(stream, program, &buffers, &scalars, operator.name, issued_at()) };
        if stablehlo::recording() {
            let wait = || core.queue.synchronize(stream);
            // SAFETY: as above.
            return unsafe { stablehlo::launched(operator.name, program.graph(), &buffers, &scalars, wait, launch) };
        }
        launch()
    })
}

/// Waits for earlier work of the stream, so that the host may use device memory.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_host_access(index: i32, stream: u64) -> Status {
    guard(|| {
        record::foreign();
        let (core, stream) = device::get_stream(index, stream)?;
        core.queue.synchronize(stream)
    })
}

/// Whether `NEURON_FALLBACK_ENABLED` forbids the CPU fallback; a bad value is reported and forbids nothing.
#[unsafe(no_mangle)]
pub extern "C" fn neuron_fallback_forbidden() -> bool {
    guard_value(false, || match env::flag("NEURON_FALLBACK_ENABLED") {
        Ok(enabled) => !enabled,
        Err(e) => {
            set_message(&e.to_string());
            false
        }
    })
}
