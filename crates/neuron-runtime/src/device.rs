//! The devices of this process: how many, of what kind, and their life from first use to exit.
//!
//! A device is a logical NeuronCore. Nothing is mapped and no thread runs before the first use. After a fork the child
//! has copies of the parent's memory but none of its threads, so every use of a device fails there with a clear error;
//! [`count`] still works.

use crate::allocator::Allocator;
use crate::blocks::Tuning;
use crate::env;
use crate::error::Error;
use crate::executor;
use crate::fusion;
use crate::queue::{Queue, STREAMS};
use crate::space;
use crate::stats::MemoryStats;
use crate::stream::{self, MAX_DEVICES, Pools};
use crate::sync::Arc;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A kind of hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, as AWS's tools have it.
    pub name: &'static str,
    /// Physical NeuronCores of a chip.
    pub cores: u32,
    /// Memory of a chip in bytes.
    pub memory: u64,
}

/// Trainium2.
pub const TRN2: Target = Target { name: "trn2", cores: 8, memory: 96 << 30 };
/// Trainium3.
pub const TRN3: Target = Target { name: "trn3", cores: 8, memory: 144 << 30 };

/// Devices of a chip at two physical cores each.
const DEFAULT_COUNT: i32 = 4;

/// How many devices appear, and what each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The hardware.
    pub target: Target,
    /// Devices of this process.
    pub count: i32,
    /// Bytes of each: the smaller of the target's and this host's share.
    pub capacity: u64,
}

/// A logical core's memory, or an equal share of this host's for each device if that is less.
fn capacity(target: Target, cores_each: u32, count: i32) -> u64 {
    let profile = target.memory / u64::from(target.cores / cores_each);
    profile.min(host_memory() / count.max(1) as u64) & !(space::GRANULE as u64 - 1)
}

/// The memory this process may use: the machine's, or its control group's limit.
fn host_memory() -> u64 {
    // SAFETY: two constants of the system.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let machine = pages.max(0) as u64 * size.max(0) as u64;
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    limit.map_or(machine, |l| l.min(machine))
}

impl Configuration {
    /// As the environment says.
    ///
    /// # Errors
    /// [`Error::Environment`].
    pub fn read() -> Result<Configuration, Error> {
        let (target, cores_each, count) = read_count()?;
        Ok(Configuration { target, count, capacity: capacity(target, cores_each, count) })
    }
}

/// The target, physical cores of each device, and how many devices there are.
fn read_count() -> Result<(Target, u32, i32), Error> {
    let target = match env::text(env::PLATFORM_TARGET)?.as_str() {
        "trn3" | "gen4" => TRN3,
        _ => TRN2,
    };
    let cores_each = env::integer(env::LOGICAL_NC_CONFIG)? as u32;
    let count = match (env::cores(env::VISIBLE_CORES)?, env::integer(env::NUM_CORES)?) {
        (Some(cores), _) => cores.len() as i32,
        (None, 0) => (target.cores / cores_each) as i32,
        (None, n) => n as i32,
    };
    debug_assert!(count as usize <= MAX_DEVICES);
    Ok((target, cores_each, count))
}

/// A device in use.
#[derive(Debug)]
pub struct Device {
    /// Its work.
    pub queue: Arc<Queue>,
    /// Its memory.
    pub memory: Allocator,
    /// Its streams.
    pub streams: Pools,
}

/// The devices in use.
#[derive(Debug)]
pub struct Runtime {
    /// What they are.
    pub configuration: Configuration,
    devices: Box<[Device]>,
}

impl Runtime {
    /// A device by index.
    ///
    /// # Errors
    /// [`Error::Device`].
    #[inline]
    pub fn device(&self, index: i32) -> Result<&Device, Error> {
        match usize::try_from(index).ok().and_then(|i| self.devices.get(i)) {
            Some(device) => Ok(device),
            None => Err(Error::Device { index, count: self.configuration.count }),
        }
    }

    /// All devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

/// Never freed: tensors may outlive any order of destruction at exit.
static STORAGE: OnceLock<Runtime> = OnceLock::new();
/// The runtime while it may be used: null before the start, in a forked child, and at exit.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);
static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

/// The runtime, if it runs in this process.
#[inline]
pub fn started() -> Option<&'static Runtime> {
    let runtime = RUNTIME.load(Ordering::Acquire);
    // SAFETY: null or what `STORAGE` holds for ever; it is only read.
    unsafe { runtime.as_ref() }
}

/// The runtime; starts it.
///
/// # Errors
/// If a variable of the environment makes no sense, in a forked child of a process that used a device, and at exit.
#[inline]
pub fn runtime() -> Result<&'static Runtime, Error> {
    match started() {
        Some(runtime) => Ok(runtime),
        None => start(),
    }
}

