//! Casts that follow each other. onnxruntime 1.31.1 leaves out the first of two wherever the second goes to a smaller
//! type, and with it the rounding or the wrapping around: float32 → float16 → uint8, int32 → float16 → uint8 and
//! float64 → float32 → float16 give other numbers.

use std::collections::{HashMap, HashSet};

use super::elements::{self, Element, is_onnx};
use super::typed::of_values;
use crate::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType,
};
use crate::onnx::walk;
use crate::tensor::DType;

/// Operators whose result has the values of their first input, which ONNX Runtime leaves out where they do nothing, or
/// moves to the other side of a cast.
const MOVES: &[&str] = &[
    "Dropout",
    "Expand",
    "Flatten",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// {value: its type}: results of casts that may lose something, as they are or moved.
type Cast = HashMap<String, DType>;

/// Whether a graph or a body in it, or a model-local function, may have a cast of a cast that ONNX Runtime would leave
/// out. kept: functions that are left aside.
pub(super) fn any_chained(model: &ModelProto, kept: impl Fn(&FunctionProto) -> bool) -> bool {
    let opset = opset(model);
    let functions = model.functions.iter().filter(|function| !kept(function));
    let in_functions = functions.flat_map(|function| &function.node).any(is_cast);
    in_functions || model.graph.iter().any(|graph| has_chained(graph, &Cast::new(), opset))
}

fn has_chained(graph: &GraphProto, outer: &Cast, opset: i64) -> bool {
    let casts = Casts::of(graph, outer, opset);
    graph.node.iter().any(|node| {
        casts.before(node).is_some() || walk::bodies(node).any(|body| has_chained(body, &casts.lossy, opset))
    })
}

/// Puts a node between two such casts, and tells whether there were any. `names`: all of the model, and then those that
/// are new.
pub(super) fn separate(model: &mut ModelProto, names: &mut HashSet<String>) -> bool {
    let opset = opset(model);
    model.graph.as_mut().is_some_and(|graph| separate_in(graph, &Cast::new(), opset, names))
}

fn separate_in(graph: &mut GraphProto, outer: &Cast, opset: i64, names: &mut HashSet<String>) -> bool {
    let casts = Casts::of(graph, outer, opset);
    let mut changed = false;
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for body in walk::bodies_mut(&mut node) {
            changed |= separate_in(body, &casts.lossy, opset, names);
        }
        if let Some(between) = casts.before(&node) {
            let kept = walk::fresh(&format!("{}/kept", node.input[0]), names);
            let cast = std::mem::replace(&mut node.input[0], kept.clone());
            nodes.push(keeper(cast, kept, between));
            changed = true;
        }
        nodes.push(node);
    }
    graph.node = nodes;
    changed
}

/// The casts of a graph.
struct Casts {
    lossy: Cast,
    types: HashMap<String, Element>,
    opset: i64,
}

impl Casts {
    /// `outer`: those of the graphs around it.
    fn of(graph: &GraphProto, outer: &Cast, opset: i64) -> Self {
        let mut found = Self { lossy: outer.clone(), types: HashMap::new(), opset };
        if !graph.node.iter().any(is_cast) {
            return found; // what is in bodies may follow a cast out here
        }
        found.types = of_values(graph);
        for node in &graph.node {
            let (Some(from), Some(to)) = (node.input.first(), node.output.first()) else { continue };
            let moved = (MOVES.contains(&node.op_type()) || (node.op_type() == "Concat" && node.input.len() == 1))
                && is_onnx(node);
            if let Some(target) = found.target(node) {
                if !found.dtype(from).is_some_and(|from| loses_nothing(from, target)) {
                    found.lossy.insert(to.clone(), target);
                }
            } else if let Some(&dtype) = found.lossy.get(from).filter(|_| moved) {
                found.lossy.extend(node.output.iter().map(|name| (name.clone(), dtype)));
            }
        }
        found
    }

    /// The type between `second` and a cast before it, which ONNX Runtime would leave out.
    fn before(&self, second: &NodeProto) -> Option<DType> {
        let between = *self.lossy.get(second.input.first()?)?;
        let kept = self.opset >= MAX_OF_INTEGERS || between.is_float() || between.size_bytes() < 4;
        (kept && self.target(second)?.size_bytes() < between.size_bytes()).then_some(between)
    }

    fn target(&self, node: &NodeProto) -> Option<DType> {
        match node.op_type() {
            "Cast" if is_onnx(node) => {
                DType::from_onnx(Element::try_from(elements::attribute(node, "to")?.i?).ok()?).ok()
            }
            "CastLike" if is_onnx(node) => self.dtype(node.input.get(1)?),
            _ => None,
        }
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        DType::from_onnx(*self.types.get(name)?).ok()
    }
}

fn is_cast(node: &NodeProto) -> bool {
    matches!(node.op_type(), "Cast" | "CastLike") && is_onnx(node)
}

/// The opset of ONNX's own operators.
pub(super) fn opset(model: &ModelProto) -> i64 {
    model.opset_import.iter().find(|opset| matches!(opset.domain(), "" | "ai.onnx")).map_or(0, |opset| opset.version())
}

/// The opset from which on [`keeper`] has something for integers of 32 and 64 bits.
const MAX_OF_INTEGERS: i64 = 12;

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

/// In the place of a cast to the type that a value has: of such a one onnxruntime 1.31.1 makes several of one name, and
/// then refuses the model.
pub(super) fn identity(name: Option<String>, from: String, to: String) -> NodeProto {
    NodeProto {
        name,
        op_type: Some("Identity".to_owned()),
        input: vec![from],
        output: vec![to],
        ..NodeProto::default()
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
