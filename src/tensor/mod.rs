//! Element types, shapes and dense tensors, borrowed and owned. Everything else speaks of tensors in these words.

mod dtype;
mod reference;
mod shape;
mod view;

pub use dtype::{DType, UnknownDType};
pub use reference::{CallRecord, TensorRef};
pub use shape::{BadShape, Shape};
pub use view::{BadTensor, Feeds, TensorBuf, TensorDesc, TensorView, TensorViewMut};
