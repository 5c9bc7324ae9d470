//! `output-reshapes`: a product of matrices whose Reshape is a graph output, which is then a copy, is computed in the
//! output's shape, where its left operand is a Reshape from that.

use std::collections::HashSet;

use super::nodes::{drop_unread, is, only_output};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto};

/// `Reshape(MatMul(Reshape(x), w))` as `MatMul(x, w)`: to ONNX Runtime, both are the same product of matrices.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let found: Vec<Place> = graph.node.iter().filter_map(|node| Place::of(graph, node, &values)).collect();
    let mut left = HashSet::new();
    for Place { product, source, output } in &found {
        let node = &mut graph.node[*product];
        left.extend([std::mem::replace(&mut node.input[0], source.clone())]);
        left.insert(std::mem::replace(&mut node.output[0], output.clone()));
    }
    let outputs: HashSet<&str> = found.iter().map(|place| place.output.as_str()).collect();
    graph.node.retain(|node| !is(node, "Reshape") || node.output.iter().all(|name| !outputs.contains(name.as_str())));
    drop_unread(graph, &left);
    found.len()
}

struct Place {
    /// Index of the MatMul.
    product: usize,
    /// What its left operand is a Reshape of.
    source: String,
    output: String,
}

impl Place {
    /// Where a node is a Reshape that gives an output.
    fn of(graph: &GraphProto, node: &NodeProto, values: &Values) -> Option<Self> {
        let output = only_output(node).filter(|output| is(node, "Reshape") && values.is_output(output))?;
        let (product, matmul) = values.producer(graph, node.input.first()?)?;
        values.only_reader(only_output(matmul)?)?;
        let [flat, weight] = matmul.input.as_slice() else { return None };
        let (_, flattening) = values.producer(graph, flat)?;
        if !is(matmul, "MatMul") || !is(flattening, "Reshape") {
            return None;
        }
        let source = flattening.input.first()?;
        let ([_, flat_columns], [_, columns]) = (values.matrix(flat)?, values.matrix(weight)?);
        let (source_columns, source_rows) = values.dims(source)?.split_last()?;
        let (output_columns, output_rows) = values.dims(output)?.split_last()?;
        let same_rows = source_rows.len() > 1
            && source_rows.len() == output_rows.len()
            && source_rows.iter().zip(output_rows).all(|(source, output)| source.equals(output));
        let same = same_rows && source_columns.equals(flat_columns) && output_columns.equals(columns);
        same.then(|| Self { product, source: source.clone(), output: output.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::proto::ValueInfoProto;

    fn nodes() -> Vec<NodeProto> {
        vec![
            node("Reshape", &["x", "flat"], "a"),
            node("MatMul", &["a", "w"], "b"),
            node("Reshape", &["b", "deep"], "y"),
            node("Exp", &["y"], "z"),
        ]
    }

    fn rewritten(nodes: Vec<NodeProto>, sizes: [&[i64]; 4]) -> Vec<String> {
        let [x, w, a, y] = sizes;
        let outputs = [of("y", y), of("z", y), of("c", &[6, 5])];
        let mut found = graph(nodes, &[of("x", x), of("w", w)], &outputs, &[of("a", a)]);
        let before = text(&found);
        let n_places = run(&mut found);
        assert_eq!(n_places == 0, before == text(&found));
        text(&found)
    }

    const SIZES: [&[i64]; 4] = [&[2, 3, 4], &[4, 5], &[6, 4], &[2, 3, 5]];

    #[test]
    fn the_product_has_the_outputs_shape() {
        assert_eq!(rewritten(nodes(), SIZES), ["y = MatMul(x, w)", "z = Exp(y)"]);
        let others_flatten = [nodes(), vec![node("Neg", &["a"], "c")]].concat();
        let expected = ["a = Reshape(x, flat)", "y = MatMul(x, w)", "z = Exp(y)", "c = Neg(a)"];
        assert_eq!(rewritten(others_flatten, SIZES), expected);
    }

    #[test]
    fn another_shape_or_another_reader_is_left_alone() {
        let before = text(&graph(nodes(), &[], &[], &[]));
        for sizes in [
            [&[2, 3, 4], &[4, 5], &[6, 4], &[3, 2, 5]], // other rows
            [&[2, 3, 4], &[4, 5], &[6, 4], &[2, 15, 1]],
            [&[2, 12], &[4, 5], &[6, 4], &[6, 5]],         // a matrix
            [&[2, 12, 1], &[4, 5], &[6, 4], &[2, 12, 5]],  // other columns
            [&[2, 3, 4], &[2, 4, 5], &[6, 4], &[2, 3, 5]], // a batch
        ] as [[&[i64]; 4]; 5]
        {
            assert_eq!(rewritten(nodes(), sizes), before);
        }
        let read = [nodes(), vec![node("Neg", &["b"], "c")]].concat();
        assert_eq!(rewritten(read.clone(), SIZES), text(&graph(read, &[], &[], &[])));
    }

    #[test]
    fn sizes_with_the_same_name_are_the_same() {
        let named = |name: &str, rows: [&str; 2], columns: i64| {
            use crate::onnx::proto::{tensor_shape_proto::dimension::Value, type_proto};
            let mut info: ValueInfoProto = of(name, &[1, 1, columns]);
            let Some(type_proto::Value::TensorType(tensor)) = info.r#type.as_mut().unwrap().value.as_mut() else {
                unreachable!()
            };
            for (dim, row) in tensor.shape.as_mut().unwrap().dim.iter_mut().zip(rows) {
                dim.value = Some(Value::DimParam(row.to_owned()));
            }
            info
        };
        for (rows, expected) in [(["s0", "s1"], 1), (["s1", "s0"], 0)] {
            let inputs = [named("x", ["s0", "s1"], 4), of("w", &[4, 5])];
            let mut found = graph(nodes(), &inputs, &[named("y", rows, 5), of("z", &[1])], &[of("a", &[6, 4])]);
            assert_eq!(run(&mut found), expected);
        }
    }
}
