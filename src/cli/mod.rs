//! One file a subcommand.

pub mod cuda_probe;
