//! `wide-sums`: sums and means of float32 that are taken in float64, of each channel. ONNX Runtime on the CPU would write
//! what it adds up wide first; on CUDA torch's kernels add such up in float32.

use std::collections::HashSet;

use super::constant_shapes::Numbers;
use super::nodes::{attribute, drop_unread, integer, is, node, only_output};
use super::values::Values;
use crate::onnx::DOMAIN;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::tensor::DType;

/// (x of float32) to the sums, or means, over every axis but one, added up in float64.
pub const WIDE_SUM: &str = "WideSum";
/// The axis that is left.
pub const LEFT_AXIS: &str = "left_axis";
/// 1: the other axes stay, with the size 1.
pub const KEEPDIMS: &str = "keepdims";
/// 1: means.
pub const AVERAGED: &str = "averaged";

/// Whether a node is such a sum.
pub(super) fn is_wide_sum(node: &NodeProto) -> bool {
    node.domain() == DOMAIN && node.op_type() == WIDE_SUM
}

/// Each Cast to float64, ReduceSum or ReduceMean, and Cast back, as a [`WIDE_SUM`].
pub(super) fn on_cpu(graph: &mut GraphProto) -> usize {
    replaced(graph, |found, reduction, output| {
        let mut new = node(WIDE_SUM, &[&found.input], output);
        new.domain = Some(DOMAIN.to_owned());
        let keeps = attribute(reduction, "keepdims").map_or(1, |keeps| keeps.i());
        let averaged = is(reduction, "ReduceMean").into();
        new.attribute =
            vec![integer(LEFT_AXIS, found.left_axis), integer(KEEPDIMS, keeps), integer(AVERAGED, averaged)];
        new
    })
}

/// Each of them in float32.
pub(super) fn on_cuda(graph: &mut GraphProto) -> usize {
    replaced(graph, |found, reduction, output| NodeProto {
        input: vec![found.input.clone(), reduction.input[1].clone()],
        output: vec![output.to_owned()],
        ..reduction.clone()
    })
}

fn replaced(graph: &mut GraphProto, new: impl Fn(&Found, &NodeProto, &str) -> NodeProto) -> usize {
    if !graph.node.iter().any(is_reduction) {
        return 0;
    }
    let values = Values::of(graph);
    let found: Vec<_> =
        graph.node.iter().enumerate().filter_map(|(at, node)| Found::of(graph, &values, at, node)).collect();
    let mut left = HashSet::new();
    for found in &found {
        let reduction = &graph.node[found.reduction];
        let cast = &graph.node[found.cast];
        let made = NodeProto { name: cast.name.clone(), ..new(found, reduction, &cast.output[0]) };
        left.insert(cast.input[0].clone());
        graph.node[found.cast] = made;
    }
    drop_unread(graph, &left);
    found.len()
}

fn is_reduction(node: &NodeProto) -> bool {
    is(node, "ReduceSum") || is(node, "ReduceMean")
}

struct Found {
    /// What is added up, in float32.
    input: String,
    left_axis: i64,
    /// The node that adds up, and the Cast to float32, which is its only reader.
    reduction: usize,
    cast: usize,
}

impl Found {
    fn of(graph: &GraphProto, values: &Values, at: usize, reduction: &NodeProto) -> Option<Self> {
        let [wide, axes] = reduction.input.as_slice() else { return None };
        let cast = values.only_reader(only_output(reduction).filter(|_| is_reduction(reduction))?)?;
        let to = |node: &NodeProto, dtype: DType| {
            is(node, "Cast") && attribute(node, "to").is_some_and(|to| to.i() == i64::from(dtype.onnx_code()))
        };
        let (_, widening) = values.producer(graph, wide)?;
        let input = widening.input.first().filter(|_| to(widening, DType::F64))?;
        if !to(&graph.node[cast], DType::F32) || !values.is_f32(input) {
            return None;
        }
        let rank = values.dims(input)?.len() as i64;
        let axes = values
            .producer(graph, axes)
            .and_then(|(_, axes)| Numbers::of(axes))
            .or_else(|| Numbers::of_tensor(graph.initializer.iter().find(|tensor| tensor.name() == axes)?))?;
        let summed: HashSet<i64> = axes.values.iter().map(|axis| axis.rem_euclid(rank.max(1))).collect();
        let [left_axis] = (0..rank).filter(|axis| !summed.contains(axis)).collect::<Vec<_>>()[..] else { return None };
        (summed.len() == axes.values.len()).then(|| Self { input: input.clone(), left_axis, reduction: at, cast })
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, of, text};
    use super::*;
    use crate::onnx::proto::{AttributeProto, attribute_proto::AttributeType};

    fn sum(op: &str, axes: &[i64], keeps: i64) -> GraphProto {
        let mut constant = node("Constant", &[], "axes");
        constant.attribute = vec![AttributeProto {
            name: Some("value_ints".to_owned()),
            ints: axes.to_vec(),
            r#type: Some(AttributeType::Ints as i32),
            ..AttributeProto::default()
        }];
        let [mut widening, mut reduction, mut cast] =
            [node("Cast", &["x"], "wide"), node(op, &["wide", "axes"], "sum"), node("Cast", &["sum"], "y")];
        widening.attribute = vec![integer("to", DType::F64.onnx_code().into())];
        reduction.attribute = vec![integer("keepdims", keeps)];
        cast.attribute = vec![integer("to", DType::F32.onnx_code().into())];
        graph(vec![constant, widening, reduction, cast], &[of("x", &[2, 3, 4, 5])], &[of("y", &[3])], &[])
    }

    #[test]
    fn a_sum_of_each_channel_in_float64_is_one_node() {
        for (op, axes, keeps, expected) in [
            ("ReduceSum", vec![0, 2, 3], 0, "y = WideSum(x) left_axis=1 keepdims=0 averaged=0"),
            ("ReduceMean", vec![-1, 0, 1], 1, "y = WideSum(x) left_axis=2 keepdims=1 averaged=1"),
        ] {
            let mut found = sum(op, &axes, keeps);
            assert_eq!(on_cpu(&mut found), 1);
            assert_eq!(text(&found), [expected]);
            assert!(is_wide_sum(&found.node[0]));
        }
        let mut found = sum("ReduceMean", &[0, 2, 3], 1);
        assert_eq!(on_cuda(&mut found), 1);
        assert_eq!(text(&found)[1..], ["y = ReduceMean(x, axes) keepdims=1"]);
    }

    #[test]
    fn other_sums_stay() {
        let changed = |change: fn(&mut GraphProto)| {
            let mut graph = sum("ReduceSum", &[0, 2, 3], 0);
            change(&mut graph);
            graph
        };
        let others = [
            sum("ReduceSum", &[0, 2], 0),
            sum("ReduceSum", &[0, 1, 2, 3], 0),
            sum("ReduceMax", &[0, 2, 3], 0),
            changed(|graph| graph.node[1].attribute[0].i = Some(1)),
            changed(|graph| graph.node[3].attribute[0].i = Some(10)),
            changed(|graph| graph.output.push(of("sum", &[3]))),
            changed(|graph| graph.input[0] = of("other", &[2, 3, 4, 5])),
        ];
        for other in others {
            let mut found = other.clone();
            assert_eq!((on_cpu(&mut found), &found), (0, &other));
            assert_eq!((on_cuda(&mut found), &found), (0, &other));
        }
    }
}
