//! Dumping and comparing while it runs: one call ([`call`], on a device [`on_device`]), or every
//! node of a part ([`nodes`]).

pub mod call;
pub mod nodes;
pub mod on_device;
#[cfg(test)]
mod tests;
