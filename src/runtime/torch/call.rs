//! A node as its kernel sees it: inputs, attributes, bodies.

use tch::{Device, Kind, TchError, Tensor};

use super::failure::{Failure, fail};
use super::value::{Precision, Value};
use crate::onnx::NamedTensor;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, NodeProto};
use crate::tensor::DType;

/// What a node gives: its outputs in order; those that it has beyond them are not there.
pub(super) type Outputs = Result<Vec<Value>, Failure>;

/// What computes a node.
pub(super) type Kernel = fn(&Call<'_>) -> Outputs;

/// (domain, operator, kernel) of a family of operators. "" is ONNX's own domain.
pub(super) type Table = &'static [(&'static str, &'static str, Kernel)];

/// Runs a node's bodies.
pub(super) trait Bodies {
    /// The outputs of the body in this attribute.
    fn run(&self, attribute: &str, inputs: Vec<Value>) -> Outputs;
}

/// A node to be run.
pub(super) struct Call<'a> {
    pub(super) node: &'a NodeProto,
    /// Version of the node's domain.
    pub(super) opset: i64,
    pub(super) precision: Precision,
    pub(super) inputs: Vec<Option<&'a Value>>,
    pub(super) bodies: &'a dyn Bodies,
}

impl<'a> Call<'a> {
    /// Number of inputs, those left out among them.
    pub(super) fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Whether the node has this output.
    pub(super) fn gives(&self, at: usize) -> bool {
        self.node.output.get(at).is_some_and(|name| !name.is_empty())
    }

