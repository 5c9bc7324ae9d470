//! What each element of a value adds up: what rounding is measured by where elements differ in size.

use super::error::BlameError;
use super::float64::{exact, in_float64, there};
use super::probe::Prober;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::{self, Op, Piece};
use crate::tensor::{DType, TensorBuf};

/// Operators that go over elements one by one, beside those of regions.
const POINTWISE: [&str; 5] = ["Cast", "CastLike", "Constant", "Identity", "Pow"];

/// Σ|terms| of each element that a piece gives, or a bound of it; None where it is not known. `made`: what it gives in
/// float64. Errors: Budget, Onnx.
pub fn terms(
    prober: &Prober<'_>,
    piece: &Piece,
    name: &str,
    made: &TensorBuf,
) -> Result<Option<TensorBuf>, BlameError> {
    if adds_up(&piece.model) {
        return exact(prober, piece, name, absolute);
    }
    let Some(sizes) = sizes_read(&piece.model, name) else { return Ok(None) };
    let read = there(name, in_float64(prober, &sizes, &piece.inputs, |value| value))?;
    Ok(read.and_then(|mut read| element_by_element(made, &read.pop()?)))
}

/// One, the result and what is read there, and no more than the largest result: a formula for one element is made of that
/// element's numbers. As `element_by_element` in python_shim/rust_ort/observe/sums.py. Both: float64. None of two shapes.
fn element_by_element(made: &TensorBuf, read: &TensorBuf) -> Option<TensorBuf> {
    let shape = &made.desc().shape;
    if *shape != read.desc().shape {
        return None;
    }
    let [made, read] = [made, read].map(|tensor| tensor.view().flat_f64(0..shape.n_elements()));
    let made: Vec<f64> = made?.into_iter().map(f64::abs).collect();
    let largest = made.iter().copied().filter(|size| size.is_finite()).fold(0., f64::max);
    // The smaller one of a NaN and a number is the number.
    let sizes: Vec<f64> = made.iter().zip(read?).map(|(made, read)| (made + 1. + read).min(largest)).collect();
    Some(TensorBuf::from_f64(shape.clone(), &sizes))
}

/// The model that adds up the sizes of all that a pointwise model reads at an element; None of another one.
fn sizes_read(model: &ModelProto, name: &str) -> Option<ModelProto> {
    let graph = model.graph.as_ref()?;
    let is_pointwise = |node: &NodeProto| {
        let op = node.op_type();
        POINTWISE.contains(&op) || Op::named(op).is_some_and(|op| !op.reduces())
    };
    if !graph.node.iter().all(is_pointwise) {
        return None;
    }
    let constants = graph.node.iter().filter(|node| node.op_type() == "Constant");
    let inputs = graph.input.iter().map(|input| input.name());
    let given = graph.initializer.iter().map(TensorProto::name);
    let read: Vec<&str> =
        inputs.chain(given).chain(constants.clone().flat_map(|node| &node.output).map(String::as_str)).collect();
    let mut node: Vec<NodeProto> = constants.cloned().collect();
    let mut sizes = Vec::with_capacity(read.len());
    for (at, read) in read.into_iter().enumerate() {
        let (wide, size) = (format!("rust_ort.wide.{at}"), format!("rust_ort.size.{at}"));
        node.push(NodeProto { attribute: vec![to_float64()], ..of("Cast", vec![read.to_owned()], &wide) });
        node.push(of("Abs", vec![wide], &size));
        sizes.push(size);
    }
    node.push(of("Sum", sizes, name));
    let graph = GraphProto { node, ..graph.clone() };
    Some(ModelProto { graph: Some(graph), ..model.clone() })
}

fn of(op: &str, input: Vec<String>, output: &str) -> NodeProto {
    NodeProto { op_type: Some(op.to_owned()), input, output: vec![output.to_owned()], ..NodeProto::default() }
}

fn to_float64() -> AttributeProto {
    AttributeProto {
        name: Some("to".to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(DType::F64.onnx_code().into()),
        ..AttributeProto::default()
    }
}

/// Whether all of a model adds up; numbers in it may be no factors.
fn adds_up(model: &ModelProto) -> bool {
    let is_whole = |tensor: &TensorProto| tensor.data_type() == DType::I64.onnx_code();
    let graph = model.graph.iter();
    let adds = |node: &NodeProto| match node.op_type() {
        "Constant" => node.attribute.iter().all(|attribute| attribute.t.as_ref().is_none_or(is_whole)),
        _ => onnx::adds_up(node),
    };
    graph.clone().flat_map(|graph| &graph.node).all(adds) && graph.flat_map(|graph| &graph.initializer).all(is_whole)
}

fn absolute(value: TensorBuf) -> TensorBuf {
    let view = value.view();
    let values = (view.dtype() == DType::F64).then(|| view.flat_f64(0..view.shape().n_elements())).flatten();
    match values {
        Some(values) => {
            let sizes: Vec<f64> = values.into_iter().map(f64::abs).collect();
            TensorBuf::from_f64(view.shape().clone(), &sizes)
        }
        None => value,
    }
}
