//! Devices, their memory, streams and events, and the queues that run their work.
//!
//! A device is a software NeuronCore in this process. Work is launched on its streams and runs in their order: at once
//! on the launching thread when the device is idle and the work short, else on the device's executor or on a thread
//! that waits for the device. See [`queue`].
//!
//! ```
//! use neuron_runtime::{device, Error};
//!
//! # fn main() -> Result<(), Error> {
//! let core = device::get(0)?;
//! let address = device::allocate(0, 0, 4096)?;
//! core.queue.run_host(0, 0, || Ok(()))?;
//! core.queue.synchronize(0)?;
//! device::free(address);
//! # Ok(())
//! # }
//! ```

pub mod allocator;
mod blocks;
pub mod device;
pub mod env;
pub mod error;
pub mod event;
pub mod executor;
pub mod fusion;
pub mod interrupt;
#[cfg(all(test, loom))]
mod model;
pub mod pinned;
pub mod queue;
pub mod space;
pub mod stats;
pub mod stream;
mod sync;
pub mod tracking;

pub use device::Device;
pub use error::{Error, Status};
pub use event::{Event, Signal};
pub use queue::{Launch, Queue, Work};
