//! Models as text for people.

use std::fmt::Write;

use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto::dimension, type_proto,
};
use super::{NamedTensor, OnnxError, rewrite};
use crate::tensor::{DType, TensorView};

/// Elements shown of a tensor or list.
const SHOWN: usize = 6;
/// Subgraphs in subgraphs shown.
const MAX_DEPTH: usize = 8;

/// The model, one line an input, initializer, node and output, in the model's order; control characters escaped. No
/// line is cut: that is the terminal's business.
pub fn model_text(model: &ModelProto) -> Result<String, OnnxError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let mut text = String::new();
    let opsets: Vec<String> = model
        .opset_import
        .iter()
        .map(|opset| {
            format!("{} {}", if opset.domain().is_empty() { "ai.onnx" } else { opset.domain() }, opset.version())
        })
        .collect();
    let producer = format!("{} {}", model.producer_name(), model.producer_version());
    let header = format!(
        "model {}: ir {}, opset {}, by {}",
        graph.name(),
        model.ir_version(),
        if opsets.is_empty() { "none".to_owned() } else { opsets.join(", ") },
        if producer.trim().is_empty() { "unknown" } else { producer.trim() },
    );
    line(&mut text, 0, &header);
    if let Some(ran) = rewrite::ran(model) {
        line(&mut text, 0, &format!("passes: {ran}"));
    }
    write_graph(&mut text, graph, 1);
    for function in &model.functions {
        let (inputs, outputs) = (function.input.join(", "), function.output.join(", "));
        line(&mut text, 0, &format!("function {}::{}({inputs}) → {outputs}", function.domain(), function.name()));
        function.node.iter().for_each(|node| write_node(&mut text, node, 1));
    }
    Ok(text)
}

fn write_graph(text: &mut String, graph: &GraphProto, depth: usize) {
    let value = |info: &ValueInfoProto| format!("{}: {}", info.name(), type_text(info.r#type.as_ref()));
    graph.input.iter().for_each(|info| line(text, depth, &format!("input {}", value(info))));
    for tensor in &graph.initializer {
        line(text, depth, &format!("initializer {}: {}", tensor.name(), tensor_text(tensor)));
    }
    for sparse in &graph.sparse_initializer {
        let name = sparse.values.as_ref().map_or("", |values| values.name());
        line(text, depth, &format!("initializer {name}: sparse {:?}", sparse.dims));
    }
    graph.node.iter().for_each(|node| write_node(text, node, depth));
    graph.output.iter().for_each(|info| line(text, depth, &format!("output {}", value(info))));
}

fn write_node(text: &mut String, node: &NodeProto, depth: usize) {
    let prefix = if node.domain().is_empty() { String::new() } else { format!("{}::", node.domain()) };
    let plain: Vec<String> = node.attribute.iter().map(attribute_text).collect();
    let attributes = if plain.is_empty() { String::new() } else { format!(" {{{}}}", plain.join(", ")) };
    let outputs = node.output.join(", ");
    let inputs = node.input.join(", ");
    line(text, depth, &format!("{outputs} = {prefix}{}({inputs}){attributes}", node.op_type()));
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            line(text, depth + 1, &format!("{}: {}", attribute.name(), graph.name()));
            if depth < MAX_DEPTH {
                write_graph(text, graph, depth + 2);
            }
        }
    }
}

fn line(text: &mut String, depth: usize, content: &str) {
    text.extend(std::iter::repeat_n("  ", depth));
    for c in content.chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text.push('\n');
}

