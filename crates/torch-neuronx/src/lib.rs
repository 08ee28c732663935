//! The extension module.

pub mod abi;
