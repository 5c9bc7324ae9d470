//! What a model declares of its inputs and outputs.

use std::collections::HashMap;

use super::error::RuntimeError;
use crate::onnx;
use crate::onnx::proto::tensor_shape_proto::dimension;
use crate::onnx::proto::{TensorShapeProto, TypeProto, ValueInfoProto, type_proto};
use crate::protocol::message::ValueSpec;
use crate::shm::RawTensor;
use crate::tensor::DType;

/// Inputs or outputs of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    /// In the model's order.
    pub(super) specs: Vec<ValueSpec>,
    /// Of each, whether its rank is not known: its `dims` say nothing.
    pub(super) unranked: Vec<bool>,
}

impl Declared {
    /// As a model declares them; `found`: element types of those of which it tells none. Errors: UnsupportedValue.
    pub(super) fn of<'a>(
        kind: &'static str,
        infos: impl Iterator<Item = &'a ValueInfoProto>,
        found: &Types,
    ) -> Result<Self, RuntimeError> {
        let mut declared = Self::default();
        for info in infos {
            let name = info.name().to_owned();
            let Some(dtype) = declared_type(info).or_else(|| found.get(info.name()).copied()) else {
                let declared = onnx::type_text(info.r#type.as_ref());
                return Err(RuntimeError::UnsupportedValue { kind, name, declared, others: Vec::new() });
            };
            let shape = declared_shape(info);
            let dims = shape.iter().flat_map(|shape| &shape.dim).map(|dim| match dim.value {
                Some(dimension::Value::DimValue(dim)) => dim,
                _ => -1,
            });
            declared.specs.push(ValueSpec { name, dtype, dims: dims.collect() });
            declared.unranked.push(shape.is_none());
        }
        Ok(declared)
    }

    /// Whether a value of these dimensions is what is declared.
    pub(super) fn fits(&self, at: usize, dtype: DType, dims: &[i64]) -> bool {
        let spec = &self.specs[at];
        let fits = |(&declared, &dim): (&i64, &i64)| declared < 0 || declared == dim;
        let of_shape = || spec.dims.len() == dims.len() && spec.dims.iter().zip(dims).all(fits);
        spec.dtype == dtype && (self.unranked[at] || of_shape())
    }

    /// Checks that tensors are what is declared: number, dtype, rank, and every dimension that is not symbolic.
    /// `kind` is "input" or "output". Errors: ValueCount, BadValue.
    pub(super) fn check<'a>(
        &self,
        kind: &'static str,
        values: impl ExactSizeIterator<Item = RawTensor<'a>>,
    ) -> Result<(), RuntimeError> {
        if self.specs.len() != values.len() {
            return Err(RuntimeError::ValueCount { kind, expected: self.specs.len(), got: values.len() });
        }
        for (at, value) in values.enumerate() {
            if !self.fits(at, value.desc.dtype, value.desc.shape.dims()) {
                let expected = self.specs[at].clone();
                return Err(RuntimeError::BadValue { kind, expected, got: value.desc.clone() });
            }
        }
        Ok(())
    }
}

/// The shape that is declared of a value.
pub(super) fn declared_shape(info: &ValueInfoProto) -> Option<&TensorShapeProto> {
    match info.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => tensor.shape.as_ref(),
        _ => None,
    }
}

/// Name → element type, as far as it is known.
pub(super) type Types = HashMap<String, DType>;

/// What is declared of a value.
pub(super) fn declared_type(info: &ValueInfoProto) -> Option<DType> {
    match info.r#type.as_ref()? {
        TypeProto { value: Some(type_proto::Value::TensorType(tensor)), .. } => of_code(tensor.elem_type()),
        _ => None,
    }
}

/// The element type of this number of ONNX's; None where torch has none.
pub(super) fn of_code(code: i32) -> Option<DType> {
    DType::from_onnx(code).ok()
}
