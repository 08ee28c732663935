//! Captured graphs: a stretch of execution, recorded once and replayed as compiled programs.
//!
//! While a thread records, its launches run as always and are put on the compiler's tape ([`record`]). At the end memory is
//! told apart: what came in, what goes out, and what only existed in between ([`graph`]). A replay binds new memory to the
//! first two; of the third, only what the tape could not follow exists at all.

pub mod graph;
pub mod record;
