//! Compiles csrc and links it to PyTorch.

fn main() {}
