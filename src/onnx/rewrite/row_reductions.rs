//! Rows added up by index into zeros, which is an embedding's gradient, and their extremes, which graph networks take:
//! ONNX has ScatterElements for it, of indices that are spread over the columns and of numbers to start with as many as
//! the result.

use std::collections::HashSet;

use super::nodes::{attribute, drop_unread, integer, is, node, only_output};
use super::values::{Dim, Values};
use crate::onnx::DOMAIN;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use crate::tensor::DType;

/// (indices [rows, 1] or [1, 1], updates [rows, columns], shape) to a matrix of this shape: of each row what the updates
/// with its index come to. An extreme of NaN and anything is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowReduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl RowReduction {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Min];

    /// The operator of our domain.
    pub const fn operator(self) -> &'static str {
        match self {
            Self::Sum => "AddRows",
            Self::Max => "MaxRows",
            Self::Min => "MinRows",
        }
    }

    /// What a row is that no update comes to.
    pub const fn start(self) -> f32 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
        }
    }

    /// As ScatterElements has it.
    fn of(reduction: &[u8]) -> Option<Self> {
        match reduction {
            b"add" => Some(Self::Sum),
            b"max" => Some(Self::Max),
            b"min" => Some(Self::Min),
            _ => None,
        }
    }
}

/// What is added to a negative index of a [`RowReduction`] before it counts from the end: our exports make one that
/// eager refuses far too small.
pub const BELOW: &str = "below";

/// Puts a [`RowReduction`] in the place of such ScatterElements of float32 in the main graph; how many.
pub fn reduce_rows(model: &mut ModelProto) -> usize {
    let Some(graph) = &mut model.graph else { return 0 };
    if !graph.node.iter().any(|node| is(node, "ScatterElements")) {
        return 0;
    }
    let values = Values::of(graph);
    let found: Vec<_> =
        (0..graph.node.len()).filter_map(|at| Some((at, Found::of(graph, &values, &graph.node[at])?))).collect();
    let mut left = HashSet::new();
    for (at, Found { reduction, indices, shape, below }) in &found {
        let old = &mut graph.node[*at];
        left.extend([old.input[0].clone(), old.input[1].clone()]);
        let mut new = node(reduction.operator(), &[indices, &old.input[2], shape], &old.output[0]);
        (new.name, new.domain) = (old.name.clone(), Some(DOMAIN.to_owned()));
        new.attribute = vec![integer(BELOW, *below)];
        *old = new;
    }
    drop_unread(graph, &left);
    found.len()
}

/// What a ScatterElements adds, and where.
struct Found {
    reduction: RowReduction,
    indices: String,
    shape: String,
    below: i64,
}

impl Found {
    fn of(graph: &GraphProto, values: &Values, scatter: &NodeProto) -> Option<Self> {
        let text = |name: &str| attribute(scatter, name).map(|set| set.s());
        let by_row = attribute(scatter, "axis").is_none_or(|axis| axis.i() == 0);
        if !is(scatter, "ScatterElements") || !by_row {
            return None;
        }
        let reduction = RowReduction::of(text("reduction")?)?;
        let [data, spread, updates] = scatter.input.as_slice() else { return None };
        let output = only_output(scatter)?;
        let ([_, wide], [_, columns]) = (values.matrix(updates)?, values.matrix(output)?);
        if !values.is_f32(updates) || !wide.equals(columns) {
            return None; // it may add to the first columns only
        }
        let (spread, below) = below_of(graph, values, spread).unwrap_or((spread, 0));
        let (_, expand) = values.producer(graph, spread)?;
        let indices = expand.input.first().filter(|_| is(expand, "Expand"))?;
        let [_, columns] = values.matrix(indices)?;
        let is_long = values.element(indices) == Some(DType::I64.onnx_code());
        let shape = shape_of_start(values, graph, data, reduction)?;
        (is_long && *columns == Dim::Is(1)).then(|| Self {
            reduction,
            indices: indices.clone(),
            shape: shape.to_owned(),
            below,
        })
    }
}

