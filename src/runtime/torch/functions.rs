//! torch's functions that no ONNX operator is.

use super::failure::Failure;
use super::value::{Precision, Value};
use crate::runtime::RuntimeError;
use crate::tensor::{TensorBuf, TensorView};

/// `F.linear(a, x.T, b)`: one kernel for product and bias where libtorch has one. Shapes: [m, k], [k, n], [n] → [m, n]; one
/// dtype. Errors: RunFailed.
pub fn linear(a: &TensorView<'_>, x: &TensorView<'_>, b: &TensorView<'_>) -> Result<TensorBuf, RuntimeError> {
    let read = |view| Ok::<_, Failure>(Value::read_view(view, Precision::AsDeclared)?.tensor);
    let run = || {
        let product = read(a)?.f_linear(&read(x)?.f_transpose(0, 1)?, Some(&read(b)?))?;
        Value::new(product, a.dtype(), Precision::AsDeclared)?.write()
    };
    run().map_err(|failure: Failure| failure.of_node("linear", "F.linear"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_is_product_and_bias() {
        let tensor = |dims: &[i64], values: &[f32]| TensorBuf::from_f32(dims, values).unwrap();
        let (a, x) = (tensor(&[1, 2], &[1., 2.]), tensor(&[2, 3], &[1., 2., 3., 4., 5., 6.]));
        let b = tensor(&[3], &[0., 0., 1.]);
        assert_eq!(linear(&a.view(), &x.view(), &b.view()).unwrap(), tensor(&[1, 3], &[9., 12., 16.]));
        let error = linear(&a.view(), &b.view(), &b.view()).unwrap_err().to_string();
        assert!(error.contains("F.linear"), "{error}");
    }
}
