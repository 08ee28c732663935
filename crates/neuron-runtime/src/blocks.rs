//! The blocks of a device's memory: how requests are rounded, where free blocks wait, how they split and join.
//!
//! Requests up to 1 MiB come from the *small* pool: segments of 2 MiB, sizes in steps of 512 bytes. A freed small block
//! goes to the bin of its size, last in first out, and is joined with its neighbours only when the bins do not serve a
//! request. Larger requests come from the *large* pool, best fit. Free blocks belong to the stream they were allocated
//! on, so reuse is in stream order.
//!
//! Nothing here locks, waits or counts against the capacity: that is [`crate::allocator`].

use crate::space::GRANULE;
use crate::stats::{MemoryStats, Stats};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes are multiples of this.
pub(crate) const STEP: usize = 512;
/// Largest request of the small pool.
pub(crate) const SMALL: usize = 1 << 20;
/// Requests of the large pool below `LARGE_REQUEST` share segments of this size.
const SHARED_SEGMENT: usize = 20 << 20;
/// Requests from here on have segments of their own.
const LARGE_REQUEST: usize = 10 << 20;

const SMALL_POOL: usize = 1;
const LARGE_POOL: usize = 2;
const NONE: u32 = u32::MAX;
const BINS: usize = SMALL / STEP + 1;
const SLOTS: usize = GRANULE / STEP;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The slot of the table is unused.
    Vacant,
    /// Free, in the bin of its size.
    Binned,
    /// Free, in the tree of its stream and pool.
    Free,
    /// Owned by a tensor.
    Used,
    /// Freed by its tensor; work of other streams may still use it.
    Pending,
}

#[derive(Debug)]
struct Block {
    address: usize,
    size: usize,
    requested: usize,
    /// Neighbours in the segment.
    prev: u32,
    next: u32,
    /// Next in the bin, or next vacant.
    link: u32,
    stream: u16,
    pool: u8,
    state: State,
    /// Other streams whose work uses it: device and stream.
    users: SmallVec<[(i32, u32); 2]>,
}

impl Block {
    fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

#[derive(Debug)]
struct StreamBlocks {
    bins: Box<[u32; BINS]>,
    binned: usize,
    /// Free blocks of each pool by size, then address.
    free: [BTreeSet<(usize, usize, u32)>; 2],
}

/// How the large pool treats its largest blocks: `TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Larger free blocks are not split.
    pub(crate) max_split_size: usize,
    /// A block that is not split may exceed its request by this much.
    pub(crate) max_non_split_rounding: usize,
}

/// What [`Blocks::free`] needs from the caller.
pub(crate) enum Freed {
    /// Nothing: the block is free.
    Now,
    /// Signals from these streams, then [`Blocks::settle`].
    After(u32, SmallVec<[(i32, u32); 2]>),
    /// The address is no block in use.
    Unknown,
}

/// All blocks of a device.
#[derive(Debug)]
pub(crate) struct Blocks {
    start: usize,
    table: Vec<Block>,
    vacant: u32,
    streams: Vec<Option<StreamBlocks>>,
    /// Per granule of the address space, the blocks of the small segment there by slot.
    small: Vec<Option<Box<[u32; SLOTS]>>>,
    large: FxHashMap<usize, u32>,
    /// Unused address space: start and size.
    unmapped: BTreeMap<usize, usize>,
    tuning: Tuning,
    pub(crate) stats: MemoryStats,
}

/// The size of the block for a request.
pub(crate) fn round(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(STEP)
}

fn pool_of(size: usize) -> usize {
    if size <= SMALL { SMALL_POOL } else { LARGE_POOL }
}

fn increase(stats: &mut Stats, pool: usize, by: usize) {
    stats[0].increase(by as i64);
    stats[pool].increase(by as i64);
}

fn decrease(stats: &mut Stats, pool: usize, by: usize) {
    stats[0].decrease(by as i64);
    stats[pool].decrease(by as i64);
}