    /// An optional input.
    pub(super) fn maybe(&self, at: usize) -> Option<&'a Value> {
        self.inputs.get(at).copied().flatten()
    }

    /// An input that must be there.
    pub(super) fn value(&self, at: usize) -> Result<&'a Value, Failure> {
        self.maybe(at).ok_or_else(|| Failure::Said(format!("input {at} is left out, which the operator needs")))
    }

    /// Its tensor.
    pub(super) fn tensor(&self, at: usize) -> Result<&'a Tensor, Failure> {
        Ok(&self.value(at)?.tensor)
    }

    /// The tensor of an optional input.
    pub(super) fn maybe_tensor(&self, at: usize) -> Option<&'a Tensor> {
        self.maybe(at).map(|value| &value.tensor)
    }

    /// Every input. Errors: one is left out.
    pub(super) fn tensors(&self) -> Result<Vec<&'a Tensor>, Failure> {
        (0..self.n_inputs()).map(|at| self.tensor(at)).collect()
    }

    /// The elements of an optional input as integers.
    pub(super) fn maybe_ints_of(&self, at: usize) -> Result<Option<Vec<i64>>, Failure> {
        self.maybe(at).map(Value::to_ints).transpose()
    }

    /// The elements of an input as integers.
    pub(super) fn ints_of(&self, at: usize) -> Result<Vec<i64>, Failure> {
        self.value(at)?.to_ints()
    }

    /// The single integer of an input.
    pub(super) fn int_of(&self, at: usize) -> Result<i64, Failure> {
        match self.ints_of(at)?.as_slice() {
            &[int] => Ok(int),
            ints => fail(format!("input {at} has {} elements: expected one", ints.len())),
        }
    }

    // --- results ---

    /// One output of a dtype.
    pub(super) fn typed(&self, tensor: Tensor, dtype: DType) -> Result<Value, Failure> {
        Value::new(tensor, dtype, self.precision)
    }

    /// One output of the first input's dtype.
    pub(super) fn like(&self, tensor: Tensor) -> Result<Value, Failure> {
        self.typed(tensor, self.value(0)?.dtype)
    }

    /// As [`Call::like`], alone.
    pub(super) fn one(&self, tensor: Tensor) -> Outputs {
        Ok(vec![self.like(tensor)?])
    }

    /// As [`Call::typed`], alone.
    pub(super) fn one_typed(&self, tensor: Tensor, dtype: DType) -> Outputs {
        Ok(vec![self.typed(tensor, dtype)?])
    }

    /// A function of the first input.
    pub(super) fn unary(&self, function: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Outputs {
        self.one(function(self.tensor(0)?)?)
    }

    /// A function of the first two inputs.
    pub(super) fn binary(&self, function: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>) -> Outputs {
        self.one(function(self.tensor(0)?, self.tensor(1)?)?)
    }

    /// Of the first two inputs, to bool.
    pub(super) fn compare(&self, function: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>) -> Outputs {
        self.one_typed(function(self.tensor(0)?, self.tensor(1)?)?, DType::Bool)
    }

    /// libtorch's type of the first input.
    pub(super) fn kind(&self) -> Result<Kind, Failure> {
        Ok(self.tensor(0)?.f_kind()?)
    }

    /// Integers, not bool.
    pub(super) fn is_integer(&self, at: usize) -> Result<bool, Failure> {
        let dtype = self.value(at)?.dtype;
        let is_whole = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
        Ok(is_whole || matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64))
    }

    // --- attributes ---

    /// The attribute, of this type. Errors: it is of another.
    fn attribute(&self, name: &str, wanted: AttributeType) -> Result<Option<&'a AttributeProto>, Failure> {
        let Some(attribute) = self.node.attribute.iter().find(|attribute| attribute.name() == name) else {
            return Ok(None);
        };
        if attribute.r#type() != wanted {
            let got = attribute.r#type().as_str_name();
            return fail(format!("attribute {name:?} is {got}: expected {}", wanted.as_str_name()));
        }
        Ok(Some(attribute))
    }

    /// An integer attribute.
    pub(super) fn maybe_int(&self, name: &str) -> Result<Option<i64>, Failure> {
        Ok(self.attribute(name, AttributeType::Int)?.map(AttributeProto::i))
    }

    /// An integer attribute, or its default.
    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, Failure> {
        Ok(self.maybe_int(name)?.unwrap_or(default))
    }

    /// An integer attribute that is yes or no.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, Failure> {
        Ok(self.maybe_int(name)?.map_or(default, |int| int != 0))
    }

    /// A float attribute, widened.
    pub(super) fn maybe_float(&self, name: &str) -> Result<Option<f64>, Failure> {
        Ok(self.attribute(name, AttributeType::Float)?.map(|attribute| f64::from(attribute.f())))
    }

    /// A float attribute, widened, or its default.
    pub(super) fn float(&self, name: &str, default: f32) -> Result<f64, Failure> {
        Ok(self.maybe_float(name)?.unwrap_or(f64::from(default)))
    }

    /// A text attribute, or its default.
    pub(super) fn text(&self, name: &str, default: &'static str) -> Result<&'a str, Failure> {
        match self.attribute(name, AttributeType::String)? {
            None => Ok(default),
            Some(attribute) => std::str::from_utf8(attribute.s())
                .map_err(|_| Failure::Said(format!("attribute {name:?} is no UTF-8 text"))),
        }
    }

    /// A list of integers.
    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Failure> {
        Ok(self.attribute(name, AttributeType::Ints)?.map(|attribute| attribute.ints.clone()))
    }

    /// A list of floats, widened.
    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f64>>, Failure> {
        let widened = |attribute: &AttributeProto| attribute.floats.iter().map(|&float| f64::from(float)).collect();
        Ok(self.attribute(name, AttributeType::Floats)?.map(widened))
    }

    /// A tensor.
    pub(super) fn tensor_attribute(&self, name: &str) -> Result<Option<Value>, Failure> {
        let Some(attribute) = self.attribute(name, AttributeType::Tensor)? else { return Ok(None) };
        let Some(proto) = &attribute.t else { return fail(format!("attribute {name:?} holds no tensor")) };
        Ok(Some(Value::read_view(&NamedTensor::from_proto(proto)?.view(), self.precision)?))
    }

    /// An element type.
    pub(super) fn dtype(&self, name: &str) -> Result<Option<DType>, Failure> {
        let Some(code) = self.maybe_int(name)? else { return Ok(None) };
        let dtype = i32::try_from(code).ok().and_then(|code| DType::from_onnx(code).ok());
        dtype.map_or_else(
            || fail(format!("attribute {name:?}: {code} is no element type that torch has")),
            |it| Ok(Some(it)),
        )
    }
}

/// 0, 1, … n − 1. Errors: n is negative, or more than memory holds, which is asked for first since `f_arange` would
/// panic of it ([`Failure::of_panic`]).
pub(super) fn counted(n: i64, kind: Kind) -> Result<Tensor, TchError> {
    drop(Tensor::f_empty([n], (kind, Device::Cpu))?);
    Tensor::f_arange(n, (kind, Device::Cpu))
}

/// The axis from 0. Errors: it is not one of the rank.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, Failure> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(at) {
        Ok(at) if at < rank => Ok(at),
        _ => fail(format!("axis {axis} of a tensor of rank {rank}")),
    }
}

/// Each from 0. Errors: as [`axis`].
pub(super) fn axes(given: &[i64], rank: usize) -> Result<Vec<usize>, Failure> {
    given.iter().map(|&one| axis(one, rank)).collect()
}
