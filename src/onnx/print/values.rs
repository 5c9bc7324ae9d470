//! Names, attributes, tensors and types as text.

use std::collections::HashMap;
use std::fmt::Write;

use crate::base::quoted::is_printable;
use crate::onnx::NamedTensor;
use crate::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType, tensor_proto::DataLocation, tensor_proto::DataType, tensor_shape_proto::dimension,
    type_proto,
};
use crate::tensor::{DType, Shape, TensorView};

/// Elements shown of a tensor or list.
const SHOWN: usize = 6;
/// Bytes shown of a text attribute.
const SHOWN_BYTES: usize = 200;

/// `com.microsoft:overload`; empty for ONNX's own operators.
pub(super) fn domain_text(node: &NodeProto) -> String {
    let domain = if node.domain() == "ai.onnx" { "" } else { node.domain() };
    let colon = if node.overload().is_empty() { "" } else { ":" };
    format!("{domain}{colon}{}", node.overload())
}

/// What a graph or a function says of the types of its values.
pub(super) fn types_of<'a>(infos: impl Iterator<Item = &'a ValueInfoProto>) -> HashMap<&'a str, &'a TypeProto> {
    infos.filter_map(|info| Some((info.name(), info.r#type.as_ref()?))).collect()
}

pub(super) fn types_of_graph(graph: &GraphProto) -> HashMap<&str, &TypeProto> {
    types_of(graph.value_info.iter().chain(&graph.output).chain(&graph.input))
}

/// Appends what stays on one line and moves nothing in a terminal.
pub(super) fn escape(text: &mut String, content: &str) {
    for c in content.chars() {
        if c.is_control() {
            text.extend(c.escape_default())
        } else if is_printable(c) {
            text.push(c)
        } else {
            text.extend(c.escape_unicode())
        }
    }
}

/// `'name'`, as Python writes it; control characters are the line's business.
pub(super) fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// `name=value`.
pub(super) fn attribute_text(attribute: &AttributeProto) -> String {
    format!("{}={}", attribute.name(), attribute_value(attribute))
}

/// The value of an attribute; graphs stand below their node.
pub(super) fn attribute_value(attribute: &AttributeProto) -> String {
    let list = |n: usize, shown: String| if n > SHOWN { format!("[{shown},… {n}]") } else { format!("[{shown}]") };
    let join = |items: &mut dyn Iterator<Item = String>| items.take(SHOWN).collect::<Vec<_>>().join(",");
    let bytes = |bytes: &[u8]| quoted(&String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]));
    let sparse = |tensors: &[SparseTensorProto]| join(&mut tensors.iter().map(sparse_text));
    match attribute.r#type() {
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
        AttributeType::SparseTensor => attribute.sparse_tensor.as_ref().map_or_else(|| "none".to_owned(), sparse_text),
        AttributeType::SparseTensors => list(attribute.sparse_tensors.len(), sparse(&attribute.sparse_tensors)),
        AttributeType::TypeProto => type_text(attribute.tp.as_ref()),
        other => other.as_str_name().to_lowercase(),
    }
}

fn tensor_text(tensor: &TensorProto) -> String {
    let content = content(tensor);
    let space = if content.is_empty() { "" } else { " " };
    format!("{}{:?}{space}{content}", dtype_name(tensor.data_type()), tensor.dims)
}

fn sparse_text(sparse: &SparseTensorProto) -> String {
    let code = sparse.values.as_ref().map_or(0, |values| values.data_type());
    format!("{}{:?} {}", dtype_name(code), sparse.dims, sparse_content(sparse))
}

/// `type=float32 shape=(2,) -- [1.0, 2.5]`.
pub(super) fn initializer_text(tensor: &TensorProto) -> String {
    described(tensor.data_type(), &tensor.dims, &content(tensor))
}

/// The same of a sparse one: how many of its elements are not zero.
pub(super) fn sparse_initializer_text(sparse: &SparseTensorProto) -> String {
    let code = sparse.values.as_ref().map_or(0, |values| values.data_type());
    described(code, &sparse.dims, &sparse_content(sparse))
}

fn sparse_content(sparse: &SparseTensorProto) -> String {
    let n = sparse.values.as_ref().and_then(|values| values.dims.first()).copied().unwrap_or_default();
    format!("sparse, {n} set")
}

/// `name='x' type=float32 shape=(2,) -- [1.0, 2.5]`, escaped.
pub fn tensor_line(tensor: &NamedTensor) -> String {
    let (code, dims) = (tensor.desc.dtype.onnx_code(), tensor.desc.shape.dims());
    let mut line = String::new();
    let described = described(code, dims, &preview(&tensor.view()));
    escape(&mut line, &format!("name={} {described}", quoted(&tensor.name)));
    line
}

fn described(code: i32, dims: &[i64], content: &str) -> String {
    let dash = if content.is_empty() { "" } else { " -- " };
    format!("type={} shape={}{dash}{content}", dtype_name(code), tuple(dims))
}