impl Blocks {
    pub(crate) fn new(start: usize, space: usize, streams: u32, tuning: Tuning) -> Blocks {
        let max_split_size = if tuning.max_split_size == usize::MAX { -1 } else { tuning.max_split_size as i64 };
        Blocks {
            start,
            table: Vec::new(),
            vacant: NONE,
            streams: (0..streams).map(|_| None).collect(),
            small: (0..space / GRANULE).map(|_| None).collect(),
            large: FxHashMap::default(),
            unmapped: BTreeMap::from([(start, space)]),
            tuning,
            stats: MemoryStats { max_split_size, ..MemoryStats::default() },
        }
    }

    fn block(&mut self, id: u32) -> &mut Block {
        &mut self.table[id as usize]
    }

    fn stream(&mut self, stream: u16) -> &mut StreamBlocks {
        self.streams[stream as usize].get_or_insert_with(|| StreamBlocks {
            bins: Box::new([NONE; BINS]),
            binned: 0,
            free: [BTreeSet::new(), BTreeSet::new()],
        })
    }

    fn find(&self, address: usize) -> Option<u32> {
        let offset = address.wrapping_sub(self.start);
        match self.small.get(offset / GRANULE)? {
            Some(slots) => {
                let id = slots[offset % GRANULE / STEP];
                (id != NONE && self.table[id as usize].address == address).then_some(id)
            }
            None => self.large.get(&address).copied(),
        }
    }

    fn enter(&mut self, id: u32) {
        let (address, pool) = (self.table[id as usize].address, self.table[id as usize].pool);
        if pool as usize == SMALL_POOL {
            let offset = address - self.start;
            if let Some(slots) = &mut self.small[offset / GRANULE] {
                slots[offset % GRANULE / STEP] = id;
            }
        } else {
            self.large.insert(address, id);
        }
    }

    fn remove(&mut self, id: u32) {
        let (address, pool) = (self.table[id as usize].address, self.table[id as usize].pool);
        if pool as usize == SMALL_POOL {
            let offset = address - self.start;
            if let Some(slots) = &mut self.small[offset / GRANULE] {
                slots[offset % GRANULE / STEP] = NONE;
            }
        } else {
            self.large.remove(&address);
        }
        let vacant = self.vacant;
        let b = self.block(id);
        b.state = State::Vacant;
        b.link = vacant;
        self.vacant = id;
    }

    fn add(&mut self, block: Block) -> u32 {
        let id = if self.vacant == NONE {
            self.table.push(block);
            (self.table.len() - 1) as u32
        } else {
            let id = self.vacant;
            self.vacant = self.table[id as usize].link;
            self.table[id as usize] = block;
            id
        };
        self.enter(id);
        id
    }

    /// A cached block for a request of the stream; `size` as given by [`round`].
    #[inline]
    pub(crate) fn allocate(&mut self, stream: u16, size: usize, requested: usize) -> Option<usize> {
        if size <= SMALL
            && let Some(Some(s)) = self.streams.get_mut(stream as usize)
        {
            let head = &mut s.bins[size / STEP];
            if *head != NONE {
                let id = *head;
                let b = &mut self.table[id as usize];
                *head = b.link;
                s.binned -= 1;
                return Some(self.hand_out(id, requested));
            }
        }
        self.allocate_from_tree(stream, size, requested)
    }

    fn allocate_from_tree(&mut self, stream: u16, size: usize, requested: usize) -> Option<usize> {
        let pool = pool_of(size);
        let mut found = self.best_fit(stream, pool, size);
        if found.is_none() && pool == SMALL_POOL && self.stream(stream).binned > 0 {
            self.join_bins(stream);
            found = self.best_fit(stream, pool, size);
        }
        let id = found?;
        self.split(id, size);
        Some(self.hand_out(id, requested))
    }

    fn best_fit(&mut self, stream: u16, pool: usize, size: usize) -> Option<u32> {
        let Tuning { max_split_size, max_non_split_rounding } = self.tuning;
        let tree = &mut self.stream(stream).free[pool - 1];
        let key = *tree.range((size, 0, 0)..).next()?;
        if pool == LARGE_POOL {
            let small_request = size < max_split_size;
            let unfit = key.0 >= max_split_size && (small_request || key.0 - size > max_non_split_rounding);
            if unfit {
                return None;
            }
        }
        tree.remove(&key);
        Some(key.2)
    }

