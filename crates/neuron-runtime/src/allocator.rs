//! The caching allocator of a device: [`Blocks`](crate::blocks) under a lock, with a capacity.
//!
//! Allocation is stream-ordered. A block is at once reusable by the stream it was allocated on, because that stream's
//! work runs in order; work of other streams that uses it must have been recorded ([`Allocator::record`]), and is
//! waited for. Memory returns to the system when the capacity demands it or [`Allocator::empty_cache`] is called.

use crate::blocks::{self, Blocks, Freed, Tuning};
use crate::error::Error;
use crate::event::Signal;
use crate::queue::{Queue, STREAMS};
use crate::space;
use crate::stats::MemoryStats;
use crate::sync::Arc;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// How often [`Allocator::release_cached`] waits for the device while other threads keep launching.
const ATTEMPTS: u32 = 64;

type Signals = SmallVec<[Arc<Signal>; 2]>;

/// The memory of a device.
#[derive(Debug)]
pub struct Allocator {
    device: i32,
    capacity: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    blocks: Blocks,
    /// Freed blocks other streams still use, in the order of their frees.
    pending: VecDeque<(u32, Signals)>,
}

impl Inner {
    /// Frees the blocks other streams are done with.
    fn settle(&mut self, all: bool) {
        while let Some((id, signals)) = self.pending.front() {
            if !signals.iter().all(|s| s.is_done()) {
                break;
            }
            self.blocks.settle(*id);
            self.pending.pop_front();
        }
        if all {
            let blocks = &mut self.blocks;
            self.pending.retain(|(id, signals)| {
                let done = signals.iter().all(|s| s.is_done());
                if done {
                    blocks.settle(*id);
                }
                !done
            });
        }
    }
}

impl Allocator {
    pub(crate) fn new(device: i32, capacity: usize, tuning: Tuning) -> Allocator {
        let blocks = Blocks::new(space::start(device as usize), space::stride(), STREAMS, tuning);
        Allocator { device, capacity, inner: Mutex::new(Inner { blocks, pending: VecDeque::new() }) }
    }

    /// Bytes the device has.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Memory for a tensor that the stream's work uses; null for 0 bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the capacity does not suffice even after the cache was emptied. The device stays
    /// usable.
    pub fn allocate(&self, queue: &Arc<Queue>, stream: u32, size: usize) -> Result<*mut u8, Error> {
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let mut inner = self.inner.lock();
        inner.blocks.stats.num_allocation_requests += 1;
        if !inner.pending.is_empty() {
            inner.settle(false);
        }
        let rounded = blocks::round(size).filter(|s| *s <= self.capacity);
        let Some(rounded) = rounded else {
            return Err(self.out_of_memory(&mut inner, size));
        };
        if let Some(address) = inner.blocks.allocate(stream as u16, rounded, size) {
            return Ok(address as *mut u8);
        }
        if let Some(address) = self.grow(&mut inner, stream, rounded, size) {
            return Ok(address as *mut u8);
        }
        inner.blocks.stats.num_alloc_retries += 1;
        drop(inner);
        // What is cached may still be used by queued work, or wait for another stream.
        self.release_cached(queue);
        let mut inner = self.inner.lock();
        if let Some(address) = inner.blocks.allocate(stream as u16, rounded, size) {
            return Ok(address as *mut u8);
        }
        match self.grow(&mut inner, stream, rounded, size) {
            Some(address) => Ok(address as *mut u8),
            None => Err(self.out_of_memory(&mut inner, size)),
        }
    }

    /// Takes a segment from the system, if the capacity permits, and allocates from it.
    fn grow(&self, inner: &mut Inner, stream: u32, size: usize, requested: usize) -> Option<usize> {
        for tight in [false, true] {
            let segment = inner.blocks.segment_size(size, tight);
            let reserved = inner.blocks.stats.reserved_bytes[0].current as usize;
            if segment > self.capacity - reserved.min(self.capacity) {
                continue;
            }
            let Some(address) = inner.blocks.claim(segment) else { continue };
            if space::commit(address, segment).is_err() {
                // The host has less than the device's capacity just now: no different from a full device.
                inner.blocks.unclaim(address, segment);
                continue;
            }
            inner.blocks.add_segment(stream as u16, address, segment, size);
            return inner.blocks.allocate(stream as u16, size, requested);
        }
        None
    }

    /// Returns unused memory to the system, after the device's work is done.
    pub fn release_cached(&self, queue: &Arc<Queue>) {
        for _ in 0..ATTEMPTS {
            // An interrupted wait would only leave more in use.
            while queue.drain_all() == Err(Error::Interrupted) {}
            let pending: Vec<Signals> = self.inner.lock().pending.iter().map(|(_, s)| s.clone()).collect();
            for signal in pending.iter().flatten() {
                while queue.wait(signal) == Err(Error::Interrupted) {}
            }
            let mut inner = self.inner.lock();
            inner.settle(true);
            // A block that is free now was used by work launched before its free. With the lock held and the queue
            // idle, all of that work is done; otherwise another thread has launched since the wait.
            if queue.is_idle() {
                for (address, size) in inner.blocks.take_free_segments() {
                    space::release(address, size);
                    inner.blocks.unclaim(address, size);
                }
                return;
            }
        }
    }

