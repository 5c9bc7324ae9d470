//! Element types, shapes and dense tensors, borrowed and owned. Everything else speaks of tensors in these words.

mod desc;
mod dtype;
mod location;
mod reference;
mod shape;
mod shared;
mod view;

pub use desc::{BadTensor, TensorDesc};
pub use dtype::{DType, UnknownDType};
pub use location::{BadLocation, Location};
pub use reference::{CallRecord, TensorRef};
pub use shape::{BadShape, Shape};
pub use shared::{BLOCK_BYTES, SharedBytes, SharedBytesMut, SharedTensor, SharedTensorMut};
pub use view::{TensorBuf, TensorView};
