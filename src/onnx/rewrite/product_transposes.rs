//! `product-transposes`: a product reads an operand that is transposed as it lies: FusedMatMul in the place of Transpose
//! and MatMul. ONNX Runtime's own MatmulTransposeFusion does that too, but takes vectors for matrices and is off.

use std::collections::HashSet;

use super::nodes::{RUNTIMES_DOMAIN, drop_unread, integer, is, only_output, perm};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::tensor::DType;

/// What a provider's products are like.
struct Products {
    elements: &'static [DType],
    /// Whether a left operand that lies across is worth being read so, of a product with so many columns.
    reads_across: fn(Option<i64>) -> bool,
}

const ON_CPU: Products = Products {
    elements: &[DType::F32],
    reads_across: |columns| columns.is_some_and(|columns| COLUMNS_READ_ACROSS.contains(&columns)),
};
/// cuBLAS reads either operand either way.
const ON_CUDA: Products = Products { elements: &[DType::F32, DType::BF16, DType::F16], reads_across: |_| true };

/// Columns of a result whose left operand is worth being read across: ONNX Runtime turns that operand anew for each 128
/// columns, so of many it is cheaper turned once before; of fewer nothing was measured.
const COLUMNS_READ_ACROSS: std::ops::RangeInclusive<i64> = 64..=4096;

/// Each such product of float32 that the CPU computes.
pub(super) fn on_cpu(graph: &mut GraphProto) -> usize {
    run(graph, &ON_CPU)
}

/// Each such product that CUDA computes.
pub(super) fn on_cuda(graph: &mut GraphProto) -> usize {
    run(graph, &ON_CUDA)
}

fn run(graph: &mut GraphProto, products: &Products) -> usize {
    let values = Values::of(graph);
    let found: Vec<_> = graph.node.iter().map(|node| Sources::of(graph, node, &values, products)).collect();
    let mut turned = HashSet::new();
    let mut n_places = 0;
    for (product, sources) in graph.node.iter_mut().zip(found) {
        let Some(Sources { left, right }) = sources else { continue };
        (product.op_type, product.domain) = (Some("FusedMatMul".to_owned()), Some(RUNTIMES_DOMAIN.to_owned()));
        for (at, name, source) in [(0, "transA", left), (1, "transB", right)] {
            let Some(Turned { source, is_turned, .. }) = source else { continue };
            product.attribute.extend(is_turned.then(|| integer(name, 1)));
            turned.insert(std::mem::replace(&mut product.input[at], source));
        }
        n_places += 1;
    }
    drop_unread(graph, &turned);
    n_places
}

/// What the operands of a product are made of, at least one of them by a Transpose.
struct Sources {
    left: Option<Turned>,
    right: Option<Turned>,
}

impl Sources {
    fn of(graph: &GraphProto, product: &NodeProto, values: &Values, products: &Products) -> Option<Self> {
        let output = only_output(product).filter(|_| is(product, "MatMul"))?;
        let [left, right] = product.input.as_slice() else { return None };
        let is_known =
            |name: &str| products.elements.iter().any(|dtype| values.element(name) == Some(dtype.onnx_code()));
        if !(is_known(left) && is_known(right)) || becomes_gemm(graph, output, values) {
            return None;
        }
        let (turned_left, turned_right) = (Turned::of(graph, left, values), Turned::of(graph, right, values));
        let rank = |name: &str, turned: Option<&Turned>| {
            turned.map(|turned| turned.rank).or_else(|| values.dims(name).map(<[_]>::len))
        };
        let (left_rank, right_rank) = (rank(left, turned_left.as_ref())?, rank(right, turned_right.as_ref())?);
        // Vectors are no matrices, and of a batch each has its own matrix.
        if left_rank < 2 || right_rank < 2 || (right_rank > 2 && left_rank != right_rank) {
            return None;
        }
        let columns = match &turned_right {
            Some(turned) => turned.columns,
            None => values.dims(right)?.last()?.number(),
        };
        let across = (products.reads_across)(columns) && left_rank == right_rank;
        let (left, right) = (turned_left.filter(|left| across || !left.is_turned), turned_right);
        // Two Transposes that undo each other ONNX Runtime leaves out itself.
        let gains = [&left, &right].into_iter().flatten().any(|operand| operand.is_turned);
        gains.then_some(Self { left, right })
    }
}

