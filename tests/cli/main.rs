//! The subcommands, as a shell sees them.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

mod align;
#[path = "../common/any_model.rs"]
mod any_model;
#[path = "../common/mod.rs"]
mod common;
mod confined;
mod damage;
mod doctor;
mod dot;
mod dump;
mod dumping;
mod gc;
mod print;
mod replay;
mod report;
mod sbs;
mod small_dump;
#[path = "../support/stand_in.rs"]
mod stand_in;
mod study;
#[path = "../support/mod.rs"]
mod support;
mod trust;
mod usage;