extern "C" fn after_fork_in_child() {
    if !RUNTIME.swap(std::ptr::null_mut(), Ordering::Relaxed).is_null() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

#[cold]
fn start() -> Result<&'static Runtime, Error> {
    if is_forked() {
        return Err(Error::Forked);
    }
    let _starting = STARTING.lock();
    if let Some(runtime) = started() {
        return Ok(runtime);
    }
    if SHUT_DOWN.load(Ordering::Relaxed) {
        return Err(Error::ShutDown);
    }
    env::check()?;
    let configuration = Configuration::read()?;
    let tuning = Tuning {
        max_split_size: env::setting(env::SEGMENT_ALLOCATOR_CONFIG, "kMaxSplitSizeBytes")?
            .map_or(usize::MAX, |v| v as usize),
        max_non_split_rounding: env::setting(env::SEGMENT_ALLOCATOR_CONFIG, "kMaxNonSplitRoundingBytes")?
            .map_or(20 << 20, |v| v as usize),
    };
    executor::set_blocking(env::flag(env::LAUNCH_BLOCKING)?);
    fusion::set_enabled(env::flag(env::EAGER_FUSION)?);
    // Twice the capacity: holes between segments do not make a device run out of addresses.
    let stride = 2 * configuration.capacity as usize;
    space::reserve(configuration.count as usize, stride, env::flag(env::PROTECT_DEVICE_MEMORY)?)?;
    let devices = (0..configuration.count)
        .map(|i| Device {
            queue: Queue::new(i, STREAMS),
            memory: Allocator::new(i, configuration.capacity as usize, tuning),
            streams: Pools::default(),
        })
        .collect();
    // SAFETY: the handler only stores to atomics.
    if unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) } != 0 {
        return Err(Error::system("pthread_atfork"));
    }
    let runtime = STORAGE.get_or_init(|| Runtime { configuration, devices });
    RUNTIME.store(std::ptr::from_ref(runtime).cast_mut(), Ordering::Release);
    Ok(runtime)
}

/// True in a forked child of a process that used a device.
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// How many devices there are. Starts nothing and never fails; with a nonsensical environment it is the default, and
/// the first use raises the error.
pub fn count() -> i32 {
    match started() {
        Some(runtime) => runtime.configuration.count,
        None => read_count().map_or(DEFAULT_COUNT, |(_, _, count)| count),
    }
}

/// What the devices are. Starts nothing.
///
/// # Errors
/// [`Error::Environment`].
pub fn configuration() -> Result<Configuration, Error> {
    started().map_or_else(Configuration::read, |r| Ok(r.configuration))
}

/// # Errors
/// [`Error::Device`] if there is no such device.
#[inline]
pub fn check(index: i32) -> Result<(), Error> {
    let count = count();
    if (0..count).contains(&index) { Ok(()) } else { Err(Error::Device { index, count }) }
}

/// Makes a device the calling thread's. Starts nothing.
///
/// # Errors
/// [`Error::Device`].
pub fn set_current(index: i32) -> Result<(), Error> {
    check(index)?;
    stream::set_current_device(index);
    Ok(())
}

/// A device; starts the runtime.
///
/// # Errors
/// As for [`runtime`], and [`Error::Device`].
#[inline]
pub fn get(index: i32) -> Result<&'static Device, Error> {
    runtime()?.device(index)
}

/// A device and one of its streams; starts the runtime.
///
/// # Errors
/// As for [`get`], and [`Error::Stream`].
#[inline]
pub fn get_stream(index: i32, stream: u64) -> Result<(&'static Device, u32), Error> {
    let device = get(index)?;
    if stream >= u64::from(STREAMS) {
        return Err(Error::Stream { stream, device: index });
    }
    Ok((device, stream as u32))
}

/// Memory for the stream's work on a device.
///
/// # Errors
/// As for [`get_stream`] and [`Allocator::allocate`].
#[inline]
pub fn allocate(index: i32, stream: u64, size: usize) -> Result<*mut u8, Error> {
    let (device, stream) = get_stream(index, stream)?;
    device.memory.allocate(&device.queue, stream, size)
}

/// Frees device memory. Callable at any time, from any thread; does nothing after a fork or at exit.
#[inline]
pub fn free(address: *mut u8) {
    let Some(runtime) = started() else { return };
    let Some(index) = space::device_of(address) else { return };
    runtime.devices[index].memory.free(address, |device| Some(runtime.device(device).ok()?.queue.clone()));
}

/// Statistics of a device's memory: zeros if it was never used.
///
/// # Errors
/// [`Error::Device`].
pub fn memory_stats(index: i32) -> Result<MemoryStats, Error> {
    match started() {
        Some(runtime) => Ok(runtime.device(index)?.memory.stats()),
        None => check(index).map(|()| MemoryStats { max_split_size: -1, ..MemoryStats::default() }),
    }
}

/// Free and total bytes of a device.
///
/// # Errors
/// [`Error::Device`], [`Error::Environment`].
pub fn memory_info(index: i32) -> Result<(u64, u64), Error> {
    check(index)?;
    match started() {
        Some(runtime) => {
            let memory = &runtime.device(index)?.memory;
            Ok((memory.available() as u64, memory.capacity() as u64))
        }
        None => configuration().map(|c| (c.capacity, c.capacity)),
    }
}

/// Finishes all work and ends the executors. Later frees do nothing, everything else fails.
pub fn shut_down() {
    SHUT_DOWN.store(true, Ordering::Relaxed);
    let Some(runtime) = started() else { return };
    for device in &runtime.devices {
        // At exit nobody is left to raise an error to.
        let _ = device.queue.drain_all();
    }
    RUNTIME.store(std::ptr::null_mut(), Ordering::Release);
    for device in &runtime.devices {
        device.queue.stop();
    }
}
