//! Element types of values that the model does not declare.

use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use crate::runtime::types::{Types, declared_type, of_code};
use crate::tensor::DType;

/// Of every value of a graph; `around`: of the graph around it.
pub(super) fn of_graph(graph: &GraphProto, around: &Types) -> Types {
    let mut types = around.clone();
    let declared = graph.value_info.iter().chain(&graph.input).chain(&graph.output);
    types.extend(declared.filter_map(|info| Some((info.name().to_owned(), declared_type(info)?))));
    let initializers = graph.initializer.iter();
    types.extend(initializers.filter_map(|tensor| Some((tensor.name().to_owned(), of_code(tensor.data_type())?))));
    for node in &graph.node {
        let made = of_node(node, &types);
        for (name, dtype) in node.output.iter().zip(made) {
            if let Some(dtype) = dtype {
                types.entry(name.clone()).or_insert(dtype);
            }
        }
    }
    types
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name() == name)
}

/// The element types of a node's outputs.
fn of_node(node: &NodeProto, types: &Types) -> Vec<Option<DType>> {
    let input = |at: usize| node.input.get(at).and_then(|name| types.get(name)).copied();
    let named = |name: &str| attribute(node, name).and_then(|it| of_code(i32::try_from(it.i()).ok()?));
    let all = |dtype: Option<DType>| vec![dtype; node.output.len()];
    match node.op_type() {
        "Cast" | "BitCast" => all(named("to")),
        "CastLike" | "Where" | "WhereFloat" | "WhereDouble" | "AddRows" | "MaxRows" | "MinRows"
        | "DequantizeLinear" | "RMSNormalization" => all(input(1)),
        "QuantizeLinear" => all(input(2).or(named("output_dtype")).or(Some(DType::U8))),
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => all(Some(DType::Bool)),
        "Shape" | "Size" | "NonZero" | "SequenceLength" | "ArgMax" | "ArgMin" => all(Some(DType::I64)),
        "TopK" | "MaxPool" => vec![input(0), Some(DType::I64)],
        "Unique" => vec![input(0), Some(DType::I64), Some(DType::I64), Some(DType::I64)],
        "Dropout" => vec![input(0), Some(DType::Bool)],
        "OneHot" => all(input(2)),
        "ConstantOfShape" => {
            all(attribute(node, "value").map_or(Some(DType::F32), |it| of_code(it.t.as_ref()?.data_type())))
        }
        "Constant" => all(attribute(node, "value").and_then(|it| of_code(it.t.as_ref()?.data_type()))),
        "EyeLike" => all(named("dtype").or(input(0))),
        "MatMulInteger" | "ConvInteger" => all(Some(DType::I32)),
        "LayerNormalization" => vec![input(0), Some(DType::F32), Some(DType::F32)],
        "RegionFloat" => all(Some(DType::F32)),
        "If" | "Loop" | "Scan" => of_bodies(node, types),
        _ => all(input(0)),
    }
}

fn of_bodies(node: &NodeProto, types: &Types) -> Vec<Option<DType>> {
    let Some(body) = node.attribute.iter().find_map(|attribute| attribute.g.as_ref()) else { return Vec::new() };
    let inside = of_graph(body, types);
    let outputs = body.output.iter().map(|output| inside.get(output.name()).copied());
    // The first output of a Loop's body is whether it goes on.
    outputs.skip(usize::from(node.op_type() == "Loop")).collect()
}