/// The shape that what a reduction starts with was made of, in float32, cast or not.
fn shape_of_start<'a>(values: &Values, graph: &'a GraphProto, name: &str, reduction: RowReduction) -> Option<&'a str> {
    let (_, mut made) = values.producer(graph, name)?;
    if is(made, "Cast") || is(made, "CastLike") {
        made = values.producer(graph, made.input.first()?)?.1;
    }
    let number = match attribute(made, "value") {
        None => Some(0.0),
        Some(value) => value.t.as_ref().and_then(only_number),
    };
    let starts = number.is_some_and(|number| number.to_bits() == reduction.start().to_bits());
    made.input.first().filter(|_| is(made, "ConstantOfShape") && starts).map(String::as_str)
}

/// The number that a tensor holds, as its bytes; 0 of any type whose bits all are.
fn only_number(tensor: &TensorProto) -> Option<f32> {
    let empty = tensor.float_data.is_empty() && tensor.int32_data.is_empty() && tensor.int64_data.is_empty();
    let others = tensor.double_data.is_empty() && tensor.uint64_data.is_empty() && tensor.external_data.is_empty();
    let bytes = tensor.raw_data();
    if !empty || !others || bytes.is_empty() {
        return None;
    }
    if bytes.iter().all(|&byte| byte == 0) {
        return Some(0.0);
    }
    let is_float = tensor.data_type() == DType::F32.onnx_code();
    <[u8; 4]>::try_from(bytes).ok().filter(|_| is_float).map(f32::from_le_bytes)
}

/// (indices, what is added to negative ones) of Where(Less(indices, 0), Add(indices, below), indices).
fn below_of<'a>(graph: &'a GraphProto, values: &Values, name: &str) -> Option<(&'a str, i64)> {
    let made = |name: &str, op: &str, n_inputs: usize| {
        let (_, node) = values.producer(graph, name)?;
        (is(node, op) && node.input.len() == n_inputs).then_some(node)
    };
    let choice = made(name, "Where", 3)?;
    let (less, add) = (made(&choice.input[0], "Less", 2)?, made(&choice.input[1], "Add", 2)?);
    let indices = &choice.input[2];
    let same = less.input[0] == *indices && add.input[0] == *indices;
    let limit = number(graph, values, &less.input[1])?;
    let below = number(graph, values, &add.input[1])?;
    (same && limit == 0).then_some((indices, below))
}

