//! `half-products`: a product of few rows by a matrix of bfloat16 reads that as it is. ONNX Runtime on the CPU multiplies
//! float32 alone, so the matrix, a layer's weight, would be written wide first: of three rows that takes longer than the
//! product. Widening float16 takes what this saves. A matrix that is a constant is wide and packed before any call.

use std::collections::HashSet;

use super::nodes::{attribute, drop_unread, integer, is, node, only_output, perm, taken};
use super::values::{Dim, Values};
use crate::onnx::DOMAIN;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::walk::fresh;
use crate::tensor::DType;

/// (x [.., depth] of float32, matrix of float16 or bfloat16) to their product in float32, [.., columns].
pub const HALF_PRODUCT: &str = "HalfProduct";
/// 1: the matrix is [columns, depth]; 0: [depth, columns].
pub const TURNED: &str = "turned";

/// Whether a node is such a product.
pub(super) fn is_half_product(node: &NodeProto) -> bool {
    node.domain() == DOMAIN && node.op_type() == HALF_PRODUCT
}

/// With more, ONNX Runtime's product makes up for what the widening takes: of 1024 × 1024 from 12 rows on.
const MAX_ROWS: i64 = 8;

/// Each such MatMul, and each Gemm that adds with no other factor than 1, as a product and an Add.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let found: Vec<_> = graph.node.iter().map(|product| Found::of(graph, product, &values)).collect();
    let (mut n_places, mut names) = (0, taken(graph));
    let mut left = HashSet::new();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for (mut product, found) in std::mem::take(&mut graph.node).into_iter().zip(found) {
        let Some(Found { matrix, is_turned }) = found else {
            nodes.push(product);
            continue;
        };
        left.insert(std::mem::replace(&mut product.input[1], matrix));
        let added = product.input.get(2).filter(|name| !name.is_empty()).cloned();
        let (output, name) = (product.output[0].clone(), product.name.take());
        let of_product = match added {
            Some(_) => fresh(&format!("{output}/product"), &mut names),
            None => output.clone(),
        };
        let made = node(HALF_PRODUCT, &[&product.input[0], &product.input[1]], &of_product);
        let attribute = vec![integer(TURNED, is_turned.into())];
        let domain = Some(DOMAIN.to_owned());
        match added {
            None => nodes.push(NodeProto { name, domain, attribute, ..made }),
            Some(added) => {
                nodes.push(NodeProto { domain, attribute, ..made });
                nodes.push(NodeProto { name, ..node("Add", &[&of_product, &added], &output) });
            }
        }
        n_places += 1;
    }
    graph.node = nodes;
    drop_unread(graph, &left);
    n_places
}

/// The matrix of half precision that a product's right operand is made of.
struct Found {
    matrix: String,
    is_turned: bool,
}

impl Found {
    fn of(graph: &GraphProto, product: &NodeProto, values: &Values) -> Option<Self> {
        only_output(product)?;
        let turns = match product.op_type() {
            "MatMul" if is(product, "MatMul") => false,
            "Gemm" if is(product, "Gemm") => turns(product)?,
            _ => return None,
        };
        let (left, right) = (product.input.first()?, product.input.get(1)?);
        let rows = rows(graph, left, values)?;
        if !(1..=MAX_ROWS).contains(&rows) || !values.is_f32(left) {
            return None;
        }
        let transpose = |name: &str| {
            let (_, node) = values.producer(graph, name)?;
            let is_swap = perm(node) == Some(&[1, 0]);
            node.input.first().filter(|_| is_swap).cloned()
        };
        let outer = transpose(right);
        let wide = outer.as_deref().unwrap_or(right);
        let (_, cast) = values.producer(graph, wide)?;
        let to = attribute(cast, "to").filter(|_| is(cast, "Cast"))?.i();
        let half = cast.input.first().filter(|_| to == i64::from(DType::F32.onnx_code()))?;
        let inner = transpose(half);
        let matrix = inner.as_deref().unwrap_or(half);
        let is_half = values.element(half) == Some(DType::BF16.onnx_code());
        let is_constant = graph.initializer.iter().any(|tensor| tensor.name() == matrix);
        let is_matrix = dims(graph, matrix, values).is_some_and(|dims| dims.len() == 2);
        let is_turned = turns ^ outer.is_some() ^ inner.is_some();
        (is_half && is_matrix && !is_constant).then(|| Self { matrix: matrix.to_owned(), is_turned })
    }
}

/// Whether a Gemm reads its right matrix across. None where it does something else, too.
fn turns(gemm: &NodeProto) -> Option<bool> {
    let number = |name: &str, default: i64| attribute(gemm, name).map_or(default, |set| set.i());
    let is_one = |name: &str| attribute(gemm, name).is_none_or(|set| set.f() == 1.0);
    (number("transA", 0) == 0 && is_one("alpha") && is_one("beta")).then(|| number("transB", 0) != 0)
}

