//! Graph outputs that ONNX Runtime would not write.

use std::collections::{HashMap, HashSet};

use super::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType};
use super::{precision::is, walk};

/// Whether a Gemm reads a graph output that is a Transpose's result, or both by way of Identities, which ONNX Runtime
/// leaves out first. GemmTransposeFusion of onnxruntime 1.31.1 takes the Transposes of both its matrices away without
/// asking whether one is an output: then nothing writes that, and the memory given for it stays as it was.
pub fn has_transposed_outputs(model: &ModelProto) -> bool {
    model.graph.as_ref().is_some_and(|graph| {
        let transposed = Transposed::of(graph);
        let mut of_gemms = graph.node.iter().filter(|node| is(node, "Gemm")).flat_map(|node| node.input.iter().take(2));
        of_gemms.any(|matrix| transposed.get(matrix).is_some())
    })
}

/// The model in which each such Gemm has a Transpose of its own. It is written otherwise than the output's, and so is
/// no common subexpression.
pub fn keep_transposed_outputs(mut model: ModelProto) -> ModelProto {
    let Some(graph) = &mut model.graph else { return model };
    let transposed = Transposed::of(graph);
    let mut names: HashSet<String> = walk::names(graph).into_iter().map(str::to_owned).collect();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let n_matrices = if is(&node, "Gemm") { 2 } else { 0 };
        for matrix in node.input.iter_mut().take(n_matrices) {
            let Some(output) = transposed.get(matrix) else { continue };
            let own = walk::fresh(&format!("{matrix}/own"), &mut names);
            nodes.push(otherwise(output, &own));
            *matrix = own;
        }
        nodes.push(node);
    }
    graph.node = nodes;
    model
}

/// The Transposes that give graph outputs.
struct Transposed {
    by_result: HashMap<String, NodeProto>,
    /// {an Identity's result: what it reads}.
    same: HashMap<String, String>,
}

impl Transposed {
    fn of(graph: &GraphProto) -> Self {
        let results = |op: &'static str| {
            let nodes = graph.node.iter().filter(move |node| is(node, op));
            nodes.filter_map(|node| Some((node.output.first()?.clone(), node)))
        };
        let same = results("Identity").filter_map(|(name, node)| Some((name, node.input.first()?.clone()))).collect();
        let mut found = Self { by_result: HashMap::new(), same };
        let outputs: HashSet<&str> = graph.output.iter().map(|info| found.origin(info.name())).collect();
        let shown = results("Transpose").filter(|(name, _)| outputs.contains(name.as_str()));
        found.by_result = shown.map(|(name, node)| (name, node.clone())).collect();
        found
    }

    fn get(&self, name: &str) -> Option<&NodeProto> {
        self.by_result.get(self.origin(name))
    }

    /// What a value is the same as, through Identities; a circle of them, which is no valid model, ends somewhere.
    fn origin<'a>(&'a self, mut name: &'a str) -> &'a str {
        for _ in 0..=self.same.len() {
            let Some(source) = self.same.get(name) else { break };
            name = source;
        }
        name
    }
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

    #[test]
    fn identities_are_seen_through_and_other_inputs_left_alone() {
        let gemm = |first: &str| node("Gemm", &[first, "w", "c"], "y");
        let read_by_one = vec![node("Transpose", &["x"], "t"), node("Identity", &["t"], "q"), gemm("q")];
        let given_by_one = vec![node("Transpose", &["x"], "q"), node("Identity", &["q"], "t"), gemm("q")];
        for nodes in [read_by_one, given_by_one] {
            let kept = keep_transposed_outputs(model(nodes)).graph.unwrap().node;
            assert_eq!((kept[2].op_type(), kept[2].input[0].as_str()), ("Transpose", "x"));
            assert_eq!(kept[3].input[0], kept[2].output[0]);
        }
        let of_others = NodeProto { domain: Some("others".to_owned()), ..node("Transpose", &["x"], "t") };
        assert!(!has_transposed_outputs(&model(vec![of_others, gemm("t")])));
        let added = vec![node("Transpose", &["x"], "t"), node("Gemm", &["a", "w", "t"], "y")]; // a vector, perhaps
        assert!(!has_transposed_outputs(&model(added)));
        let circle = vec![node("Identity", &["a"], "b"), node("Identity", &["b"], "a"), gemm("a")];
        assert!(!has_transposed_outputs(&model(circle)));
    }
}
