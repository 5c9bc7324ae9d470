//! Casts that follow each other. onnxruntime 1.31.1 leaves out the first of two wherever the second goes to a smaller
//! type, and with it the rounding or the wrapping around: float32 → float16 → uint8, int32 → float16 → uint8 and
//! float64 → float32 → float16 give other numbers.

use std::collections::{HashMap, HashSet};

use super::elements::{self, Element, is_onnx};
use super::typed::of_values;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType};
use crate::onnx::walk;
use crate::tensor::DType;

/// Whether a graph or a body in it has a cast of a cast that ONNX Runtime would leave out.
pub(super) fn any_chained(graph: &GraphProto) -> bool {
    walk::graphs([graph]).any(|graph| {
        let first = lossy(graph);
        graph.node.iter().any(|second| chained(&first, second).is_some())
    })
}

/// Puts a node between two such casts, and tells whether there were any. `names`: all of the model, and then those that
/// are new.
pub(super) fn separate(graph: &mut GraphProto, names: &mut HashSet<String>) -> bool {
    let first = lossy(graph);
    let mut changed = false;
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for body in walk::bodies_mut(&mut node) {
            changed |= separate(body, names);
        }
        if let Some(between) = chained(&first, &node) {
            let kept = fresh(&format!("{}/kept", node.input[0]), names);
            let cast = std::mem::replace(&mut node.input[0], kept.clone());
            nodes.push(keeper(cast, kept, between));
            changed = true;
        }
        nodes.push(node);
    }
    graph.node = nodes;
    changed
}

/// {result: its element type} of the casts of a graph, but for those of which it is known that they lose nothing.
fn lossy(graph: &GraphProto) -> HashMap<String, DType> {
    let mut found: HashMap<String, DType> =
        graph.node.iter().filter_map(|node| Some((node.output.first()?.clone(), target(node)?))).collect();
    if !graph.node.iter().any(|second| chained(&found, second).is_some()) {
        return HashMap::new();
    }
    let types = of_values(graph);
    let known = |name: &str| DType::from_onnx(*types.get(name)?).ok();
    for cast in graph.node.iter().filter(|node| target(node).is_some()) {
        let (Some(from), Some(to)) = (cast.input.first(), cast.output.first()) else { continue };
        if known(from).zip(found.get(to)).is_some_and(|(from, &to)| loses_nothing(from, to)) {
            found.remove(to);
        }
    }
    found
}

/// The type between two casts of which ONNX Runtime would leave out the first.
fn chained(first: &HashMap<String, DType>, second: &NodeProto) -> Option<DType> {
    let between = *first.get(second.input.first()?)?;
    (target(second)?.size_bytes() < between.size_bytes()).then_some(between)
}

fn target(node: &NodeProto) -> Option<DType> {
    let is_cast = node.op_type() == "Cast" && is_onnx(node);
    let to = elements::attribute(node, "to").filter(|_| is_cast)?;
    DType::from_onnx(Element::try_from(to.i?).ok()?).ok()
}

fn loses_nothing(from: DType, to: DType) -> bool {
    if from.is_float() {
        return from == to || (to.is_float() && to.size_bytes() > from.size_bytes());
    }
    let is_unsigned = |dtype| matches!(dtype, DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64);
    let fits = digits(from).zip(digits(to)).is_some_and(|(from, to)| from <= to);
    fits && (is_unsigned(from) || !is_unsigned(to))
}

/// Binary digits of the integers that a type has all of; None of types that nothing is computed in.
fn digits(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Bool => Some(1),
        DType::BF16 => Some(8),
        DType::F16 => Some(11),
        DType::F32 => Some(24),
        DType::F64 => Some(53),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => Some(8 * dtype.size_bytes()),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => Some(8 * dtype.size_bytes() - 1),
        _ => None,
    }
}

/// What gives the values it reads, and is left in place: a cast that loses nothing, itself left out as the next one is
/// seen, when the first has been; where there is no larger type, a Max of one.
fn keeper(input: String, output: String, between: DType) -> NodeProto {
    let name = output.clone();
    match between {
        DType::F16 | DType::BF16 => cast(name, input, output, DType::F32.onnx_code()),
        DType::I16 | DType::U16 => cast(name, input, output, DType::I32.onnx_code()),
        _ => NodeProto {
            name: Some(name),
            op_type: Some("Max".to_owned()),
            input: vec![input],
            output: vec![output],
            ..NodeProto::default()
        },
    }
}

pub(super) fn cast(name: String, from: String, to: String, element: Element) -> NodeProto {
    let attribute = AttributeProto {
        name: Some("to".to_owned()),
        i: Some(element.into()),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    };
    NodeProto {
        name: Some(name),
        op_type: Some("Cast".to_owned()),
        input: vec![from],
        output: vec![to],
        attribute: vec![attribute],
        ..NodeProto::default()
    }
}

/// The name, with something after it where the model has it already.
pub(super) fn fresh(name: &str, names: &mut HashSet<String>) -> String {
    let numbered = (2_u64..).map(|n| format!("{name}.{n}"));
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    let free = candidates.find(|name| !names.contains(name)).expect("names are finite, numbers are not");
    names.insert(free.clone());
    free
}