/// A value that is made of another one by Transposes of its last two axes. None of them gives a graph output, which is
/// written anyway.
struct Turned {
    source: String,
    /// Their number is odd.
    is_turned: bool,
    rank: usize,
    /// The value's last size.
    columns: Option<i64>,
}

impl Turned {
    fn of(graph: &GraphProto, name: &str, values: &Values) -> Option<Self> {
        let (mut source, mut rank, mut n_swaps) = (name, 0, 0);
        // A circle of them, which is no valid model, ends somewhere.
        while n_swaps <= graph.node.len() {
            let Some((before, of_rank)) = swapped(graph, source, values) else { break };
            (source, rank, n_swaps) = (before, of_rank, n_swaps + 1);
        }
        let is_turned = n_swaps % 2 == 1;
        let last = if is_turned { 2 } else { 1 };
        let columns = values.dims(source).filter(|dims| dims.len() == rank && rank >= 2);
        let columns = columns.and_then(|dims| dims[rank - last].number());
        (n_swaps > 0).then(|| Self { source: source.to_owned(), is_turned, rank, columns })
    }
}

/// What a value is the Transpose of, by its last two axes, and the rank.
fn swapped<'a>(graph: &'a GraphProto, name: &str, values: &Values) -> Option<(&'a str, usize)> {
    let (_, transpose) = values.producer(graph, name).filter(|_| values.is_internal(name))?;
    let (source, perm) = (transpose.input.first()?, perm(transpose)?);
    let rank = perm.len();
    let expected = (0..rank as i64).map(|axis| match rank as i64 - axis {
        1 => axis - 1,
        2 => axis + 1,
        _ => axis,
    });
    (rank >= 2 && expected.eq(perm.iter().copied())).then_some((source, rank))
}