/// As Python writes a tuple: `()`, `(2,)`, `(2, 3)`.
fn tuple(dims: &[i64]) -> String {
    let comma = if dims.len() == 1 { "," } else { "" };
    format!("({}{comma})", dims.iter().map(i64::to_string).collect::<Vec<_>>().join(", "))
}

/// The first elements, or where they stand; nothing where neither is known.
fn content(tensor: &TensorProto) -> String {
    if tensor.data_location() == DataLocation::External {
        let place = |key: &str| tensor.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value());
        let range = ["offset", "length"].into_iter().filter_map(|key| Some(format!(" {key} {}", place(key)?)));
        return format!("in file {}{}", quoted(place("location").unwrap_or_default()), range.collect::<String>());
    }
    elements(tensor)
}

/// The first elements of a tensor that stands in the model; nothing of types that are not shown.
pub(super) fn elements(tensor: &TensorProto) -> String {
    match NamedTensor::from_proto(tensor) {
        Ok(named) => preview(&named.view()),
        Err(_) => texts(tensor).or_else(|| four_bits(tensor)).unwrap_or_default(),
    }
}

fn texts(tensor: &TensorProto) -> Option<String> {
    let n = tensor.string_data.len();
    let is_text = tensor.data_type() == DataType::String as i32 && n > 0;
    let shown = || tensor.string_data.iter().take(SHOWN);
    let text = |bytes: &[u8]| quoted(&String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES)]));
    is_text.then(|| listed(n, shown().map(|bytes| text(bytes))))
}

/// Two elements a byte, the first in its lower half.
fn four_bits(tensor: &TensorProto) -> Option<String> {
    let is_signed = match DataType::try_from(tensor.data_type()) {
        Ok(DataType::Int4) => true,
        Ok(DataType::Uint4) => false,
        _ => return None,
    };
    let n = tensor.dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(usize::try_from(dim).ok()?))?;
    let bytes: Vec<u8> = match tensor.raw_data.as_deref() {
        Some(raw) if !raw.is_empty() => raw.iter().copied().take(SHOWN).collect(),
        _ => tensor.int32_data.iter().map(|&byte| byte as u8).take(SHOWN).collect(),
    };
    let all = bytes.iter().flat_map(|byte| [byte & 0xf, byte >> 4]).take(n.min(SHOWN));
    let all: Vec<String> = all
        .map(|bits| if is_signed && bits > 7 { (i32::from(bits) - 16).to_string() } else { bits.to_string() })
        .collect();
    (all.len() == n.min(SHOWN)).then(|| listed(n, all.into_iter()))
}

/// `[1, 2, … 1000]`.
fn listed(n: usize, shown: impl Iterator<Item = String>) -> String {
    let more = if n > SHOWN { format!(", … {n}") } else { String::new() };
    format!("[{}{more}]", shown.collect::<Vec<_>>().join(", "))
}

pub(super) fn dtype_name(code: i32) -> String {
    match (DType::from_onnx(code), DataType::try_from(code)) {
        (Ok(dtype), _) => dtype.to_string(),
        (_, Ok(other)) => other.as_str_name().to_lowercase(),
        _ => format!("dtype {code}"),
    }
}

/// `type=dtype('float32') shape=[2, 'N']`; `?` for what the model does not say.
pub(super) fn value_text(value: Option<&TypeProto>) -> String {
    let known = value.and_then(|value| value.value.as_ref());
    let Some(type_proto::Value::TensorType(tensor)) = known else {
        return format!("type={} shape=?", type_text(value));
    };
    let shape = tensor.shape.as_ref().map_or_else(|| "?".to_owned(), |shape| dims_text(shape, quoted));
    format!("type=dtype('{}') shape={shape}", dtype_name(tensor.elem_type()))
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
    shape.map_or_else(|| "[…]".to_owned(), |shape| dims_text(shape, str::to_owned))
}

fn dims_text(shape: &TensorShapeProto, name: impl Fn(&str) -> String) -> String {
    let dims = shape.dim.iter().map(|dim| match &dim.value {
        Some(dimension::Value::DimValue(n)) => n.to_string(),
        Some(dimension::Value::DimParam(param)) => name(param),
        None => "?".to_owned(),
    });
    let (n, most) = (shape.dim.len(), Shape::MAX_RANK);
    let more = if n > most { format!(", … {n}") } else { String::new() };
    format!("[{}{more}]", dims.take(most).collect::<Vec<_>>().join(", "))
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
    use crate::tensor::{TensorBuf, TensorDesc};

    #[test]
    fn every_dtype_has_a_preview() {
        for &dtype in DType::ALL {
            let tensor = TensorBuf::zeros(TensorDesc::new(dtype, [2]).unwrap());
            let text = preview(&tensor.view());
            assert!(text.starts_with('[') && text.contains(", "), "{dtype}: {text}");
        }
    }

    #[test]
    fn shapes_of_initializers_are_tuples() {
        for (dims, expected) in [(&[][..], "()"), (&[2], "(2,)"), (&[2, 3], "(2, 3)")] {
            assert_eq!(tuple(dims), expected);
        }
    }
}
