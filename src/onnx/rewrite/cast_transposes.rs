//! `cast-transposes`: half precision that is transposed and then widened for a product is widened first. The product then
//! takes the Transpose in (`product-transposes`, ONNX Runtime's own for a Gemm), and no copy across is made.

use std::collections::HashSet;

use super::nodes::{attribute, drop_unread, is, node, only_output, perm, taken};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::walk::fresh;
use crate::tensor::DType;

/// Each such Cast, of a matrix that only products read.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let found: Vec<_> = graph.node.iter().map(|cast| turned(graph, cast, &values)).collect();
    let (mut n_places, mut names) = (0, taken(graph));
    let mut left = HashSet::new();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for (mut cast, transpose) in std::mem::take(&mut graph.node).into_iter().zip(found) {
        let Some(transpose) = transpose else {
            nodes.push(cast);
            continue;
        };
        let (turned, wide) = (std::mem::take(&mut cast.output[0]), &transpose.input[0]);
        cast.output[0] = fresh(&format!("{wide}/float32"), &mut names);
        left.extend(cast.input.splice(.., [wide.clone()]));
        let name = cast.name.replace(format!("node_{}", cast.output[0]));
        let after =
            NodeProto { name, attribute: transpose.attribute, ..node("Transpose", &[&cast.output[0]], &turned) };
        nodes.extend([cast, after]);
        n_places += 1;
    }
    graph.node = nodes;
    drop_unread(graph, &left);
    n_places
}

/// The Transpose that a Cast to float32 reads.
fn turned(graph: &GraphProto, cast: &NodeProto, values: &Values) -> Option<NodeProto> {
    let to = attribute(cast, "to").filter(|_| is(cast, "Cast"))?.i();
    let (source, wide) = (cast.input.first()?, only_output(cast)?);
    let (_, transpose) = values.producer(graph, source).filter(|(_, node)| is(node, "Transpose"))?;
    let matrix = transpose.input.first()?;
    let is_half = [DType::F16, DType::BF16].iter().any(|half| values.element(matrix) == Some(half.onnx_code()));
    let of_products = values.is_internal(wide)
        && values.readers(wide).all(|at| graph.node.get(at).is_some_and(|node| is(node, "MatMul") || is(node, "Gemm")));
    let is_matrix = perm(transpose).is_some_and(|perm| perm.len() == 2);
    (to == i64::from(DType::F32.onnx_code()) && is_half && is_matrix && of_products).then(|| transpose.clone())
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, of, text};
    use super::super::nodes::{integer, transpose};
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn cast(input: &str, output: &str, to: DType) -> NodeProto {
        NodeProto { attribute: vec![integer("to", to.onnx_code().into())], ..node("Cast", &[input], output) }
    }

    fn product(dtype: DType, readers: Vec<NodeProto>) -> GraphProto {
        let w = value_info("w", &TensorDesc::new(dtype, [5, 3]).unwrap());
        let nodes = [vec![transpose("w", "t"), cast("t", "wide", DType::F32)], readers].concat();
        graph(nodes, &[of("x", &[2, 3]), w], &[of("y", &[2, 5]), of("z", &[3, 5])], &[])
    }

    #[test]
    fn a_product_reads_the_transpose_of_what_is_wide() {
        for half in [DType::F16, DType::BF16] {
            let mut found = product(half, vec![node("MatMul", &["x", "wide"], "y")]);
            assert_eq!(run(&mut found), 1);
            let expected = ["w/float32 = Cast(w) to=1", "wide = Transpose(w/float32)", "y = MatMul(x, wide)"];
            assert_eq!(text(&found), expected);
        }
        let mut found = product(DType::F16, vec![node("Gemm", &["x", "wide", "c"], "y"), node("Neg", &["t"], "n")]);
        assert_eq!(run(&mut found), 1);
        assert_eq!(text(&found)[0], "t = Transpose(w)", "somebody else reads it");
    }

    #[test]
    fn what_no_product_reads_stays() {
        let one = |reader: NodeProto| vec![reader, node("MatMul", &["x", "wide"], "y")];
        for mut stays in [
            product(DType::F16, one(node("Neg", &["wide"], "z"))),
            product(DType::F64, one(node("MatMul", &["x", "wide"], "u"))),
            product(DType::F16, vec![node("Identity", &["wide"], "z")]),
        ] {
            let before = stays.clone();
            assert_eq!((run(&mut stays), stays), (0, before));
        }
    }
}
