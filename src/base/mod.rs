//! What everything else stands on: names, files, locks, processes, limits.

pub mod files;
pub mod footprint;
pub mod identity;
pub mod ids;
pub mod limits;
pub mod process;
pub mod sync;
