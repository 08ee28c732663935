//! Temporaries in one arena: those that are not needed at the same time share memory.

use crate::program::{ALIGNMENT, Slot, Step};

/// A temporary, while steps refer to it by an address that no other has.
struct Temporary {
    start: usize,
    end: usize,
    first: usize,
    last: usize,
}

/// Moves the temporaries of steps, laid out one after the other in `bytes`, to where they share memory. Returns how many
/// bytes are left. `starts` of temporaries are found from the slots: views of one lie inside of it.
pub(crate) fn assign(steps: &mut [Step], starts: &[usize], bytes: usize) -> usize {
    let mut all: Vec<Temporary> = starts
        .iter()
        .enumerate()
        .map(|(i, start)| Temporary {
            start: *start,
            end: starts.get(i + 1).copied().unwrap_or(bytes),
            first: usize::MAX,
            last: 0,
        })
        .collect();
    let find = |offset: usize| starts.partition_point(|s| *s <= offset) - 1;
    for (i, step) in steps.iter_mut().enumerate() {
        for slot in step.slots() {
            if let Slot::Temporary { offset } = slot {
                let t = &mut all[find(*offset)];
                t.first = t.first.min(i);
                t.last = t.last.max(i);
            }
        }
    }
    // Largest first, each at the lowest place that is free as long as it lives.
    let mut order: Vec<usize> = (0..all.len()).filter(|t| all[*t].first != usize::MAX).collect();
    order.sort_by_key(|t| std::cmp::Reverse(all[*t].end - all[*t].start));
    let mut placed: Vec<(usize, usize, usize)> = Vec::new(); // place, end, temporary; in order of places
    let mut moved = vec![0; all.len()];
    let mut total = 0;
    for t in order {
        let size = all[t].end - all[t].start;
        let mut at = 0;
        for (place, end, other) in &placed {
            let together = all[*other].first <= all[t].last && all[t].first <= all[*other].last;
            if together && *place < at + size {
                at = at.max(*end);
            }
        }
        debug_assert_eq!(at % ALIGNMENT, 0);
        let position = placed.partition_point(|p| p.0 < at);
        placed.insert(position, (at, at + size, t));
        moved[t] = at;
        total = total.max(at + size);
    }
    for step in steps {
        for slot in step.slots() {
            if let Slot::Temporary { offset } = slot {
                let t = find(*offset);
                *offset = moved[t] + (*offset - starts[t]);
            }
        }
    }
    total
}
