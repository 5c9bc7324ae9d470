//! The daemon, as its clients see it.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

#[path = "../common/mod.rs"]
mod common;
mod dumps;
mod executors;
mod hostile;
mod kept;
mod nodes;
mod requests;
mod start;
mod stuck;
#[path = "../support/mod.rs"]
mod support;
