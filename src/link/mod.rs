//! The way between two of our processes: frames between client and daemon ([`transport`]), and the private link between
//! daemon and executor ([`message`], [`socket`]).

pub mod message;
mod peer;
pub mod socket;
pub mod transport;