    /// Cuts what a block that left its tree has beyond `size`, if that is worth it.
    fn split(&mut self, id: u32, size: usize) {
        let Block { address, size: have, pool, stream, next, .. } = self.table[id as usize];
        let rest = have - size;
        let worth = match pool as usize {
            SMALL_POOL => rest >= STEP,
            _ => rest > SMALL && have < self.tuning.max_split_size,
        };
        if !worth {
            return;
        }
        if self.table[id as usize].is_split() {
            decrease(&mut self.stats.inactive_split, pool as usize, 1);
            decrease(&mut self.stats.inactive_split_bytes, pool as usize, have);
        }
        let rest_id = self.add(Block {
            address: address + size,
            size: rest,
            requested: 0,
            prev: id,
            next,
            link: NONE,
            stream,
            pool,
            state: State::Free,
            users: SmallVec::new(),
        });
        if next != NONE {
            self.block(next).prev = rest_id;
        }
        let b = self.block(id);
        b.next = rest_id;
        b.size = size;
        // Both parts are free now; the caller takes the first.
        increase(&mut self.stats.inactive_split, pool as usize, 2);
        increase(&mut self.stats.inactive_split_bytes, pool as usize, have);
        self.stream(stream).free[pool as usize - 1].insert((rest, address + size, rest_id));
    }

    /// A free block that is in no bin or tree becomes a tensor's.
    #[inline]
    fn hand_out(&mut self, id: u32, requested: usize) -> usize {
        let b = &mut self.table[id as usize];
        b.state = State::Used;
        b.requested = requested;
        let (pool, size, address, split) = (b.pool as usize, b.size, b.address, b.is_split());
        let s = &mut self.stats;
        increase(&mut s.allocation, pool, 1);
        increase(&mut s.active, pool, 1);
        increase(&mut s.allocated_bytes, pool, size);
        increase(&mut s.active_bytes, pool, size);
        increase(&mut s.requested_bytes, pool, requested);
        if split {
            decrease(&mut s.inactive_split, pool, 1);
            decrease(&mut s.inactive_split_bytes, pool, size);
        }
        address
    }

    /// The stream that a tensor was allocated on and the size of its block, if no other stream uses it.
    #[inline]
    pub(crate) fn sole_user(&self, address: usize) -> Option<(u16, usize)> {
        let b = &self.table[self.find(address)? as usize];
        (b.state == State::Used && b.users.is_empty()).then_some((b.stream, b.size))
    }

    /// The tensor gives its block back.
    #[inline]
    pub(crate) fn free(&mut self, address: usize) -> Freed {
        let Some(id) = self.find(address) else { return Freed::Unknown };
        let b = &mut self.table[id as usize];
        if b.state != State::Used {
            return Freed::Unknown;
        }
        let (pool, size, requested) = (b.pool as usize, b.size, b.requested);
        let s = &mut self.stats;
        s.num_tensor_frees += 1;
        decrease(&mut s.allocation, pool, 1);
        decrease(&mut s.allocated_bytes, pool, size);
        decrease(&mut s.requested_bytes, pool, requested);
        if b.users.is_empty() {
            self.settle(id);
            return Freed::Now;
        }
        b.state = State::Pending;
        let users = std::mem::take(&mut b.users);
        Freed::After(id, users)
    }

    /// No work uses the block any more: it may be handed out again.
    #[inline]
    pub(crate) fn settle(&mut self, id: u32) {
        let b = &mut self.table[id as usize];
        let (pool, size, stream, split) = (b.pool as usize, b.size, b.stream, b.is_split());
        decrease(&mut self.stats.active, pool, 1);
        decrease(&mut self.stats.active_bytes, pool, size);
        if split {
            increase(&mut self.stats.inactive_split, pool, 1);
            increase(&mut self.stats.inactive_split_bytes, pool, size);
        }
        if pool == SMALL_POOL
            && size <= SMALL
            && let Some(s) = &mut self.streams[stream as usize]
        {
            b.state = State::Binned;
            b.link = std::mem::replace(&mut s.bins[size / STEP], id);
            s.binned += 1;
        } else {
            self.join(id);
        }
    }

