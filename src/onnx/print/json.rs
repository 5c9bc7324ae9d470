//! A model as JSON: the same as its text.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::values::{attribute_value, domain_text, dtype_name, elements, type_text, types_of, types_of_graph};
use crate::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType, tensor_proto::DataLocation,
};
use crate::onnx::{OnnxError, rewrite};

/// Everything that [`model_text`](super::model_text) shows, types of all values included. Tensors and long lists are texts:
/// their first elements. Bodies stand in their node, under `bodies`. Errors: [`OnnxError::NoGraph`].
pub fn model_json(model: &ModelProto) -> Result<Value, OnnxError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    Ok(json!({
        "ir_version": model.ir_version(), "producer": model.producer_name(),
        "producer_version": model.producer_version(), "passes": rewrite::ran(model),
        "doc": model.doc_string(), "metadata": metadata(&model.metadata_props), "opsets": opsets(&model.opset_import),
        "graph": graph_json(graph), "functions": model.functions.iter().map(function_json).collect::<Vec<_>>(),
    }))
}

fn opsets(opsets: &[OperatorSetIdProto]) -> Vec<Value> {
    opsets.iter().map(|opset| json!({ "domain": opset.domain(), "version": opset.version() })).collect()
}

fn metadata(entries: &[StringStringEntryProto]) -> Value {
    Value::Object(entries.iter().map(|entry| (entry.key().to_owned(), entry.value().into())).collect())
}

// Bodies nest as deep as messages do, which decoding limits.
fn graph_json(graph: &GraphProto) -> Value {
    let value = |info: &ValueInfoProto| json!({ "name": info.name(), "type": type_text(info.r#type.as_ref()) });
    let values = |infos: &[ValueInfoProto]| infos.iter().map(value).collect::<Vec<_>>();
    let sparse = graph.sparse_initializer.iter().map(|sparse| {
        let values = sparse.values.as_ref();
        let dtype = values.map_or(0, |values| values.data_type());
        let name = values.map_or("", |values| values.name());
        json!({ "name": name, "dtype": dtype_name(dtype), "dims": sparse.dims, "sparse": true })
    });
    json!({
        "name": graph.name(), "doc": graph.doc_string(), "metadata": metadata(&graph.metadata_props),
        "inputs": values(&graph.input),
        "initializers": graph.initializer.iter().map(initializer).chain(sparse).collect::<Vec<_>>(),
        "nodes": nodes(&graph.node, types_of_graph(graph)), "outputs": values(&graph.output),
    })
}

fn function_json(function: &FunctionProto) -> Value {
    let types = types_of(function.value_info.iter());
    json!({
        "name": function.name(), "doc": function.doc_string(), "metadata": metadata(&function.metadata_props), "domain": function.domain(), "overload": function.overload(),
        "opsets": opsets(&function.opset_import), "inputs": function.input, "outputs": function.output,
        "attributes": function.attribute, "defaults": attributes(&function.attribute_proto),
        "nodes": nodes(&function.node, types),
    })
}

fn initializer(tensor: &TensorProto) -> Value {
    let mut value = json!({ "name": tensor.name(), "dtype": dtype_name(tensor.data_type()), "dims": tensor.dims });
    if tensor.data_location() == DataLocation::External {
        let entries = tensor.external_data.iter().map(|entry| (entry.key().to_owned(), entry.value().into()));
        value["external"] = Value::Object(entries.collect());
    } else {
        let values = elements(tensor);
        if !values.is_empty() {
            value["values"] = values.into();
        }
    }
    value
}

/// types: taken by the first who gives a value.
fn nodes(nodes: &[NodeProto], mut types: HashMap<&str, &TypeProto>) -> Vec<Value> {
    let node = |node: &NodeProto| {
        let output = |name: &String| json!({ "name": name, "type": type_text(types.remove(name.as_str())) });
        let mut value = json!({
            "op": node.op_type(), "domain": domain_text(node), "name": node.name(), "inputs": node.input,
            "attributes": attributes(&node.attribute), "outputs": node.output.iter().map(output).collect::<Vec<_>>(),
        });
        let with_bodies =
            node.attribute.iter().filter(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty());
        let bodies: Map<String, Value> = with_bodies
            .map(|attribute| {
                let graphs = attribute.g.iter().chain(&attribute.graphs);
                (attribute.name().to_owned(), graphs.map(graph_json).collect::<Vec<_>>().into())
            })
            .collect();
        if !bodies.is_empty() {
            value["bodies"] = Value::Object(bodies);
        }
        value
    };
    nodes.iter().map(node).collect()
}

/// Numbers and whole lists of them as such; what is not finite, and all else, as text.
fn attributes(attributes: &[AttributeProto]) -> Value {
    let number = |value: f32| match value.is_finite() {
        true => Value::from(f64::from(value)),
        false => value.to_string().into(),
    };
    let value = |attribute: &AttributeProto| match attribute.r#type() {
        _ if !attribute.ref_attr_name().is_empty() => attribute_value(attribute).into(),
        AttributeType::Int => attribute.i().into(),
        AttributeType::Float => number(attribute.f()),
        AttributeType::Ints => attribute.ints.clone().into(),
        AttributeType::Floats => attribute.floats.iter().copied().map(number).collect::<Vec<_>>().into(),
        AttributeType::String => String::from_utf8_lossy(attribute.s()).into(),
        _ => attribute_value(attribute).into(),
    };
    let is_value = |attribute: &&AttributeProto| attribute.g.is_none() && attribute.graphs.is_empty();
    let entries = attributes.iter().filter(is_value).map(|attribute| (attribute.name().to_owned(), value(attribute)));
    Value::Object(entries.collect())
}
