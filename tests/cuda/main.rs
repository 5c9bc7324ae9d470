//! CUDA IPC between processes, on a driver without a GPU.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

mod devices;
mod faults;
mod holders;
mod measure;
mod order;
mod peer;
mod pool;
mod probe;
mod real;
mod regions;
mod sharing;
#[path = "../support/stand_in.rs"]
mod stand_in;
