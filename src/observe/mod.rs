//! Dumping and comparing while it runs: one call ([`call`]), or every node of a part ([`nodes`]).

pub mod call;
pub mod nodes;
