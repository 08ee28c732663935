//! The threads that share the work of one kernel.
//!
//! A job is a number of tasks; which thread takes which task never shows in a result. The caller takes tasks too, and
//! a thread that waits for the device stands in for a worker through [`Helper`] instead of sleeping: never do more threads
//! work on a job than there are processors for.

use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// How long an idle worker looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(60);

struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    panicked: AtomicBool,
}

// SAFETY: `body` points to a `Sync` closure that outlives the job: `parallel_for` returns only when `done == tasks`,
// and no thread calls `body` after it failed to take a task.
unsafe impl Send for Job {}
// SAFETY: as above; the counters are atomic.
unsafe impl Sync for Job {}

impl Job {
    /// Takes tasks until none is left, or `enough` says so between two of them; true if it took any.
    fn work_until(&self, enough: impl Fn() -> bool) -> bool {
        let mut any = false;
        while !enough() {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.tasks {
                return any;
            }
            any = true;
            // SAFETY: a task was taken, so `parallel_for` still waits and the closure is alive.
            let body = unsafe { &*self.body };
            // A task that panics still counts as done: the closure must not be left while others run it.
            if catch_unwind(AssertUnwindSafe(|| body(i))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
        any
    }

    fn work(&self) -> bool {
        self.work_until(|| false)
    }

    fn is_exhausted(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.tasks
    }

    /// Passes a panic of a task on to the thread that called for it.
    fn check(&self) {
        assert!(!self.panicked.load(Ordering::Relaxed), "a task of a kernel panicked");
    }
}

struct Pool {
    threads: usize,
    current: Mutex<Option<Arc<Job>>>,
    /// Address of the current job or null: what a spinning thread looks at without taking the lock.
    hint: AtomicPtr<Job>,
    sleeping: AtomicUsize,
    /// Threads that stand in for workers.
    helpers: AtomicUsize,
    wake: Condvar,
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::start);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    fn start() -> Pool {
        let configured =
            std::env::var("OMP_NUM_THREADS").ok().and_then(|v| v.trim().parse::<usize>().ok()).filter(|n| *n > 0);
        let threads = configured.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
        for i in 1..threads {
            std::thread::Builder::new()
                .name(format!("neuron-worker-{i}"))
                .spawn(move || POOL.serve(i))
                .expect("the operating system refused a worker thread");
        }
        Pool {
            threads,
            current: Mutex::new(None),
            hint: AtomicPtr::new(std::ptr::null_mut()),
            sleeping: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            wake: Condvar::new(),
        }
    }

    fn take(&self) -> Option<Arc<Job>> {
        if self.hint.load(Ordering::Acquire).is_null() {
            return None;
        }
        self.current.lock().clone()
    }

    /// A helper has the place of the worker of this number, 1 to `threads - 1`: both would only share a processor.
    fn is_replaced(&self, worker: usize) -> bool {
        worker + self.helpers.load(Ordering::Relaxed) >= self.threads
    }

    fn serve(&self, worker: usize) -> ! {
        INSIDE.set(true);
        let mut idle_since = Instant::now();
        loop {
            if self.take().is_some_and(|job| job.work_until(|| self.is_replaced(worker))) {
                idle_since = Instant::now();
                continue;
            }
            if idle_since.elapsed() < SPIN && !self.is_replaced(worker) {
                std::hint::spin_loop();
                continue;
            }
            let mut slot = self.current.lock();
            self.sleeping.fetch_add(1, Ordering::Relaxed);
            while slot.as_ref().is_none_or(|job| job.is_exhausted()) || self.is_replaced(worker) {
                self.wake.wait(&mut slot);
            }
            self.sleeping.fetch_sub(1, Ordering::Relaxed);
            drop(slot);
            idle_since = Instant::now();
        }
    }

    /// Wakes workers for a job of so many tasks.
    fn wake(&self, tasks: usize) {
        if self.sleeping.load(Ordering::Relaxed) == 0 {
            return;
        }
        let helpers = self.helpers.load(Ordering::SeqCst);
        let wanted = (tasks - 1).min(self.threads - 1).saturating_sub(helpers);
        if helpers > 0 && wanted > 0 {
            // One alone might be a worker that is replaced.
            self.wake.notify_all();
        } else {
            (0..wanted).for_each(|_| {
                self.wake.notify_one();
            });
        }
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is erased; see `Job`.
        let body: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        let job = Arc::new(Job {
            body,
            tasks,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        {
            let mut slot = self.current.lock();
            if slot.is_some() {
                // Another device's kernel has the pool: this one runs alone.
                drop(slot);
                job.work();
                return job.check();
            }
            *slot = Some(job.clone());
            self.hint.store(Arc::as_ptr(&job).cast_mut(), Ordering::SeqCst);
        }
        self.wake(tasks);
        INSIDE.set(true);
        job.work();
        INSIDE.set(false);
        *self.current.lock() = None;
        self.hint.store(std::ptr::null_mut(), Ordering::Release);
        let mut spins = 0u32;
        while job.done.load(Ordering::Acquire) < tasks {
            spins += 1;
            if spins < 20_000 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        job.check();
    }
}

/// How many threads share a job, the caller among them: `OMP_NUM_THREADS`, else the processors of this machine.
pub fn threads() -> usize {
    POOL.threads
}

/// Calls `body(0)` to `body(tasks - 1)`, each once, in any order and on any thread; returns when all have returned.
///
/// Called from within a task it runs in place. Tasks should take tens of microseconds, and their number and extent must
/// follow from the sizes of the data alone, never from [`threads`].
pub fn parallel_for(tasks: usize, body: impl Fn(usize) + Sync) {
    if tasks <= 1 || INSIDE.get() || POOL.threads == 1 {
        (0..tasks).for_each(body);
    } else {
        POOL.run(tasks, &body);
    }
}

/// A thread that waits for the device and works on its kernels meanwhile, in the place of a worker.
#[derive(Debug)]
pub struct Helper {
    /// There are as many helpers as other threads already: this one only waits.
    spare: bool,
}

impl Helper {
    /// Takes the place of a worker until dropped.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Helper {
        let others = POOL.helpers.fetch_add(1, Ordering::SeqCst);
        Helper { spare: INSIDE.get() || others + 1 >= POOL.threads }
    }

    /// Joins the work of the kernel that runs now, if there is one; true if any was done.
    pub fn help(&self) -> bool {
        if self.spare {
            return false;
        }
        INSIDE.set(true);
        let any = POOL.take().is_some_and(|job| job.work());
        INSIDE.set(false);
        any
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        POOL.helpers.fetch_sub(1, Ordering::SeqCst);
        // A worker that slept in favour of this thread is needed again.
        if !POOL.hint.load(Ordering::SeqCst).is_null() && POOL.sleeping.load(Ordering::Relaxed) > 0 {
            let slot = POOL.current.lock();
            if slot.as_ref().is_some_and(|job| !job.is_exhausted()) {
                POOL.wake.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once() {
        for tasks in [0, 1, 2, 7, 1000] {
            let hits: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            parallel_for(tasks, |i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn nested_jobs_run_in_place() {
        let sum = AtomicUsize::new(0);
        parallel_for(4, |_| {
            parallel_for(8, |j| {
                sum.fetch_add(j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4 * 28);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let result = catch_unwind(|| {
            parallel_for(8, |i| assert_ne!(i, 3, "the planted panic"));
        });
        assert!(result.is_err());
        every_task_runs_once();
    }
}
