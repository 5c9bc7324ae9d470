//! Nodes of a part against eager: each node's kernel on eager's inputs (*local*), and every value as it drifts from the
//! inputs that ONNX Runtime itself gave (*cumulative*).

mod batch;
mod drift;
mod error;
mod judge;
mod local;
mod origin;
mod part;
mod piece;
mod reach;
mod runner;
mod slots;

pub use batch::{Batch, Judged};
pub use error::NodesError;
pub use judge::Policies;
pub use part::PartNodes;
pub use piece::SubModel;
pub use reach::RunPieces;
