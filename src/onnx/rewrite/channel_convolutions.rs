//! `channel-convolutions`: convolutions of float32 each of whose groups gives one channel ("depthwise"), their gradients
//! among them. ONNX Runtime lays each channel out and multiplies matrices of one row, unless weights are constants.

use super::nodes::{attribute, is, only_output, perm};
use super::values::{Dim, Values};
use crate::onnx::DOMAIN;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto};

/// A Conv, or a ConvTranspose, whose `group` is the number of its output's channels, of one or two spatial dimensions;
/// inputs and attributes are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelConvolution {
    /// Of a Conv: the input may have several channels for each of the output's.
    Plain,
    /// Of a ConvTranspose: it has one.
    Transposed,
}

/// Largest stride and dilation, and margin, of such a node: what it lays a plane out in grows with them.
const MOST_STEPS: i64 = 64;

impl ChannelConvolution {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Transposed];

    /// The operator of our domain.
    pub const fn operator(self) -> &'static str {
        match self {
            Self::Plain => "ChannelConv",
            Self::Transposed => "ChannelConvTranspose",
        }
    }

    const fn stands_for(self) -> &'static str {
        match self {
            Self::Plain => "Conv",
            Self::Transposed => "ConvTranspose",
        }
    }

    fn of(graph: &GraphProto, node: &NodeProto, values: &Values) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|kind| is(node, kind.stands_for()))?;
        let group = attribute(node, "group").map(AttributeProto::i).filter(|&group| group > 1)?;
        let [input, weight, ..] = node.input.as_slice() else { return None };
        only_output(node)?;
        let of_weight = dims(graph, values, weight)?;
        let one_each = of_weight.first() == Some(&Dim::Is(group));
        let inner_is_one = || of_weight.get(1) == Some(&Dim::Is(1));
        let is_known = matches!(of_weight.len(), 3 | 4) && values.is_f32(input) && has_plain_attributes(node);
        (one_each && is_known && (found == Self::Plain || inner_is_one())).then_some(found)
    }
}

/// Sizes of a value, or of what a Transpose that gives it reads.
fn dims(graph: &GraphProto, values: &Values, name: &str) -> Option<Vec<Dim>> {
    if let Some(dims) = values.dims(name) {
        return Some(dims.to_vec());
    }
    let (_, transpose) = values.producer(graph, name)?;
    let (perm, read) = (perm(transpose)?, values.dims(transpose.input.first()?)?);
    perm.iter().map(|&axis| read.get(usize::try_from(axis).ok()?).cloned()).collect()
}

/// Whether a node is of one of the operators.
pub(super) fn is_channel_convolution(node: &NodeProto) -> bool {
    node.domain() == DOMAIN && ChannelConvolution::ALL.iter().any(|kind| kind.operator() == node.op_type())
}

/// Whether sizes of the output are what strides, dilations and margins make of the input's.
fn has_plain_attributes(node: &NodeProto) -> bool {
    node.attribute.iter().all(|attribute| match attribute.name() {
        "auto_pad" => attribute.s() == b"NOTSET",
        "output_shape" => false,
        "strides" | "dilations" => attribute.ints.iter().all(|step| (1..=MOST_STEPS).contains(step)),
        "pads" | "output_padding" => attribute.ints.iter().all(|size| (0..=MOST_STEPS).contains(size)),
        _ => true,
    })
}

/// How many nodes became such operators.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let is_grouped = |node: &NodeProto| attribute(node, "group").is_some_and(|group| group.i() > 1);
    if !graph.node.iter().any(is_grouped) {
        return 0;
    }
    let values = Values::of(graph);
    let found: Vec<_> = graph.node.iter().map(|node| ChannelConvolution::of(graph, node, &values)).collect();
    for (node, kind) in graph.node.iter_mut().zip(&found) {
        if let Some(kind) = kind {
            (node.domain, node.op_type) = (Some(DOMAIN.to_owned()), Some(kind.operator().to_owned()));
        }
    }
    found.iter().flatten().count()
}

