//! Everything that can go wrong, and which Python exception it becomes.

use neuron_kernels::KernelError;
use thiserror::Error;

/// Which exception a failure becomes in Python: `NeuronStatus` in `csrc/neuron.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// `RuntimeError`.
    Error = 1,
    /// `IndexError`.
    IndexError = 2,
    /// `ValueError`.
    ValueError = 3,
    /// `TypeError`.
    TypeError = 4,
    /// `NotImplementedError`.
    NotImplemented = 5,
    /// `torch.OutOfMemoryError`.
    OutOfMemory = 6,
    /// No lowering or kernel: the caller falls back to the CPU.
    Unsupported = 7,
    /// A wait was interrupted; the Python exception is already set.
    Interrupted = 8,
}

/// A failure of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The device does not exist.
    #[error("Device index {index} is out of range. {}", valid_range(*.count))]
    Device {
        /// As given.
        index: i32,
        /// Devices of this process.
        count: i32,
    },
    /// The stream does not exist.
    #[error("Stream {stream} does not exist on device {device}")]
    Stream {
        /// As given.
        stream: u64,
        /// The device asked.
        device: i32,
    },
    /// The process forked after the runtime had started; threads and queues did not survive.
    #[error(
        "Cannot re-initialize Neuron runtime in forked subprocess. To use Neuron with multiprocessing, use the 'spawn' start method"
    )]
    Forked,
    /// The interpreter is shutting down.
    #[error("The Neuron runtime is shut down: the process is exiting")]
    ShutDown,
    /// An environment variable has a value that makes no sense.
    #[error("Invalid value for environment variable {variable}: got {got:?}, expected {expected}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// Its value.
        got: String,
        /// What it may be.
        expected: String,
    },
    /// The device's memory does not suffice. The message has the allocation table.
    #[error("{0}")]
    OutOfMemory(String),
    /// The operating system refused.
    #[error("{call} failed: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// The operating system's words.
        reason: String,
    },
    /// A launch failed on what its values were.
    #[error("{op}: {cause}{}", trace_text(.trace.as_deref()))]
    Launch {
        /// The operator, `aten::index_select`.
        op: &'static str,
        /// What its kernel said.
        cause: KernelError,
        /// Where in Python it was issued, if stack traces are enabled.
        trace: Option<Box<str>>,
    },
    /// A kernel panicked: a bug of this software.
    #[error("{op}: internal error: {message}{}", trace_text(.trace.as_deref()))]
    Panic {
        /// The operator.
        op: &'static str,
        /// The panic's message.
        message: String,
        /// Where in Python it was issued, if stack traces are enabled.
        trace: Option<Box<str>>,
    },
    /// `elapsed_time` of an event made without timing.
    #[error("Event was not created with timing enabled")]
    EventTiming,
    /// An event that was never recorded.
    #[error("Event has not been recorded")]
    EventNotRecorded,
    /// The work before an event still runs.
    #[error("Both events must be completed before calculating elapsed time.")]
    EventNotCompleted,
    /// Events of different devices have no common clock.
    #[error("Events must be on the same device")]
    EventDevices,
    /// An event belongs to the device it was first recorded on.
    #[error("Event device {event} does not match recording stream's device {stream}.")]
    EventDevice {
        /// Of the event.
        event: i32,
        /// Of the stream.
        stream: i32,
    },
    /// Waiting was interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
    /// Any other value the caller should not have passed.
    #[error("{0}")]
    Value(String),
    /// Any other failure.
    #[error("{0}")]
    Runtime(String),
}

impl Error {
    /// The exception this becomes.
    pub fn status(&self) -> Status {
        match self {
            Error::OutOfMemory(_) => Status::OutOfMemory,
            Error::Interrupted => Status::Interrupted,
            Error::Environment { .. } | Error::Value(_) => Status::ValueError,
            Error::Launch { cause, op, .. } => match cause {
                // PyTorch's gather and scatter raise RuntimeError where all other indexing raises IndexError.
                KernelError::IndexOutOfRange { .. } if op.contains("::gather") || op.contains("::scatter") => {
                    Status::Error
                }
                KernelError::IndexOutOfRange { .. } | KernelError::TargetOutOfRange { .. } => Status::IndexError,
                KernelError::Unsupported { .. } => Status::NotImplemented,
                _ => Status::Error,
            },
            _ => Status::Error,
        }
    }

    /// The last operating system error of this thread.
    pub(crate) fn system(call: &'static str) -> Self {
        Error::System { call, reason: std::io::Error::last_os_error().to_string() }
    }
}

fn valid_range(count: i32) -> String {
    if count == 0 {
        "There are no devices in this process".to_string()
    } else {
        format!("Valid range is 0 to {} for this process", count - 1)
    }
}

fn trace_text(trace: Option<&str>) -> String {
    trace.map_or_else(String::new, |t| format!("\nThe operator was issued here (most recent call last):\n{t}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_range_names_the_process() {
        let e = Error::Device { index: 9, count: 4 };
        assert_eq!(e.to_string(), "Device index 9 is out of range. Valid range is 0 to 3 for this process");
    }

    #[test]
    fn kernel_errors_keep_their_exception() {
        let cause = KernelError::IndexOutOfRange { index: 7, dim: 0, size: 3 };
        let e = Error::Launch { op: "aten::index_select", cause, trace: Some("  File \"a.py\", line 3".into()) };
        assert_eq!(e.status(), Status::IndexError);
        let text = e.to_string();
        assert!(text.starts_with("aten::index_select: index 7 is out of bounds for dimension 0 with size 3\n"));
        assert!(text.ends_with("File \"a.py\", line 3"));
        assert_eq!(
            Error::Launch { op: "aten::div", cause: KernelError::ZeroDivision, trace: None }.to_string(),
            "aten::div: ZeroDivisionError"
        );
    }
}
