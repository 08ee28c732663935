//! Which operators ran on the device, and which fell back to the CPU and why.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Uses of the CPU by one operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallback {
    /// How often.
    pub count: u64,
    /// Why, and how often for that reason.
    pub reasons: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Tracking {
    executed: Mutex<Vec<Entry>>,
    fallbacks: Mutex<BTreeMap<String, Fallback>>,
}

#[derive(Debug)]
struct Entry {
    op: String,
    /// Set while the operator is in the list; cleared by [`reset`] so that the next use enters it again.
    seen: Option<&'static AtomicBool>,
}

static TRACKING: Tracking = Tracking { executed: Mutex::new(Vec::new()), fallbacks: Mutex::new(BTreeMap::new()) };

/// Notes that an operator ran. `seen` belongs to the operator: with it set this is one load.
#[inline]
pub fn executed(op: &str, seen: &'static AtomicBool) {
    if !seen.load(Ordering::Relaxed) {
        first_execution(op, seen);
    }
}

#[cold]
fn first_execution(op: &str, seen: &'static AtomicBool) {
    let mut list = TRACKING.executed.lock();
    if !seen.swap(true, Ordering::Relaxed) {
        list.push(Entry { op: op.to_string(), seen: Some(seen) });
    }
}

/// Notes that an operator ran, for callers without a flag of their own.
pub fn executed_by_name(op: &str) {
    let mut list = TRACKING.executed.lock();
    if !list.iter().any(|e| e.op == op) {
        list.push(Entry { op: op.to_string(), seen: None });
    }
}

/// Notes that an operator ran on the CPU; true the first time.
pub fn fallback(op: &str, reason: &str) -> bool {
    let mut map = TRACKING.fallbacks.lock();
    let first = !map.contains_key(op);
    if first {
        map.insert(op.to_string(), Fallback::default());
    }
    if let Some(entry) = map.get_mut(op) {
        entry.count += 1;
        match entry.reasons.get_mut(reason) {
            Some(count) => *count += 1,
            None => {
                entry.reasons.insert(reason.to_string(), 1);
            }
        }
    }
    first
}

/// Names of the operators that ran on the device since the last [`reset`], sorted.
pub fn executed_ops() -> Vec<String> {
    let mut names: Vec<String> = TRACKING.executed.lock().iter().map(|e| e.op.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The operators that ran on the CPU since the last [`reset`].
pub fn fallback_ops() -> BTreeMap<String, Fallback> {
    TRACKING.fallbacks.lock().clone()
}

/// Forgets both lists; operators are warned about again.
pub fn reset() {
    for entry in TRACKING.executed.lock().drain(..) {
        if let Some(seen) = entry.seen {
            seen.store(false, Ordering::Relaxed);
        }
    }
    TRACKING.fallbacks.lock().clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_operators_once_and_fallbacks_with_reasons() {
        static ADD: AtomicBool = AtomicBool::new(false);
        reset();
        executed("aten::add.Tensor", &ADD);
        executed("aten::add.Tensor", &ADD);
        executed_by_name("aten::mul.Tensor");
        executed_by_name("aten::add.Tensor");
        assert_eq!(executed_ops(), ["aten::add.Tensor", "aten::mul.Tensor"]);
        assert!(fallback("aten::svd", "no kernel for float64"));
        assert!(!fallback("aten::svd", "no kernel for float64"));
        assert!(!fallback("aten::svd", "complex"));
        let ops = fallback_ops();
        assert_eq!((ops["aten::svd"].count, ops["aten::svd"].reasons["complex"]), (3, 1));
        reset();
        assert!(executed_ops().is_empty() && fallback_ops().is_empty());
        executed("aten::add.Tensor", &ADD);
        assert_eq!(executed_ops(), ["aten::add.Tensor"]);
        reset();
    }
}