#[cfg(test)]
mod tests {
    use super::super::nodes::integer;
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::proto::attribute_proto::AttributeType;

    fn integers(name: &str, numbers: &[i64]) -> AttributeProto {
        AttributeProto {
            name: Some(name.to_owned()),
            ints: numbers.to_vec(),
            r#type: Some(AttributeType::Ints as i32),
            ..AttributeProto::default()
        }
    }

    fn convolution(op: &str, group: i64, input: &[i64], weight: &[i64], others: &[AttributeProto]) -> GraphProto {
        let mut convolution = node(op, &["x", "w", "b"], "y");
        convolution.attribute = vec![integer("group", group)];
        convolution.attribute.extend_from_slice(others);
        graph(vec![convolution], &[of("x", input), of("w", weight), of("b", &[group])], &[of("y", &[])], &[])
    }

    #[test]
    fn a_group_that_gives_one_channel_is_one_of_ours() {
        let others = [integers("strides", &[2, 1]), integers("pads", &[1, 1, 1, 1])];
        let found = [
            convolution("Conv", 6, &[2, 6, 9, 9], &[6, 1, 3, 3], &others),
            convolution("Conv", 6, &[2, 6, 9], &[6, 1, 3], &[]),
            convolution("Conv", 6, &[1, 12, 9, 9], &[6, 2, 7, 7], &[]),
            convolution("ConvTranspose", 6, &[2, 6, 9, 9], &[6, 1, 3, 3], &[integers("output_padding", &[1, 0])]),
        ];
        for mut graph in found {
            let op = graph.node[0].op_type().to_owned();
            assert_eq!(run(&mut graph), 1);
            assert!(text(&graph)[0].starts_with(&format!("y = Channel{op}(x, w, b) group=6")), "{:?}", text(&graph));
            assert!(is_channel_convolution(&graph.node[0]));
            assert_eq!(run(&mut graph), 0);
        }
    }

    #[test]
    fn a_weight_that_is_transposed_is_told_by_what_that_reads() {
        let mut graph = convolution("Conv", 6, &[1, 12, 9, 9], &[2, 6, 7, 7], &[]);
        let mut transposed = node("Transpose", &["w"], "turned");
        transposed.attribute = vec![integers("perm", &[1, 0, 2, 3])];
        graph.node[0].input[1] = "turned".to_owned();
        graph.node.insert(0, transposed);
        assert_eq!(run(&mut graph), 1);
        assert_eq!(text(&graph)[1], "y = ChannelConv(x, turned, b) group=6");
    }

    #[test]
    fn other_convolutions_stay() {
        let text = |name: &str, text: &str| AttributeProto {
            name: Some(name.to_owned()),
            s: Some(text.as_bytes().to_vec()),
            ..AttributeProto::default()
        };
        let (x, w) = ([2, 6, 9, 9], [6, 1, 3, 3]);
        let others = [
            convolution("Conv", 1, &[2, 6, 9, 9], &[1, 6, 3, 3], &[]),
            convolution("Conv", 3, &x, &[6, 2, 3, 3], &[]),
            convolution("Conv", 6, &[2, 6, 9, 9, 9], &[6, 1, 3, 3, 3], &[]),
            convolution("Conv", 6, &x, &w, &[text("auto_pad", "SAME_UPPER")]),
            convolution("Conv", 6, &x, &w, &[integers("dilations", &[65, 1])]),
            convolution("Conv", 6, &x, &w, &[integers("pads", &[-1, 0, 0, 0])]),
            convolution("ConvTranspose", 3, &[2, 6, 9, 9], &[6, 1, 3, 3], &[]),
            convolution("ConvTranspose", 6, &x, &[6, 2, 3, 3], &[]),
            convolution("ConvTranspose", 6, &x, &w, &[integers("output_shape", &[9, 9])]),
        ];
        for graph in others {
            let mut found = graph.clone();
            assert_eq!((run(&mut found), &found), (0, &graph));
        }
    }
}