/// Whether ONNX Runtime makes a Gemm of the product and the Add that reads it, which takes Transposes in, too.
fn becomes_gemm(graph: &GraphProto, product: &str, values: &Values) -> bool {
    let reader = values.only_reader(product).and_then(|at| graph.node.get(at));
    reader.is_some_and(|reader| is(reader, "Add")) && values.dims(product).is_none_or(|dims| dims.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::proto::ValueInfoProto;

    fn transpose(input: &str, output: &str, perm: &[i64]) -> NodeProto {
        let mut node = super::super::nodes::transpose(input, output);
        node.attribute[0].ints = perm.to_vec();
        node
    }

    fn rewritten(inputs: &[ValueInfoProto], nodes: Vec<NodeProto>) -> Vec<String> {
        let outputs = [of("y", &[1]), of("z", &[1])];
        let mut found = graph(nodes, inputs, &outputs, &[]);
        let before = text(&found);
        assert_eq!(on_cpu(&mut found) == 0, before == text(&found));
        text(&found)
    }

    fn times_turned(rank: usize) -> Vec<NodeProto> {
        let perm: &[i64] = if rank == 2 { &[1, 0] } else { &[0, 2, 1] };
        vec![transpose("w", "t", perm), node("MatMul", &["x", "t"], "y")]
    }

    fn turned_times(rank: usize) -> Vec<NodeProto> {
        let perm: &[i64] = if rank == 2 { &[1, 0] } else { &[0, 2, 1] };
        vec![transpose("x", "t", perm), node("MatMul", &["t", "w"], "y")]
    }

    #[test]
    fn operands_are_read_as_they_lie() {
        for (x, w) in [(&[2, 3][..], &[5, 3][..]), (&[7, 2, 3], &[5, 3]), (&[7, 2, 3], &[7, 5, 3])] {
            let nodes = times_turned(w.len());
            assert_eq!(rewritten(&[of("x", x), of("w", w)], nodes), ["y = FusedMatMul(x, w) transB=1"]);
        }
        for (x, w) in [(&[3, 2][..], &[3, 128][..]), (&[7, 3, 2], &[7, 3, 4096])] {
            let nodes = turned_times(x.len());
            assert_eq!(rewritten(&[of("x", x), of("w", w)], nodes), ["y = FusedMatMul(x, w) transA=1"]);
        }
        let both = vec![
            transpose("x", "t", &[1, 0]),
            transpose("w", "u", &[1, 0]),
            node("MatMul", &["t", "u"], "y"),
            node("Neg", &["t"], "z"),
        ];
        let expected = ["t = Transpose(x)", "y = FusedMatMul(x, w) transA=1 transB=1", "z = Neg(t)"];
        assert_eq!(rewritten(&[of("x", &[3, 2]), of("w", &[200, 3])], both), expected);
    }

    #[test]
    fn what_is_no_matrix_or_gains_nothing_is_left_alone() {
        let int = |name| {
            crate::onnx::value_info(name, &crate::tensor::TensorDesc::new(crate::tensor::DType::I64, [2, 2]).unwrap())
        };
        for (inputs, nodes) in [
            (vec![of("x", &[3]), of("w", &[5, 3])], times_turned(2)), // a vector
            (vec![of("w", &[5, 3])], times_turned(2)),                // of unknown rank
            (vec![of("x", &[2, 3]), of("w", &[7, 5, 3])], times_turned(3)), // one matrix for a batch
            (vec![int("x"), int("w")], times_turned(2)),
            (vec![of("x", &[3, 2]), of("w", &[3, 63])], turned_times(2)), // few columns
            (vec![of("x", &[3, 2]), of("w", &[3, 4097])], turned_times(2)), // many
            (vec![of("x", &[7, 3, 2]), of("w", &[3, 128])], turned_times(3)), // a batch by one matrix
            (
                vec![of("x", &[2, 3]), of("w", &[3, 3])],
                vec![transpose("w", "z", &[1, 0]), node("MatMul", &["x", "z"], "y")],
            ),
            (
                vec![of("x", &[7, 2, 3]), of("w", &[5, 7, 3])],
                vec![transpose("w", "t", &[1, 2, 0]), node("MatMul", &["x", "t"], "y")],
            ),
        ] {
            let before = text(&graph(nodes.clone(), &[], &[], &[]));
            assert_eq!(rewritten(&inputs, nodes), before);
        }
    }

    #[test]
    fn transposes_that_undo_each_other_are_seen_through() {
        let twice = [transpose("w", "t", &[1, 0]), transpose("t", "u", &[1, 0])];
        let thrice = [twice.to_vec(), vec![transpose("u", "v", &[1, 0])]].concat();
        let product = |left, right| node("MatMul", &[left, right], "y");
        let inputs = [of("x", &[3, 5]), of("w", &[5, 90])];
        let alone = [twice.to_vec(), vec![product("x", "u")]].concat();
        assert_eq!(rewritten(&inputs, alone.clone()), text(&graph(alone, &[], &[], &[])));
        let inputs = [of("x", &[5, 3]), of("w", &[5, 90])];
        let beside = [&[transpose("x", "a", &[1, 0])][..], &twice, &[product("a", "u")]].concat();
        assert_eq!(rewritten(&inputs, beside).pop().unwrap(), "y = FusedMatMul(x, w) transA=1");
        let odd = [thrice.clone(), vec![product("x", "v")]].concat();
        assert_eq!(rewritten(&inputs, odd).pop().unwrap(), "y = FusedMatMul(x, w) transB=1");
        let shown = [transpose("w", "z", &[1, 0]), transpose("z", "u", &[1, 0]), product("x", "u")];
        assert_eq!(rewritten(&inputs, shown.to_vec()).pop().unwrap(), "y = FusedMatMul(x, z) transB=1");
        let circle = vec![transpose("t", "u", &[1, 0]), transpose("u", "t", &[1, 0]), product("x", "u")];
        rewritten(&inputs, circle);
    }

    #[test]
    fn what_becomes_a_gemm_is_left_to_onnx_runtime() {
        let nodes =
            [vec![transpose("w", "t", &[1, 0]), node("MatMul", &["x", "t"], "p")], vec![node("Add", &["p", "c"], "y")]];
        let inputs = [of("x", &[2, 3]), of("w", &[5, 3]), of("c", &[5])];
        let nodes = nodes.concat();
        assert_eq!(rewritten(&inputs, nodes.clone()), text(&graph(nodes.clone(), &[], &[], &[])));
        let read_twice = [nodes, vec![node("Neg", &["p"], "z")]].concat();
        assert_eq!(rewritten(&inputs, read_twice)[0], "p = FusedMatMul(x, w) transB=1");
    }
}