    /// The tensor at this address is gone. Never fails: an address that is not a tensor's is ignored.
    #[inline]
    pub fn free(&self, address: *mut u8, queue_of: impl Fn(i32) -> Option<Arc<Queue>>) {
        let freed = {
            let mut inner = self.inner.lock();
            // Before the block can be handed out again: what is written to it then comes behind the note.
            if let Some((stream, bytes)) = inner.blocks.sole_user(address as usize)
                && let Some(queue) = queue_of(self.device)
            {
                queue.note_free(u32::from(stream), space::host_view(address).addr(), bytes);
            }
            inner.blocks.free(address as usize)
        };
        match freed {
            Freed::Now => {}
            Freed::After(id, users) => self.free_after(id, &users, queue_of),
            Freed::Unknown => debug_assert!(false, "freed an address that is not allocated: {address:p}"),
        }
    }

    #[cold]
    fn free_after(&self, id: u32, users: &[(i32, u32)], queue_of: impl Fn(i32) -> Option<Arc<Queue>>) {
        let signals: Signals = users
            .iter()
            .filter_map(|(device, stream)| queue_of(*device)?.record(*stream).ok())
            .filter(|s| !s.is_done())
            .collect();
        let mut inner = self.inner.lock();
        if signals.is_empty() {
            inner.blocks.settle(id);
        } else {
            inner.pending.push_back((id, signals));
        }
    }

    /// Work of a stream uses the tensor: its memory is not reused before that work, as of its free, is done.
    pub fn record(&self, address: *mut u8, device: i32, stream: u32) -> bool {
        self.inner.lock().blocks.record(address as usize, device, stream, device == self.device)
    }

    /// Returns unused memory to the system. Waits for the device.
    pub fn empty_cache(&self, queue: &Arc<Queue>) {
        self.release_cached(queue);
    }

    /// Bytes that can still be taken from the system.
    pub fn available(&self) -> usize {
        self.capacity.saturating_sub(self.inner.lock().blocks.stats.reserved_bytes[0].current as usize)
    }

    /// The statistics.
    pub fn stats(&self) -> MemoryStats {
        let mut inner = self.inner.lock();
        inner.settle(true);
        inner.blocks.stats
    }

    /// Peaks start from what is current.
    pub fn reset_peak_stats(&self) {
        self.inner.lock().blocks.stats.each().for_each(|s| s.reset_peak());
    }

    /// Sums and counters start from zero.
    pub fn reset_accumulated_stats(&self) {
        let mut inner = self.inner.lock();
        let s = &mut inner.blocks.stats;
        s.each().for_each(|s| s.reset_accumulated());
        s.num_alloc_retries = 0;
        s.num_ooms = 0;
        s.num_tensor_frees = 0;
        s.num_allocation_requests = 0;
        s.num_device_alloc = 0;
        s.num_device_free = 0;
    }

    #[cold]
    fn out_of_memory(&self, inner: &mut Inner, size: usize) -> Error {
        inner.blocks.stats.num_ooms += 1;
        let s = &inner.blocks.stats;
        let allocated = s.allocated_bytes[0].current;
        let reserved = s.reserved_bytes[0].current;
        let mut text = format!(
            "Neuron out of memory. Tried to allocate {}. Device {} has a capacity of {}, of which {} is free. {} is \
             allocated by tensors, {} is reserved and unallocated.\n\
             {:<6}{:>10}{:>14}{:>10}{:>14}{:>14}{:>14}",
            bytes(size as i64),
            self.device,
            bytes(self.capacity as i64),
            bytes(self.capacity as i64 - reserved),
            bytes(allocated),
            bytes(reserved - s.active_bytes[0].current),
            "pool",
            "segments",
            "reserved",
            "tensors",
            "allocated",
            "peak",
            "largest free",
        );
        for (pool, name) in [(1, "small"), (2, "large")] {
            let _ = write!(
                text,
                "\n{name:<6}{:>10}{:>14}{:>10}{:>14}{:>14}{:>14}",
                s.segment[pool].current,
                bytes(s.reserved_bytes[pool].current),
                s.allocation[pool].current,
                bytes(s.allocated_bytes[pool].current),
                bytes(s.allocated_bytes[pool].peak),
                bytes(inner.blocks.largest_free(pool) as i64),
            );
        }
        Error::OutOfMemory(text)
    }
}

/// A size for people: 1.50 GiB.
fn bytes(n: i64) -> String {
    let units = [("GiB", 1i64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in units {
        if n.abs() >= scale {
            return format!("{:.2} {unit}", n as f64 / scale as f64);
        }
    }
    format!("{n} bytes")
}
