//! Against naive loops.
