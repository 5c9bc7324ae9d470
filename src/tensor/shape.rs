//! Shapes whose element and byte counts are known not to overflow.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::DType;

/// Dimensions of a dense tensor: each at least 0, at most [`Shape::MAX_RANK`] of them, product within `usize`.
///
/// ```
/// use rust_ort::tensor::{BadShape, DType, Shape};
///
/// let shape = Shape::new([2, 3])?;
/// assert_eq!((shape.rank(), shape.n_elements(), shape.len_bytes(DType::F16)), (2, 6, 12));
/// assert_eq!(Shape::new([])?.n_elements(), 1, "a scalar");
/// assert!(matches!(Shape::new([2, -1]), Err(BadShape::Negative { axis: 1, .. })));
/// # Ok::<(), BadShape>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<i64>", into = "Vec<i64>")]
pub struct Shape {
    dims: Vec<i64>,
    n_elements: usize,
}

/// Why dimensions are no [`Shape`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadShape {
    /// A dimension below 0.
    #[error("shape {dims:?}: dimension {axis} is {}; dimensions are at least 0", dims[*axis])]
    Negative {
        /// The dimensions as given.
        dims: Vec<i64>,
        /// Index of the first one below 0.
        axis: usize,
    },
    /// More dimensions than ONNX Runtime and torch handle.
    #[error("shape of rank {rank}: expected at most {}", Shape::MAX_RANK)]
    Rank {
        /// Number of dimensions given.
        rank: usize,
    },
    /// The product of the dimensions, or its size in bytes, overflows.
    #[error("shape {dims:?}: the number of bytes overflows; check the dimensions")]
    Overflow {
        /// The dimensions as given.
        dims: Vec<i64>,
    },
}

impl Shape {
    /// Largest accepted rank (torch's own limit is 64).
    pub const MAX_RANK: usize = 64;

    /// Checked dimensions. The product is computed over the non-zero dimensions first, so that `[0, huge, huge]` is
    /// refused too. Errors: [`BadShape`].
    pub fn new(dims: impl Into<Vec<i64>>) -> Result<Self, BadShape> {
        let dims = dims.into();
        if dims.len() > Self::MAX_RANK {
            return Err(BadShape::Rank { rank: dims.len() });
        }
        if let Some(axis) = dims.iter().position(|&dim| dim < 0) {
            return Err(BadShape::Negative { dims, axis });
        }
        let product = dims
            .iter()
            .filter(|&&dim| dim != 0)
            .try_fold(1_usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
            // 16 bytes is the largest element.
            .filter(|&product| product <= isize::MAX as usize / 16);
        match product {
            None => Err(BadShape::Overflow { dims }),
            Some(product) => {
                let n_elements = if dims.contains(&0) { 0 } else { product };
                Ok(Self { dims, n_elements })
            }
        }
    }

    /// The dimensions.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Product of the dimensions; 1 for rank 0.
    pub fn n_elements(&self) -> usize {
        if self.dims.is_empty() { 1 } else { self.n_elements }
    }

    /// Bytes of a dense tensor of this shape. Cannot overflow: `new` checked it for the largest element.
    pub fn len_bytes(&self, dtype: DType) -> usize {
        self.n_elements() * dtype.size_bytes()
    }

    /// Dimensions as `usize`, for ndarray.
    pub fn to_usize(&self) -> Vec<usize> {
        self.dims.iter().map(|&dim| dim as usize).collect()
    }
}

impl TryFrom<Vec<i64>> for Shape {
    type Error = BadShape;

    fn try_from(dims: Vec<i64>) -> Result<Self, Self::Error> {
        Self::new(dims)
    }
}

impl From<Shape> for Vec<i64> {
    fn from(shape: Shape) -> Self {
        shape.dims
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_elements() {
        for (dims, expected) in [(vec![], 1), (vec![0], 0), (vec![3, 0, 2], 0), (vec![2, 3], 6)] {
            assert_eq!(Shape::new(dims).unwrap().n_elements(), expected);
        }
        assert_eq!(Shape::default().n_elements(), 1);
    }

    #[test]
    fn refuses_negative_overflow_and_rank() {
        assert!(matches!(Shape::new([2, -1]), Err(BadShape::Negative { axis: 1, .. })));
        assert!(matches!(Shape::new([i64::MAX, 2]), Err(BadShape::Overflow { .. })));
        assert!(matches!(Shape::new([0, i64::MAX, i64::MAX]), Err(BadShape::Overflow { .. })));
        assert!(matches!(Shape::new([1; 65]), Err(BadShape::Rank { rank: 65 })));
    }

    proptest! {
        #[test]
        fn n_elements_is_the_product(dims in proptest::collection::vec(0_i64..50, 0..5)) {
            let product: i64 = dims.iter().product();
            prop_assert_eq!(Shape::new(dims).unwrap().n_elements() as i64, product);
        }
    }
}
