//! Inputs that become constants, whose data the runtime is given beside the model.

use std::collections::HashMap;

use super::OnnxError;
use super::graph::sparse_name;
use super::proto::{ModelProto, StringStringEntryProto, TensorProto, TypeProto, tensor_proto::DataLocation};
use super::proto::{tensor_shape_proto::dimension, type_proto};
use crate::tensor::TensorDesc;

/// What the data's place is called. It is no file: the runtime gets the data by the tensor's name.
const PLACE: &str = "given-beside-the-model";

/// Makes initializers with external data of inputs of the main graph. Errors: [`OnnxError::Tensor`] where one is no input,
/// or not of the dtype and the dimensions that the model declares.
pub fn without_inputs<'a>(
    model: &mut ModelProto,
    constants: impl Iterator<Item = (&'a str, &'a TensorDesc)>,
) -> Result<(), OnnxError> {
    let constants: Vec<_> = constants.collect();
    let graph = model.graph.get_or_insert_default();
    let declared: HashMap<&str, Option<&TypeProto>> =
        graph.input.iter().map(|input| (input.name(), input.r#type.as_ref())).collect();
    for &(name, desc) in &constants {
        let fail = |reason: String| OnnxError::Tensor { name: name.to_owned(), reason };
        let declared = declared.get(name).ok_or_else(|| fail("it is no input of the model".to_owned()))?;
        if !declared.is_none_or(|declared| fits(declared, desc)) {
            return Err(fail(format!("a constant of {desc} is not what the model declares for the input")));
        }
    }
    let names: HashMap<&str, &TensorDesc> = constants.iter().copied().collect();
    graph.input.retain(|input| !names.contains_key(input.name()));
    // Of an input with a default value that is not the one.
    graph.initializer.retain(|initializer| !names.contains_key(initializer.name()));
    graph.sparse_initializer.retain(|sparse| !names.contains_key(sparse_name(sparse)));
    graph.initializer.extend(constants.iter().map(|(name, desc)| external(name, desc)));
    Ok(())
}

fn fits(declared: &TypeProto, desc: &TensorDesc) -> bool {
    let Some(type_proto::Value::TensorType(tensor)) = &declared.value else { return false };
    let dims = desc.shape.dims();
    tensor.elem_type() == desc.dtype.onnx_code()
        && tensor.shape.as_ref().is_none_or(|shape| {
            let fits = |(declared, &dim): (&super::proto::tensor_shape_proto::Dimension, &i64)| match declared.value {
                Some(dimension::Value::DimValue(value)) => value == dim,
                _ => true,
            };
            shape.dim.len() == dims.len() && shape.dim.iter().zip(dims).all(fits)
        })
}

fn external(name: &str, desc: &TensorDesc) -> TensorProto {
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_owned()), value: Some(value) };
    TensorProto {
        name: Some(name.to_owned()),
        dims: desc.shape.dims().to_vec(),
        data_type: Some(desc.dtype.onnx_code()),
        data_location: Some(DataLocation::External as i32),
        external_data: vec![
            entry("location", PLACE.to_owned()),
            entry("offset", "0".to_owned()),
            entry("length", desc.len_bytes().to_string()),
        ],
        ..TensorProto::default()
    }
}