    /// Joins a free block with free neighbours and enters it in its tree.
    fn join(&mut self, id: u32) {
        let (pool, stream) = (self.table[id as usize].pool as usize, self.table[id as usize].stream);
        let was_split = self.table[id as usize].is_split();
        let (mut first, mut joined) = (id, 1);
        let before = self.table[id as usize].size;
        let mut added = 0;
        let prev = self.table[id as usize].prev;
        if prev != NONE && self.table[prev as usize].state == State::Free {
            added += self.take_from_tree(prev);
            self.absorb(prev, id);
            first = prev;
            joined += 1;
        }
        let next = self.table[first as usize].next;
        if next != NONE && self.table[next as usize].state == State::Free {
            added += self.take_from_tree(next);
            self.absorb(first, next);
            joined += 1;
        }
        if was_split {
            // All parts were counted; one remains, if it is still a part.
            let whole = !self.table[first as usize].is_split();
            decrease(&mut self.stats.inactive_split, pool, joined - usize::from(!whole));
            if whole {
                decrease(&mut self.stats.inactive_split_bytes, pool, before + added);
            }
        }
        let b = self.block(first);
        b.state = State::Free;
        let key = (b.size, b.address, first);
        self.stream(stream).free[pool - 1].insert(key);
    }

    fn take_from_tree(&mut self, id: u32) -> usize {
        let Block { address, size, pool, stream, .. } = self.table[id as usize];
        self.stream(stream).free[pool as usize - 1].remove(&(size, address, id));
        size
    }

    /// The left block takes over its right neighbour, which ceases to be.
    fn absorb(&mut self, left: u32, right: u32) {
        let (size, next) = (self.table[right as usize].size, self.table[right as usize].next);
        self.remove(right);
        let l = self.block(left);
        l.size += size;
        l.next = next;
        if next != NONE {
            self.block(next).prev = left;
        }
    }

    fn join_bins(&mut self, stream: u16) {
        let s = self.stream(stream);
        s.binned = 0;
        let heads: Vec<u32> = s.bins.iter_mut().map(|h| std::mem::replace(h, NONE)).filter(|h| *h != NONE).collect();
        for mut id in heads {
            while id != NONE {
                let link = self.table[id as usize].link;
                self.join(id);
                id = link;
            }
        }
    }

    /// The size of the segment that would serve a request; the smallest that could, if `tight`.
    pub(crate) fn segment_size(&self, size: usize, tight: bool) -> usize {
        match size {
            0..=SMALL => GRANULE,
            _ if size < LARGE_REQUEST && !tight => SHARED_SEGMENT,
            _ => size.next_multiple_of(GRANULE),
        }
    }

    /// Address space for a segment.
    pub(crate) fn claim(&mut self, size: usize) -> Option<usize> {
        let (&start, &have) = self.unmapped.iter().find(|(_, have)| **have >= size)?;
        self.unmapped.remove(&start);
        if have > size {
            self.unmapped.insert(start + size, have - size);
        }
        Some(start)
    }

    /// Gives address space back.
    pub(crate) fn unclaim(&mut self, mut start: usize, mut size: usize) {
        if let Some((&before, &have)) = self.unmapped.range(..start).next_back()
            && before + have == start
        {
            start = before;
            size += have;
        }
        if let Some(after) = self.unmapped.remove(&(start + size)) {
            size += after;
        }
        self.unmapped.insert(start, size);
    }

    /// A new segment becomes one free block of the stream.
    pub(crate) fn add_segment(&mut self, stream: u16, address: usize, size: usize, request: usize) {
        let pool = pool_of(request);
        if pool == SMALL_POOL {
            self.small[(address - self.start) / GRANULE] = Some(Box::new([NONE; SLOTS]));
        }
        let id = self.add(Block {
            address,
            size,
            requested: 0,
            prev: NONE,
            next: NONE,
            link: NONE,
            stream,
            pool: pool as u8,
            state: State::Free,
            users: SmallVec::new(),
        });
        self.stream(stream).free[pool - 1].insert((size, address, id));
        increase(&mut self.stats.segment, pool, 1);
        increase(&mut self.stats.reserved_bytes, pool, size);
        self.stats.num_device_alloc += 1;
    }

