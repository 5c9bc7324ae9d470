//! Element types, shapes and dense tensors, borrowed and owned. Everything else speaks of tensors in these words.

mod dtype;
mod reference;
mod shape;
pub mod shared;
mod view;

pub use dtype::{DType, UnknownDType};
pub use reference::{CallRecord, TensorRef};
pub use shape::{BadShape, Shape};
pub use shared::{SharedBytes, SharedBytesMut, SharedTensor, SharedTensorMut};
pub use view::{BadTensor, Feeds, TensorBuf, TensorDesc, TensorView};
