//! Graph outputs that ONNX Runtime would not write.

use std::collections::{HashMap, HashSet};

use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType};
use super::walk;

/// Whether a Gemm reads a graph output that is a Transpose's result. GemmTransposeFusion of onnxruntime 1.31.1 takes the
/// Transposes of both its matrices away without asking whether one is an output: then nothing writes that, and the
/// memory given for it stays as it was.
pub fn has_transposed_outputs(model: &ModelProto) -> bool {
    model.graph.as_ref().is_some_and(|graph| {
        let transposed = transposed_outputs(graph);
        graph.node.iter().any(|node| node.op_type() == "Gemm" && node.input.iter().any(|n| transposed.contains_key(n)))
    })
}

/// The model in which each such Gemm has a Transpose of its own. It is written otherwise than the output's, and so is
/// no common subexpression.
pub fn keep_transposed_outputs(mut model: ModelProto) -> ModelProto {
    let Some(graph) = &mut model.graph else { return model };
    let transposed = transposed_outputs(graph);
    let mut names: HashSet<String> = walk::names(graph).into_iter().map(str::to_owned).collect();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let is_gemm = node.op_type() == "Gemm";
        for input in node.input.iter_mut().filter(|_| is_gemm) {
            let Some(output) = transposed.get(input) else { continue };
            let own = walk::fresh(&format!("{input}/own"), &mut names);
            nodes.push(otherwise(output, &own));
            *input = own;
        }
        nodes.push(node);
    }
    graph.node = nodes;
    model
}

/// {output: the Transpose that gives it}.
fn transposed_outputs(graph: &GraphProto) -> HashMap<String, NodeProto> {
    let outputs: HashSet<&str> = graph.output.iter().map(|info| info.name()).collect();
    let transposes = graph.node.iter().filter(|node| node.op_type() == "Transpose");
    transposes
        .filter_map(|node| Some((node.output.first()?, node)))
        .filter(|(name, _)| outputs.contains(name.as_str()))
        .map(|(name, node)| (name.clone(), node.clone()))
        .collect()
}

/// The Transpose of a matrix again, by name: with `perm` where it had none, without it where it had.
fn otherwise(transpose: &NodeProto, output: &str) -> NodeProto {
    let perm = AttributeProto {
        name: Some("perm".to_owned()),
        ints: vec![1, 0],
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    };
    NodeProto {
        name: Some(output.to_owned()),
        output: vec![output.to_owned()],
        attribute: if transpose.attribute.is_empty() { vec![perm] } else { Vec::new() },
        ..transpose.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::{DType, TensorDesc};

    fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        }
    }

    fn model(nodes: Vec<NodeProto>) -> ModelProto {
        let output = |name| value_info(name, &TensorDesc::new(DType::F32, [2, 2]).unwrap());
        let graph = GraphProto { node: nodes, output: vec![output("t"), output("y")], ..GraphProto::default() };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn a_gemm_reads_a_transpose_of_its_own() {
        let read = |first: &str| vec![node("Transpose", &["x"], "t"), node("Gemm", &[first, "w", "c"], "y")];
        assert!(!has_transposed_outputs(&model(read("x"))));
        assert!(!has_transposed_outputs(&model(vec![
            node("Transpose", &["x"], "t"),
            node("MatMul", &["t", "w"], "y")
        ])));
        let found = model(read("t"));
        assert!(has_transposed_outputs(&found));
        let kept = keep_transposed_outputs(found);
        assert!(!has_transposed_outputs(&kept));
        let nodes = kept.graph.unwrap().node;
        assert_eq!((nodes[1].input.as_slice(), nodes[1].output.as_slice()), (&["x".into()][..], &["t/own".into()][..]));
        assert_eq!(nodes[2].input, ["t/own", "w", "c"]);
        assert_ne!(nodes[0].attribute, nodes[1].attribute);
    }
}
