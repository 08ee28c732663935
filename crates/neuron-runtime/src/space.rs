//! The devices' address space: one reserved range, an equal part per device.
//!
//! Which device an address belongs to is then arithmetic, also for addresses inside a tensor. Memory appears in the
//! range a segment at a time. In the protected mode the range stays unreadable, and memory appears at the same place
//! of a second range: the host view.

use crate::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Segments are multiples of this, and aligned to it: one huge page.
pub const GRANULE: usize = 2 << 20;

static BASE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static STRIDE: AtomicUsize = AtomicUsize::new(1);
/// Distance from the device range to the host view; 0 unless protected.
static VIEW: AtomicUsize = AtomicUsize::new(0);

/// Reserves the range for `devices` devices of `stride` bytes. Called once.
pub(crate) fn reserve(devices: usize, stride: usize, protect: bool) -> Result<(), Error> {
    let stride = stride.next_multiple_of(GRANULE);
    let base = map_reserved(devices * stride)?;
    if protect {
        VIEW.store(map_reserved(devices * stride)?.wrapping_sub(base), Ordering::Relaxed);
    }
    STRIDE.store(stride, Ordering::Relaxed);
    END.store(base + devices * stride, Ordering::Relaxed);
    BASE.store(base, Ordering::Release);
    Ok(())
}

fn map_reserved(size: usize) -> Result<usize, Error> {
    // One granule more, to align the start.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), size + GRANULE, libc::PROT_NONE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(Error::system("reserving the address space of the devices"));
    }
    Ok((p as usize).next_multiple_of(GRANULE))
}

/// The first address of a device.
pub(crate) fn start(device: usize) -> usize {
    BASE.load(Ordering::Acquire) + device * STRIDE.load(Ordering::Relaxed)
}

/// Bytes of address space of each device.
pub(crate) fn stride() -> usize {
    STRIDE.load(Ordering::Relaxed)
}

/// The device an address belongs to.
#[inline]
pub fn device_of(address: *const u8) -> Option<usize> {
    let address = address as usize;
    let base = BASE.load(Ordering::Acquire);
    if address < base || address >= END.load(Ordering::Relaxed) || base == 0 {
        return None;
    }
    Some((address - base) / STRIDE.load(Ordering::Relaxed))
}

/// Where the host finds what the device has at `address`: there, unless device memory is protected.
#[inline]
pub fn host_view(address: *const u8) -> *mut u8 {
    let view = VIEW.load(Ordering::Relaxed);
    if view == 0 || device_of(address).is_none() {
        return address.cast_mut();
    }
    address.wrapping_add(view).cast_mut()
}

/// True if device addresses differ from what the host may use.
#[inline]
pub fn is_protected() -> bool {
    VIEW.load(Ordering::Relaxed) != 0
}

/// Makes memory appear at a part of a device's range.
pub(crate) fn commit(address: usize, size: usize) -> Result<(), Error> {
    let at = host_view(address as *const u8);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the range lies in the reservation and no segment lies in it: the allocator took it from its free ranges.
    let p = unsafe { libc::mmap(at.cast(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(Error::system("mapping device memory"));
    }
    if size > GRANULE {
        // Advice: a refusal costs speed only.
        // SAFETY: the mapping was made above.
        unsafe { libc::madvise(p, size, libc::MADV_HUGEPAGE) };
    }
    Ok(())
}

/// Returns the memory of a part of a device's range to the system.
pub(crate) fn release(address: usize, size: usize) {
    let at = host_view(address as *const u8);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is a segment that holds no block and that no queued work uses. A failure leaves it mapped,
    // where the next `commit` replaces it.
    unsafe { libc::mmap(at.cast(), size, libc::PROT_NONE, flags, -1, 0) };
}
