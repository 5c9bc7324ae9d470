//! `product-orientation`: the gradient of a weight with many rows and few columns, `Transpose(g) @ x`, is computed as
//! `Transpose(Transpose(x) @ g)`. ONNX Runtime's product walks over its result once for every 128 that are added up, and
//! a slice of few columns and many rows leaves the cache between these walks. Of (2048, 32000) and (2048, 512) it takes
//! three quarters of the time, and no operand as large is transposed. Of (256, 32000) and (256, 1024) there are two walks
//! only, and what is turned back would be four times the gradient: it takes as long, and more memory.

use super::nodes::{drop_unread, is, node, only_output, perm, taken, transpose};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::onnx::walk::fresh;

/// Fewer rows stay in the cache.
const MIN_ROWS: i64 = 4096;
/// Of fewer the product that reads its operand across is as fast (`product-transposes`).
const MIN_COLUMNS: i64 = 128;
/// With more there is nothing left to gain.
const MAX_COLUMNS: i64 = 1024;

/// Each such product.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let found: Vec<_> = graph.node.iter().map(|node| upright(graph, node, &values)).collect();
    let (mut n_places, mut names) = (0, taken(graph));
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut transposed = std::collections::HashSet::new();
    for (mut product, source) in std::mem::take(&mut graph.node).into_iter().zip(found) {
        let Some(gradient) = source else {
            nodes.push(product);
            continue;
        };
        let [turned, output] =
            ["turned", "across"].map(|what| fresh(&format!("{}/{what}", product.output[0]), &mut names));
        nodes.push(transpose(&product.input[1], &turned));
        nodes.push(node("MatMul", &[&turned, &gradient], &output));
        nodes.push(NodeProto { name: product.name.take(), ..transpose(&output, &product.output[0]) });
        transposed.extend(product.input.into_iter().take(1));
        n_places += 1;
    }
    graph.node = nodes;
    drop_unread(graph, &transposed);
    n_places
}

/// What the left operand of a product to be turned is the Transpose of.
fn upright(graph: &GraphProto, product: &NodeProto, values: &Values) -> Option<String> {
    only_output(product)?;
    let [left, right] = product.input.as_slice() else { return None };
    let (_, transpose) = values.producer(graph, left).filter(|_| is(product, "MatMul"))?;
    let gradient = transpose.input.first().filter(|_| perm(transpose) == Some(&[1, 0]))?;
    let ([depth, rows], [_, columns]) = (values.matrix(gradient)?, values.matrix(right)?);
    let (depth, rows, columns) = (depth.number()?, rows.number()?, columns.number()?);
    let is_tall = rows >= MIN_ROWS && rows >= 8 * columns;
    let worthwhile = is_tall && (MIN_COLUMNS..=MAX_COLUMNS).contains(&columns) && depth >= columns;
    (worthwhile && values.is_f32(gradient) && values.is_f32(right)).then(|| gradient.clone())
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, of, text};
    use super::*;

    fn rewritten(g: &[i64], x: &[i64], nodes: Vec<NodeProto>) -> Vec<String> {
        let mut found = graph(nodes, &[of("g", g), of("x", x)], &[of("y", &[g[1], x[1]])], &[]);
        let before = text(&found);
        assert_eq!(run(&mut found) == 0, before == text(&found));
        text(&found)
    }

    fn product() -> Vec<NodeProto> {
        vec![transpose("g", "t"), node("MatMul", &["t", "x"], "y")]
    }

    #[test]
    fn a_tall_product_is_computed_across() {
        let expected =
            ["y/turned = Transpose(x)", "y/across = MatMul(y/turned, g)", "y = Transpose(y/across)"].map(str::to_owned);
        assert_eq!(rewritten(&[512, 4096], &[512, 512], product()), expected);
        let mut read = product();
        read.push(node("Neg", &["t"], "z"));
        assert_eq!(rewritten(&[512, 4096], &[512, 512], read)[0], "t = Transpose(g)");
    }

    #[test]
    fn others_are_left_alone() {
        let before = text(&graph(product(), &[], &[], &[]));
        for (g, x) in [
            ([2048, 4095], [2048, 128]),   // few rows
            ([2048, 8192], [2048, 127]),   // few columns
            ([2048, 16384], [2048, 1025]), // many columns
            ([2048, 4096], [2048, 513]),   // not so tall
            ([127, 4096], [127, 128]),     // not so deep
        ] {
            assert_eq!(rewritten(&g, &x, product()), before);
        }
        let plain = vec![node("MatMul", &["g", "x"], "y")];
        assert_eq!(rewritten(&[8192, 64], &[64, 128], plain), ["y = MatMul(g, x)"]);
        let unknown = vec![transpose("g", "t"), node("Neg", &["x"], "n"), node("MatMul", &["t", "n"], "y")];
        assert_eq!(rewritten(&[64, 8192], &[64, 128], unknown)[2], "y = MatMul(t, n)");
    }
}
