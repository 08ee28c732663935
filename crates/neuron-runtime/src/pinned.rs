//! Pinned host memory: host memory the device may read and write at any time.
//!
//! On the cpu target any host memory is that; what makes this memory special is its allocator. A freed block waits for
//! the events recorded on it, so that `copy_(non_blocking=True)` may still read it, and is cached by size class.

use crate::device;
use crate::error::Error;
use crate::event::Signal;
use crate::stats::HostStats;
use crate::sync::Arc;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::alloc::Layout;
use std::collections::BTreeMap;

/// A page: no other allocation shares one with a block.
const ALIGNMENT: usize = 4096;

#[derive(Debug, Default)]
struct Block {
    size: usize,
    used: bool,
    users: SmallVec<[(i32, u32); 2]>,
    signals: SmallVec<[Arc<Signal>; 2]>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: BTreeMap<usize, Block>,
    /// Free blocks by size.
    free: BTreeMap<usize, Vec<usize>>,
    /// Freed blocks whose events are not reached yet.
    pending: Vec<usize>,
    stats: HostStats,
}

static PINNED: Mutex<Inner> = Mutex::new(Inner {
    blocks: BTreeMap::new(),
    free: BTreeMap::new(),
    pending: Vec::new(),
    stats: HostStats {
        allocations: ZERO,
        segments: ZERO,
        allocated_bytes: ZERO,
        reserved_bytes: ZERO,
        num_host_alloc: 0,
        num_host_free: 0,
    },
});

const ZERO: crate::stats::Stat = crate::stats::Stat { current: 0, peak: 0, allocated: 0, freed: 0 };

fn layout(size: usize) -> Result<Layout, Error> {
    Layout::from_size_align(size, ALIGNMENT)
        .map_err(|_| Error::Runtime(format!("Cannot allocate {size} bytes of pinned memory")))
}

impl Inner {
    fn settle(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|address| {
            let Some(b) = self.blocks.get_mut(address) else { return false };
            b.signals.retain(|s| !s.is_done());
            if b.signals.is_empty() {
                self.free.entry(b.size).or_default().push(*address);
            }
            !b.signals.is_empty()
        });
        self.pending = pending;
    }
}

/// Memory of at least `size` bytes, page-aligned; null for 0 bytes.
///
/// # Errors
/// If the system has no more memory.
pub fn allocate(size: usize) -> Result<*mut u8, Error> {
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    // Powers of two, as c10's host allocator: few classes, much reuse.
    let class = size.checked_next_power_of_two().unwrap_or(size).max(ALIGNMENT);
    let layout = layout(class)?;
    let mut inner = PINNED.lock();
    inner.settle();
    let cached = inner.free.get_mut(&class).and_then(Vec::pop);
    let address = match cached {
        Some(address) => address,
        None => {
            // SAFETY: the size is not 0.
            let p = unsafe { std::alloc::alloc(layout) };
            if p.is_null() {
                return Err(Error::Runtime(format!("Cannot allocate {size} bytes of pinned memory")));
            }
            inner.blocks.insert(p as usize, Block { size: class, ..Block::default() });
            inner.stats.segments.increase(1);
            inner.stats.reserved_bytes.increase(class as i64);
            inner.stats.num_host_alloc += 1;
            p as usize
        }
    };
    if let Some(b) = inner.blocks.get_mut(&address) {
        b.used = true;
    }
    inner.stats.allocations.increase(1);
    inner.stats.allocated_bytes.increase(class as i64);
    Ok(address as *mut u8)
}

/// Gives memory back; it is reused once the events recorded on it are reached.
pub fn free(address: *mut u8) {
    let (size, users) = {
        let mut inner = PINNED.lock();
        let Some(b) = inner.blocks.get_mut(&(address as usize)) else { return };
        if !std::mem::replace(&mut b.used, false) {
            return;
        }
        (b.size, std::mem::take(&mut b.users))
    };
    // The queues have locks of their own: no lock is held here.
    let signals = users
        .iter()
        .filter_map(|(device, stream)| device::started()?.device(*device).ok()?.queue.record(*stream).ok())
        .filter(|s| !s.is_done())
        .collect();
    let mut inner = PINNED.lock();
    inner.stats.allocations.decrease(1);
    inner.stats.allocated_bytes.decrease(size as i64);
    if let Some(b) = inner.blocks.get_mut(&(address as usize)) {
        b.signals = signals;
        if b.signals.is_empty() {
            inner.free.entry(size).or_default().push(address as usize);
        } else {
            inner.pending.push(address as usize);
        }
    }
}

fn containing(inner: &mut Inner, address: usize) -> Option<&mut Block> {
    let (start, block) = inner.blocks.range_mut(..=address).next_back()?;
    (block.used && address < start + block.size).then_some(block)
}

/// True if the address lies in a block in use.
pub fn is_pinned(address: *const u8) -> bool {
    containing(&mut PINNED.lock(), address as usize).is_some()
}

/// Work of a stream uses the block this address lies in.
pub fn record(address: *const u8, device: i32, stream: u32) -> bool {
    let mut inner = PINNED.lock();
    let Some(b) = containing(&mut inner, address as usize) else { return false };
    if !b.users.contains(&(device, stream)) {
        b.users.push((device, stream));
    }
    true
}

/// Returns the free blocks to the system.
pub fn empty_cache() {
    let mut inner = PINNED.lock();
    inner.settle();
    for (size, addresses) in std::mem::take(&mut inner.free) {
        for address in addresses {
            inner.blocks.remove(&address);
            inner.stats.segments.decrease(1);
            inner.stats.reserved_bytes.decrease(size as i64);
            inner.stats.num_host_free += 1;
            if let Ok(layout) = layout(size) {
                // SAFETY: allocated with this layout, free, and no event is left on it.
                unsafe { std::alloc::dealloc(address as *mut u8, layout) };
            }
        }
    }
}

/// The statistics.
pub fn stats() -> HostStats {
    PINNED.lock().stats
}

/// Resets peaks, or sums and counters.
pub fn reset_stats(peak: bool, accumulated: bool) {
    let mut inner = PINNED.lock();
    for s in inner.stats.each() {
        if peak {
            s.reset_peak();
        }
        if accumulated {
            s.reset_accumulated();
        }
    }
    if accumulated {
        inner.stats.num_host_alloc = 0;
        inner.stats.num_host_free = 0;
    }
}