    /// Removes the segments that hold no block in use; the caller unmaps them and gives their address space back.
    pub(crate) fn take_free_segments(&mut self) -> Vec<(usize, usize)> {
        let mut taken = Vec::new();
        for stream in 0..self.streams.len() as u16 {
            if self.streams[stream as usize].is_none() {
                continue;
            }
            self.join_bins(stream);
            for pool in [SMALL_POOL, LARGE_POOL] {
                let table = &self.table;
                let Some(s) = &mut self.streams[stream as usize] else { continue };
                let whole: Vec<_> =
                    s.free[pool - 1].extract_if(.., |(_, _, id)| !table[*id as usize].is_split()).collect();
                for (size, address, id) in whole {
                    self.remove(id);
                    if pool == SMALL_POOL {
                        self.small[(address - self.start) / GRANULE] = None;
                    }
                    decrease(&mut self.stats.segment, pool, 1);
                    decrease(&mut self.stats.reserved_bytes, pool, size);
                    self.stats.num_device_free += 1;
                    taken.push((address, size));
                }
            }
        }
        taken
    }

    /// Work of another stream uses the block at this address, which may lie inside it.
    pub(crate) fn record(&mut self, address: usize, device: i32, stream: u32, own: bool) -> bool {
        let Some(id) = self.find(address) else { return false };
        let b = self.block(id);
        let user = (device, stream);
        if b.state == State::Used && !(own && u32::from(b.stream) == stream) && !b.users.contains(&user) {
            b.users.push(user);
        }
        true
    }

    /// The largest free block of a pool, over all streams.
    pub(crate) fn largest_free(&self, pool: usize) -> usize {
        let trees = self.streams.iter().flatten().filter_map(|s| s.free[pool - 1].last());
        trees.map(|key| key.0).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 1 << 40;
    const SPACE: usize = 4 << 30;
    const ANY: Tuning = Tuning { max_split_size: usize::MAX, max_non_split_rounding: 20 << 20 };

    fn allocate(blocks: &mut Blocks, stream: u16, size: usize) -> usize {
        let rounded = round(size).expect("small enough");
        if let Some(address) = blocks.allocate(stream, rounded, size) {
            return address;
        }
        let segment = blocks.segment_size(rounded, false);
        let at = blocks.claim(segment).expect("the space suffices");
        blocks.add_segment(stream, at, segment, rounded);
        blocks.allocate(stream, rounded, size).expect("the segment suffices")
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }
    }

    /// Recounts what the statistics say from the table itself.
    fn check(blocks: &Blocks) {
        let live = || blocks.table.iter().filter(|b| b.state != State::Vacant);
        for pool in [SMALL_POOL, LARGE_POOL] {
            let of = |f: &dyn Fn(&Block) -> bool| {
                let found: Vec<_> = live().filter(|b| b.pool as usize == pool && f(b)).collect();
                (found.len() as i64, found.iter().map(|b| b.size as i64).sum::<i64>())
            };
            let s = &blocks.stats;
            let is_free = |b: &Block| matches!(b.state, State::Free | State::Binned);
            assert_eq!(of(&|b| b.state == State::Used), (s.allocation[pool].current, s.allocated_bytes[pool].current));
            assert_eq!(of(&|b| !is_free(b)), (s.active[pool].current, s.active_bytes[pool].current));
            let split = (s.inactive_split[pool].current, s.inactive_split_bytes[pool].current);
            assert_eq!(of(&|b| is_free(b) && b.is_split()), split);
            assert_eq!(of(&|_| true).1, s.reserved_bytes[pool].current);
        }
        let mut by_address: Vec<_> = live().map(|b| (b.address, b.size)).collect();
        by_address.sort_unstable();
        assert!(by_address.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "blocks overlap");
        assert!(by_address.iter().all(|(address, _)| blocks.find(*address).is_some()));
    }