fn attribute_text(attribute: &AttributeProto) -> String {
    let list = |n: usize, shown: String| if n > SHOWN { format!("[{shown}, … {n}]") } else { format!("[{shown}]") };
    let join = |items: &mut dyn Iterator<Item = String>| items.take(SHOWN).collect::<Vec<_>>().join(", ");
    let bytes = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
    let value = match attribute.r#type() {
        _ if !attribute.ref_attr_name().is_empty() => format!("@{}", attribute.ref_attr_name()),
        AttributeType::Float => format!("{:?}", attribute.f()),
        AttributeType::Int => attribute.i().to_string(),
        AttributeType::String => bytes(attribute.s()),
        AttributeType::Tensor => attribute.t.as_ref().map_or_else(|| "none".to_owned(), tensor_text),
        AttributeType::Floats => {
            list(attribute.floats.len(), join(&mut attribute.floats.iter().map(|value| format!("{value:?}"))))
        }
        AttributeType::Ints => list(attribute.ints.len(), join(&mut attribute.ints.iter().map(i64::to_string))),
        AttributeType::Strings => list(attribute.strings.len(), join(&mut attribute.strings.iter().map(|s| bytes(s)))),
        AttributeType::Tensors => list(attribute.tensors.len(), join(&mut attribute.tensors.iter().map(tensor_text))),
        AttributeType::Graph | AttributeType::Graphs => "below".to_owned(),
        AttributeType::TypeProto => type_text(attribute.tp.as_ref()),
        other => other.as_str_name().to_lowercase(),
    };
    format!("{} = {value}", attribute.name())
}

fn tensor_text(tensor: &TensorProto) -> String {
    if let Ok(named) = NamedTensor::from_proto(tensor) {
        return format!("{} {}", named.desc, preview(&named.view()));
    }
    let dtype = dtype_name(tensor.data_type());
    let elsewhere = tensor.external_data.iter().find(|entry| entry.key() == "location");
    let place = elsewhere.map(|entry| format!(" in {}", entry.value())).unwrap_or_default();
    format!("{dtype}{:?}{place}", tensor.dims)
}

fn dtype_name(code: i32) -> String {
    match (DType::from_onnx(code), DataType::try_from(code)) {
        (Ok(dtype), _) => dtype.to_string(),
        (_, Ok(other)) => other.as_str_name().to_lowercase(),
        _ => format!("dtype {code}"),
    }
}

/// `float32[2, N]`, `sequence(int64[])`, or `?` where the model does not say.
pub fn type_text(value: Option<&TypeProto>) -> String {
    let dense = |code: i32, shape: Option<&TensorShapeProto>| format!("{}{}", dtype_name(code), shape_text(shape));
    match value.and_then(|value| value.value.as_ref()) {
        None => "?".to_owned(),
        Some(type_proto::Value::TensorType(tensor)) => dense(tensor.elem_type(), tensor.shape.as_ref()),
        Some(type_proto::Value::SparseTensorType(tensor)) => {
            format!("sparse {}", dense(tensor.elem_type(), tensor.shape.as_ref()))
        }
        Some(type_proto::Value::SequenceType(inner)) => format!("sequence({})", type_text(inner.elem_type.as_deref())),
        Some(type_proto::Value::OptionalType(inner)) => format!("optional({})", type_text(inner.elem_type.as_deref())),
        Some(type_proto::Value::MapType(map)) => {
            format!("map({}, {})", dtype_name(map.key_type()), type_text(map.value_type.as_deref()))
        }
        Some(type_proto::Value::OpaqueType(opaque)) => format!("opaque({}.{})", opaque.domain(), opaque.name()),
    }
}

fn shape_text(shape: Option<&TensorShapeProto>) -> String {
    let Some(shape) = shape else { return "[…]".to_owned() };
    let dims = shape.dim.iter().map(|dim| match &dim.value {
        Some(dimension::Value::DimValue(n)) => n.to_string(),
        Some(dimension::Value::DimParam(name)) => name.clone(),
        None => "?".to_owned(),
    });
    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
}

/// The first elements of a tensor: `[1.0, -2.5, … 1000]`. Elements of the 8-bit float types are shown as bits.
pub fn preview(tensor: &TensorView<'_>) -> String {
    let (size, n) = (tensor.dtype().size_bytes(), tensor.shape().n_elements());
    let mut text = "[".to_owned();
    for (at, element) in tensor.bytes().chunks_exact(size).take(SHOWN).enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}{}", element_text(tensor.dtype(), element));
    }
    if n > SHOWN {
        let _ = write!(text, ", … {n}");
    }
    text + "]"
}

