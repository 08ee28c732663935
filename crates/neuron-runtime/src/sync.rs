//! The synchronization primitives of the queue and event logic: parking_lot and std, or loom's models of them.
//!
//! The model checker explores every interleaving of the same code, so the loom versions have the parking_lot interface.

#[cfg(not(loom))]
mod primitives {
    pub(crate) use parking_lot::{Condvar, Mutex};
    use std::cell::Cell;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    pub(crate) use std::thread::JoinHandle;

    /// How long a thread looks for something to do before it sleeps.
    pub(crate) const SPIN: Duration = Duration::from_micros(50);

    pub(crate) use neuron_kernels::pool::Helper;

    pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(body)
    }

    thread_local! {
        static RUNNING: Cell<usize> = const { Cell::new(0) };
    }

    /// Notes which queue's work the calling thread runs; returns what it ran before.
    pub(crate) fn set_running(queue: usize) -> usize {
        RUNNING.replace(queue)
    }

    /// Which queue's work the calling thread runs; 0: none's.
    pub(crate) fn running() -> usize {
        RUNNING.get()
    }
}

#[cfg(loom)]
mod primitives {
    // Receivers of type `&Arc<Self>` exist for this one only; loom's would check reference counts, which is not at stake.
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    pub(crate) use std::sync::Arc;
    use std::time::Duration;

    pub(crate) use loom::thread::JoinHandle;

    /// A model does not spin: it would only repeat states.
    pub(crate) const SPIN: Duration = Duration::ZERO;

    /// In a model no kernel runs.
    pub(crate) struct Helper;

    impl Helper {
        pub(crate) fn new() -> Helper {
            Helper
        }

        pub(crate) fn help(&self) -> bool {
            false
        }
    }

    pub(crate) fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(loom::thread::spawn(body))
    }

    loom::thread_local! {
        static RUNNING: Cell<usize> = Cell::new(0);
    }

    pub(crate) fn set_running(queue: usize) -> usize {
        RUNNING.with(|r| r.replace(queue))
    }

    pub(crate) fn running() -> usize {
        RUNNING.with(Cell::get)
    }

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("a model does not panic under a lock")))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("present outside a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("present outside a wait")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("present outside a wait");
            guard.0 = Some(self.0.wait(inner).expect("a model does not panic under a lock"));
        }

        /// Without the timeout: a model must not need it.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub(crate) use primitives::*;