/// Rows of a product's left operand, of any rank from 2 on.
fn rows(graph: &GraphProto, left: &str, values: &Values) -> Option<i64> {
    let (_, rows) = dims(graph, left, values)?.split_last().filter(|(_, rows)| !rows.is_empty())?;
    rows.iter().map(Dim::number).try_fold(1, |product: i64, size| product.checked_mul(size?))
}

/// Sizes of a value, also where only what it was cast from is told.
fn dims<'v>(graph: &GraphProto, name: &str, values: &'v Values) -> Option<&'v [Dim]> {
    let of_cast = || {
        let (_, cast) = values.producer(graph, name).filter(|(_, node)| is(node, "Cast"))?;
        values.dims(cast.input.first()?)
    };
    values.dims(name).or_else(of_cast)
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, of, text};
    use super::super::nodes::transpose;
    use super::*;
    use crate::onnx::proto::{AttributeProto, TensorProto, ValueInfoProto};
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn half(name: &str, dims: &[i64]) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::BF16, dims).unwrap())
    }

    fn cast(input: &str, output: &str) -> NodeProto {
        NodeProto { attribute: vec![integer("to", 1)], ..node("Cast", &[input], output) }
    }

    fn rewritten(x: &[i64], w: &[i64], nodes: Vec<NodeProto>) -> Vec<String> {
        let inputs = [of("x", x), half("h", x), half("w", w), of("c", &[5])];
        let mut found = graph(nodes, &inputs, &[of("y", &[1])], &[]);
        let before = text(&found);
        assert_eq!(run(&mut found) == 0, before == text(&found));
        text(&found)
    }

    #[test]
    fn a_product_of_few_rows_reads_half_precision() {
        let plain = || vec![cast("w", "wide"), node("MatMul", &["x", "wide"], "y")];
        assert_eq!(rewritten(&[3, 4], &[4, 5], plain()), ["y = HalfProduct(x, w) turned=0"]);
        assert_eq!(rewritten(&[2, 4, 4], &[4, 5], plain()), ["y = HalfProduct(x, w) turned=0"]);
        let after = vec![cast("w", "wide"), transpose("wide", "t"), node("MatMul", &["x", "t"], "y")];
        assert_eq!(rewritten(&[3, 4], &[5, 4], after), ["y = HalfProduct(x, w) turned=1"]);
        let before = vec![transpose("w", "t"), cast("t", "wide"), node("MatMul", &["x", "wide"], "y")];
        assert_eq!(rewritten(&[3, 4], &[5, 4], before), ["y = HalfProduct(x, w) turned=1"]);
        let of_half = vec![cast("h", "g"), cast("w", "wide"), node("MatMul", &["g", "wide"], "y")];
        assert_eq!(rewritten(&[3, 4], &[4, 5], of_half), ["g = Cast(h) to=1", "y = HalfProduct(g, w) turned=0"]);
    }

    #[test]
    fn a_gemm_is_a_product_and_a_sum() {
        let gemm = |attributes: Vec<AttributeProto>, inputs: &[&str]| {
            vec![cast("w", "wide"), NodeProto { attribute: attributes, ..node("Gemm", inputs, "y") }]
        };
        let one = |name: &str, f: f32| AttributeProto { name: Some(name.to_owned()), f: Some(f), ..Default::default() };
        let across = || vec![integer("transB", 1), integer("transA", 0), one("alpha", 1.0), one("beta", 1.0)];
        let expected = ["y/product = HalfProduct(x, w) turned=1", "y = Add(y/product, c)"];
        assert_eq!(rewritten(&[3, 4], &[5, 4], gemm(across(), &["x", "wide", "c"])), expected);
        assert_eq!(rewritten(&[3, 4], &[4, 5], gemm(vec![], &["x", "wide"])), ["y = HalfProduct(x, w) turned=0"]);
        for other in [integer("transA", 1), one("alpha", 2.0), one("beta", 0.5)] {
            let nodes = gemm(vec![other], &["x", "wide", "c"]);
            assert_eq!(rewritten(&[3, 4], &[4, 5], nodes).len(), 2);
        }
    }

    #[test]
    fn others_are_left_alone() {
        let plain = || vec![cast("w", "wide"), node("MatMul", &["x", "wide"], "y")];
        for (x, w) in [(&[9, 4][..], &[4, 5][..]), (&[4], &[4, 5]), (&[3, 4], &[2, 4, 5]), (&[0, 4], &[4, 5])] {
            assert_eq!(rewritten(x, w, plain()).len(), 2, "{x:?} {w:?}");
        }
        let of_float = vec![cast("x", "wide"), node("MatMul", &["x", "wide"], "y")];
        assert_eq!(rewritten(&[4, 4], &[4, 5], of_float).len(), 2);
        let mut constant = graph(plain(), &[of("x", &[3, 4])], &[of("y", &[1])], &[]);
        let dims = vec![4, 5];
        constant.initializer.push(TensorProto {
            name: Some("w".to_owned()),
            dims,
            data_type: Some(DType::BF16.onnx_code()),
            ..TensorProto::default()
        });
        assert_eq!(run(&mut constant), 0);
    }
}
