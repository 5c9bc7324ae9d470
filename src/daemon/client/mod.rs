//! What the daemon knows of one client.

mod node_tables;
mod part;
mod state;
mod unsettled;

pub use node_tables::{Collected, NodeTables, ROW_BYTES, texts_bytes};
pub use part::Part;
pub use state::{Client, RunningNodes, State};
pub use unsettled::Unsettled;
