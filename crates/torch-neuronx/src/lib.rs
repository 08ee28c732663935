//! The extension module `torch_neuronx._C`.
//!
//! Three languages meet here: `csrc` tells PyTorch about the device and calls the runtime through the C interface of
//! `csrc/neuron.h` ([`abi`]), and the Python package asks the runtime through PyO3 functions. Loading the module
//! registers the device with PyTorch and starts nothing.

#![allow(non_snake_case, reason = "Python imports the module as torch_neuronx._C")]

pub mod abi;
mod capture;
mod python;
