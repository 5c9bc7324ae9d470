//! Call slots and doorbells in shared memory: the layout of docs/design/protocol.md, from both sides.

mod client;
mod executor;
mod memory;
mod order;
#[cfg(test)]
mod tests;

pub use client::{Answer, ClientLane};
pub use executor::{ExecutorLane, Failure, Wake};
pub use memory::{LaneError, Lanes, LanesError};
pub use order::{End, N_SLOTS, Numbers, Slot};
