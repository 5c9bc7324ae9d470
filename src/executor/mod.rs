//! The executor process: holds the runtime and its sessions, serves the link to the daemon and the lanes of one client at
//! a time.

mod failure;
mod lane;
mod main;
mod observing;
mod order;
mod running;
mod server;
mod session_cache;
mod tenant;
mod walls;

pub use main::main;
