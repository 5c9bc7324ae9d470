//! What a tensor is, without its bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BadShape, DType, Shape};

/// dtype and shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorDesc {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Shape,
}

impl TensorDesc {
    /// Checked description. Errors: [`BadShape`].
    pub fn new(dtype: DType, dims: impl Into<Vec<i64>>) -> Result<Self, BadShape> {
        Ok(Self { dtype, shape: Shape::new(dims)? })
    }

    /// Bytes of the dense tensor.
    pub fn len_bytes(&self) -> usize {
        self.shape.len_bytes(self.dtype)
    }
}

impl fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Why bytes are no tensor.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum BadTensor {
    /// tensor {desc}: needs {expected} bytes, got {got}; make it contiguous before sending
    Length {
        /// What the tensor should be.
        desc: TensorDesc,
        /// `desc.len_bytes()`.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// {0}
    Shape(#[from] BadShape),
}
