//! What everything else stands on: names, files, locks, threads, processes, limits.

pub mod bytes;
mod cgroup;
#[allow(unsafe_code)]
pub mod exit;
pub mod exit_status;
pub mod files;
pub mod footprint;
pub mod identity;
pub mod ids;
#[allow(unsafe_code)]
pub mod inherited;
pub mod limits;
pub mod log;
pub mod memory;
pub mod parallel;
pub mod process;
pub mod quoted;
pub mod sync;
