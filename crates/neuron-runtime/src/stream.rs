//! Stream numbers, and the device and stream each thread works with.
//!
//! Stream 0 is the default stream. 1 to 32 are the pool of normal priority, 33 to 64 the pool of high priority; a new
//! stream is the next of its pool, as in c10.

use crate::queue::STREAMS;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most devices a process may have: c10's device index is a signed byte.
pub const MAX_DEVICES: usize = 128;

/// Streams in each pool.
pub const POOL: u32 = (STREAMS - 1) / 2;

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    static STREAM: [Cell<u8>; MAX_DEVICES] = const { [const { Cell::new(0) }; MAX_DEVICES] };
}

/// The calling thread's device.
pub fn current_device() -> i32 {
    DEVICE.get()
}

pub(crate) fn set_current_device(device: i32) {
    DEVICE.set(device);
}

/// The calling thread's stream on a device; the default stream if there is no such device.
pub fn current(device: i32) -> u32 {
    let Ok(index) = usize::try_from(device) else { return 0 };
    STREAM.with(|s| s.get(index).map_or(0, |c| u32::from(c.get())))
}

/// Makes a stream the calling thread's on a device.
pub fn set_current(device: i32, stream: u32) {
    let Ok(index) = usize::try_from(device) else { return };
    STREAM.with(|s| {
        if let Some(c) = s.get(index) {
            c.set(stream as u8);
        }
    });
}

/// Hands out the streams of a device's pools in turn.
#[derive(Debug, Default)]
pub struct Pools {
    normal: AtomicU32,
    high: AtomicU32,
}

impl Pools {
    /// The next stream; a negative priority is high.
    pub fn next(&self, priority: i32) -> u32 {
        let (counter, first) = if priority < 0 { (&self.high, 1 + POOL) } else { (&self.normal, 1) };
        first + counter.fetch_add(1, Ordering::Relaxed) % POOL
    }
}

/// The priority of a stream: lower is more urgent.
pub fn priority(stream: u64) -> i32 {
    if stream > u64::from(POOL) { -1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_go_round_and_never_give_the_default_stream() {
        let pools = Pools::default();
        let normal: Vec<u32> = (0..POOL + 1).map(|_| pools.next(0)).collect();
        assert_eq!((normal[0], normal[POOL as usize - 1], normal[POOL as usize]), (1, POOL, 1));
        assert_eq!(pools.next(-1), POOL + 1);
        assert_eq!(pools.next(1), 2);
    }

    #[test]
    fn each_thread_has_its_own_current_stream() {
        set_current(1, 7);
        assert_eq!((current(1), current(0), current(-1), current(500)), (7, 0, 0, 0));
        std::thread::spawn(|| assert_eq!(current(1), 0)).join().expect("the thread ends well");
    }
}
