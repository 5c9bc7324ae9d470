//! The `rust-ort` program: command line, daemon and executor in one binary.

fn main() {}
