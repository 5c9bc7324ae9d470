//! The daemon: listens, gives each connection a thread, lends executors, and survives everything its clients and
//! executors do. The way of a request: [`serve`] → `connection` → `requests`, one file a kind of request.

mod client;
mod connection;
mod dumps;
mod errors;
mod executors;
mod last_steps;
mod ledger;
pub mod libraries;
mod listener;
mod logs;
mod old_state;
pub mod paths;
mod places;
pub mod plans;
mod requests;
mod shared;
pub mod socket;
pub mod status;
mod verdicts;

pub use listener::{ServeError, Served, serve};
pub use shared::{Config, Ended};