/// A constant whole number.
fn number(graph: &GraphProto, values: &Values, name: &str) -> Option<i64> {
    let of_weight = || graph.initializer.iter().find(|tensor| tensor.name() == name);
    let constant = values.producer(graph, name).map(|(_, node)| node);
    let tensor = match constant {
        Some(node) => attribute(node, "value").filter(|_| is(node, "Constant"))?.t.as_ref()?,
        None => of_weight()?,
    };
    if !tensor.dims.is_empty() || tensor.data_type() != DType::I64.onnx_code() {
        return None;
    }
    match (tensor.raw_data(), tensor.int64_data.as_slice()) {
        ([], &[number]) => Some(number),
        (raw, []) => raw.try_into().ok().map(i64::from_le_bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::proto::{AttributeProto, ValueInfoProto};
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn longs(name: &str, dims: &[i64]) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::I64, dims).unwrap())
    }

    fn long(name: &str, number: i64) -> TensorProto {
        TensorProto {
            name: Some(name.to_owned()),
            data_type: Some(DType::I64.onnx_code()),
            int64_data: vec![number],
            ..TensorProto::default()
        }
    }

    /// As an embedding's gradient is exported.
    fn gradient(indices: &[i64]) -> ModelProto {
        let mut scatter = node("ScatterElements", &["zeros", "chosen", "updates"], "y");
        scatter.attribute = vec![integer("axis", 0)];
        scatter.attribute.push(AttributeProto {
            name: Some("reduction".to_owned()),
            s: Some(b"add".as_slice().into()),
            ..AttributeProto::default()
        });
        let nodes = vec![
            node("ConstantOfShape", &["shape"], "made"),
            node("CastLike", &["made", "updates"], "zeros"),
            node("Expand", &["indices", "spread_to"], "spread"),
            node("Less", &["spread", "zero"], "is_negative"),
            node("Add", &["spread", "far"], "below"),
            node("Where", &["is_negative", "below", "spread"], "chosen"),
            scatter,
        ];
        let inputs =
            [longs("indices", indices), of("updates", &[5, 3]), longs("shape", &[2]), longs("spread_to", &[2])];
        let mut graph = graph(nodes, &inputs, &[of("y", &[7, 3])], &[]);
        graph.initializer = vec![long("zero", 0), long("far", -9)];
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn an_embeddings_gradient_is_one_node() {
        let mut found = gradient(&[5, 1]);
        assert_eq!(reduce_rows(&mut found), 1);
        let graph = found.graph.unwrap();
        assert_eq!(text(&graph), ["y = AddRows(indices, updates, shape) below=-9"]);
        assert_eq!(graph.node[0].domain(), DOMAIN);
    }

    /// The same of an extreme, which starts with `number`.
    fn extreme(reduction: &str, number: f32) -> ModelProto {
        let mut model = gradient(&[5, 1]);
        let graph = model.graph.as_mut().unwrap();
        graph.node[6].attribute[1].s = Some(reduction.to_owned().into_bytes());
        let start = TensorProto {
            data_type: Some(DType::F32.onnx_code()),
            raw_data: Some(number.to_le_bytes().to_vec().into()),
            ..TensorProto::default()
        };
        graph.node[0].attribute =
            vec![AttributeProto { name: Some("value".to_owned()), t: Some(start), ..AttributeProto::default() }];
        model
    }

    #[test]
    fn an_extreme_of_rows_is_one_node_where_it_starts_beyond_every_number() {
        for (reduction, number, expected) in [
            ("max", f32::NEG_INFINITY, "y = MaxRows(indices, updates, shape) below=-9"),
            ("min", f32::INFINITY, "y = MinRows(indices, updates, shape) below=-9"),
        ] {
            let mut found = extreme(reduction, number);
            assert_eq!(reduce_rows(&mut found), 1);
            assert_eq!(text(&found.graph.unwrap()), [expected]);
        }
        for (reduction, number) in [("max", 0.0), ("max", f32::INFINITY), ("min", f32::NEG_INFINITY), ("mul", 1.0)] {
            assert_eq!(reduce_rows(&mut extreme(reduction, number)), 0, "{reduction} {number}");
        }
    }

    #[test]
    fn what_is_something_else_stays() {
        let changed = |change: fn(&mut GraphProto)| {
            let mut model = gradient(&[5, 1]);
            change(model.graph.as_mut().unwrap());
            model
        };
        let others = [
            gradient(&[5, 3]),
            changed(|graph| graph.input[1] = of("updates", &[5, 2])),
            changed(|graph| graph.node[6].attribute[0].i = Some(1)),
            changed(|graph| graph.node[6].attribute.truncate(1)),
            changed(|graph| graph.initializer[0].int64_data = vec![1]),
            changed(|graph| graph.node[3].input[0] = "other".to_owned()),
            changed(|graph| graph.node[0].op_type = Some("Other".to_owned())),
            changed(|graph| {
                let one =
                    TensorProto { raw_data: Some(1.0_f32.to_le_bytes().to_vec().into()), ..TensorProto::default() };
                graph.node[0].attribute =
                    vec![AttributeProto { name: Some("value".to_owned()), t: Some(one), ..AttributeProto::default() }];
            }),
        ];
        for other in others {
            let mut found = other.clone();
            assert_eq!((reduce_rows(&mut found), &found), (0, &other));
        }
    }
}
