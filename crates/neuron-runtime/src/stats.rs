//! Memory statistics, as laid out in `csrc/neuron.h`.

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// Highest since the last reset.
    pub peak: i64,
    /// Sum of increases.
    pub allocated: i64,
    /// Sum of decreases.
    pub freed: i64,
}

impl Stat {
    pub(crate) fn increase(&mut self, by: i64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    pub(crate) fn decrease(&mut self, by: i64) {
        self.current -= by;
        self.freed += by;
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.freed = 0;
    }
}

/// A quantity of both pools: the sum, the small pool, the large pool.
pub type Stats = [Stat; 3];

/// A device's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MemoryStats {
    /// Blocks in use by tensors.
    pub allocation: Stats,
    /// Segments held from the system.
    pub segment: Stats,
    /// Blocks in use by tensors or by work of other streams.
    pub active: Stats,
    /// Free blocks that are part of a segment.
    pub inactive_split: Stats,
    /// Bytes of `allocation`.
    pub allocated_bytes: Stats,
    /// Bytes of `segment`.
    pub reserved_bytes: Stats,
    /// Bytes of `active`.
    pub active_bytes: Stats,
    /// Bytes of `inactive_split`.
    pub inactive_split_bytes: Stats,
    /// Bytes that were asked for, before rounding.
    pub requested_bytes: Stats,
    /// How often the cache was emptied to serve a request.
    pub num_alloc_retries: i64,
    /// How often a request failed.
    pub num_ooms: i64,
    /// Blocks freed by tensors.
    pub num_tensor_frees: i64,
    /// Requests.
    pub num_allocation_requests: i64,
    /// Segments taken from the system.
    pub num_device_alloc: i64,
    /// Segments returned to the system.
    pub num_device_free: i64,
    /// Largest block that is split; -1: any.
    pub max_split_size: i64,
}

impl MemoryStats {
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Stat> {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
        .into_iter()
        .flatten()
    }
}

/// Pinned host memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct HostStats {
    /// Blocks in use.
    pub allocations: Stat,
    /// Blocks held from the system.
    pub segments: Stat,
    /// Bytes in use.
    pub allocated_bytes: Stat,
    /// Bytes held from the system.
    pub reserved_bytes: Stat,
    /// Blocks taken from the system.
    pub num_host_alloc: i64,
    /// Blocks returned to the system.
    pub num_host_free: i64,
}

impl HostStats {
    pub(crate) fn each(&mut self) -> [&mut Stat; 4] {
        [&mut self.allocations, &mut self.segments, &mut self.allocated_bytes, &mut self.reserved_bytes]
    }
}