    #[test]
    fn random_requests_never_overlap_and_everything_is_joined_in_the_end() {
        for seed in 0..6 {
            let mut random = Random(seed);
            let mut blocks = Blocks::new(START, SPACE, 3, ANY);
            let mut held: Vec<usize> = Vec::new();
            let mut pending: Vec<u32> = Vec::new();
            for i in 0..4000 {
                match random.below(10) {
                    0..5 => {
                        let bits = if random.below(8) == 0 { 25 } else { 18 };
                        let magnitude = 1 << random.below(bits);
                        let size = 1 + random.below(magnitude) as usize;
                        let address = allocate(&mut blocks, random.below(3) as u16, size);
                        assert_eq!(address % STEP, 0);
                        held.push(address);
                    }
                    5..9 if !held.is_empty() => {
                        let address = held.swap_remove(random.below(held.len() as u64) as usize);
                        if random.below(10) == 0 {
                            assert!(blocks.record(address, 0, 2, false));
                        }
                        match blocks.free(address) {
                            Freed::Now => {}
                            Freed::After(id, users) => {
                                assert_eq!(users[..], [(0, 2)]);
                                pending.push(id);
                            }
                            Freed::Unknown => panic!("it was allocated"),
                        }
                        assert!(matches!(blocks.free(address), Freed::Unknown), "freed twice");
                    }
                    _ => pending.drain(..).for_each(|id| blocks.settle(id)),
                }
                if i % 200 == 0 {
                    check(&blocks);
                }
            }
            pending.drain(..).for_each(|id| blocks.settle(id));
            for address in held {
                assert!(matches!(blocks.free(address), Freed::Now));
            }
            check(&blocks);
            for (address, size) in blocks.take_free_segments() {
                blocks.unclaim(address, size);
            }
            assert!(blocks.table.iter().all(|b| b.state == State::Vacant));
            assert_eq!(blocks.unmapped, BTreeMap::from([(START, SPACE)]));
            assert_eq!(blocks.stats.reserved_bytes[0].current, 0);
            assert_eq!(blocks.stats.num_device_alloc, blocks.stats.num_device_free);
        }
    }

    #[test]
    fn freed_small_blocks_are_the_next_of_their_size() {
        let mut blocks = Blocks::new(START, SPACE, 1, ANY);
        let (a, b) = (allocate(&mut blocks, 0, 100), allocate(&mut blocks, 0, 500));
        blocks.free(a);
        blocks.free(b);
        assert_eq!(allocate(&mut blocks, 0, 512), b);
        assert_eq!(allocate(&mut blocks, 0, 1), a);
        assert_eq!(blocks.stats.allocated_bytes[0].current, 1024);
        assert_eq!(blocks.stats.requested_bytes[0].current, 513);
        assert_eq!(blocks.stats.requested_bytes[0].peak, 600);
    }

    #[test]
    fn bins_are_joined_before_a_segment_is_added() {
        let mut blocks = Blocks::new(START, SPACE, 1, ANY);
        let small: Vec<usize> = (0..SLOTS).map(|_| allocate(&mut blocks, 0, STEP)).collect();
        assert_eq!(blocks.stats.segment[0].current, 1);
        small.into_iter().for_each(|a| drop(blocks.free(a)));
        allocate(&mut blocks, 0, SMALL);
        assert_eq!(blocks.stats.segment[0].current, 1);
    }

    #[test]
    fn large_blocks_beyond_the_limit_are_not_split() {
        let tuning = Tuning { max_split_size: 64 << 20, max_non_split_rounding: 8 << 20 };
        let mut blocks = Blocks::new(START, SPACE, 1, tuning);
        let a = allocate(&mut blocks, 0, 100 << 20);
        blocks.free(a);
        assert_ne!(allocate(&mut blocks, 0, 32 << 20), a, "a small request does not take it");
        assert_ne!(allocate(&mut blocks, 0, 80 << 20), a, "it would waste too much");
        assert_eq!(allocate(&mut blocks, 0, 96 << 20), a);
        assert_eq!(blocks.stats.max_split_size, 64 << 20);
    }
}