fn element_text(dtype: DType, bytes: &[u8]) -> String {
    fn read<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or_default())
    }
    match dtype {
        DType::F32 => format!("{:?}", f32::from_le_bytes(read(bytes))),
        DType::F64 => format!("{:?}", f64::from_le_bytes(read(bytes))),
        DType::F16 => format!("{:?}", half::f16::from_le_bytes(read(bytes)).to_f32()),
        DType::BF16 => format!("{:?}", half::bf16::from_le_bytes(read(bytes)).to_f32()),
        DType::I8 => i8::from_le_bytes(read(bytes)).to_string(),
        DType::U8 => bytes[0].to_string(),
        DType::I16 => i16::from_le_bytes(read(bytes)).to_string(),
        DType::U16 => u16::from_le_bytes(read(bytes)).to_string(),
        DType::I32 => i32::from_le_bytes(read(bytes)).to_string(),
        DType::U32 => u32::from_le_bytes(read(bytes)).to_string(),
        DType::I64 => i64::from_le_bytes(read(bytes)).to_string(),
        DType::U64 => u64::from_le_bytes(read(bytes)).to_string(),
        DType::Bool => (bytes[0] != 0).to_string(),
        DType::C64 => {
            let (real, imaginary) = (f32::from_le_bytes(read(bytes)), f32::from_le_bytes(read(&bytes[4..])));
            format!("{real:?}{imaginary:+?}i")
        }
        DType::C128 => {
            let (real, imaginary) = (f64::from_le_bytes(read(bytes)), f64::from_le_bytes(read(&bytes[8..])));
            format!("{real:?}{imaginary:+?}i")
        }
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => format!("0x{:02x}", bytes[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{tensor_proto, value_info};
    use crate::tensor::{TensorBuf, TensorDesc};

    #[test]
    fn a_model_reads_as_lines() {
        let weight = TensorBuf::from_f32([2, 4], &[1., 2.5, -3., 4., 5., 6., 7., 8.]).unwrap();
        let attribute = AttributeProto {
            name: Some("perm".into()),
            r#type: Some(AttributeType::Ints as i32),
            ints: vec![1, 0],
            ..Default::default()
        };
        let node = NodeProto {
            op_type: Some("Transpose".into()),
            domain: Some("com.example".into()),
            input: vec!["w".into()],
            output: vec!["y\n".into()],
            attribute: vec![attribute],
            ..Default::default()
        };
        let graph = GraphProto {
            name: Some("main".into()),
            input: vec![value_info("x", &TensorDesc::new(DType::F16, [2, 3]).unwrap())],
            initializer: vec![tensor_proto("w", &weight.view())],
            node: vec![node],
            output: vec![ValueInfoProto { name: Some("y".into()), ..Default::default() }],
            ..Default::default()
        };
        let model = ModelProto { ir_version: Some(10), graph: Some(graph), ..Default::default() };
        assert_eq!(
            model_text(&model).unwrap(),
            "model main: ir 10, opset none, by unknown\n  input x: float16[2, 3]\n  \
             initializer w: float32[2, 4] [1.0, 2.5, -3.0, 4.0, 5.0, 6.0, … 8]\n  \
             y\\n = com.example::Transpose(w) {perm = [1, 0]}\n  output y: ?\n"
        );
    }

    #[test]
    fn the_passes_that_ran_are_a_line() {
        let graph = GraphProto {
            input: vec![ValueInfoProto { name: Some("x".into()), ..Default::default() }],
            node: ["Neg", "Identity", "Exp"]
                .into_iter()
                .zip([("x", "a"), ("a", "y"), ("a", "z")])
                .map(|(op, (input, output))| NodeProto {
                    op_type: Some(op.into()),
                    input: vec![input.into()],
                    output: vec![output.into()],
                    ..Default::default()
                })
                .collect(),
            output: ["y", "z"].map(|name| ValueInfoProto { name: Some(name.into()), ..Default::default() }).to_vec(),
            ..Default::default()
        };
        let mut model = ModelProto { graph: Some(graph), ..Default::default() };
        let lines =
            |model: &ModelProto| model_text(model).unwrap().lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&model)[0], "  input x: ?");
        assert!(rewrite::rewrite(&mut model, rewrite::Target::Cpu, &[]));
        assert_eq!(lines(&model)[..3], ["passes: output-copies 1", "  input x: ?", "  y = Neg(x)"]);
    }

    #[test]
    fn every_dtype_has_a_preview() {
        for &dtype in DType::ALL {
            let tensor = TensorBuf::zeros(TensorDesc::new(dtype, [2]).unwrap());
            let text = preview(&tensor.view());
            assert!(text.starts_with('[') && text.contains(", "), "{dtype}: {text}");
        }
    }
}
