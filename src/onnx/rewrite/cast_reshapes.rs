//! `cast-reshapes`: a Cast between float32 and half precision on the other side of a Reshape, where it is beside those who
//! compute: a region takes it in, and what lies between two kernels is half precision. A Reshape itself costs nothing.

use std::collections::{HashMap, HashSet};

use super::nodes::{forget, is, only_output, taken};
use super::values::Values;
use crate::onnx::proto::{GraphProto, NodeProto, ValueInfoProto, type_proto};
use crate::onnx::walk::fresh;
use crate::tensor::DType;

/// Before a Reshape what it narrows, behind it what it widens.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let mut names = taken(graph);
    let (mut made, mut gone) = (HashMap::new(), HashSet::new());
    let (mut types, mut left) = (Vec::new(), HashSet::new());
    for (at, second) in graph.node.iter().enumerate() {
        let Some((before, first, narrows)) = pair(graph, second, &values) else { continue };
        if gone.contains(&before) || made.contains_key(&before) {
            continue;
        }
        let (Some(between), Some(last)) = (only_output(first), only_output(second)) else { continue };
        let name = fresh(&format!("{between}/moved"), &mut names);
        // What the second does comes first.
        let (mut one, mut other) = (second.clone(), first.clone());
        one.input[0].clone_from(&first.input[0]);
        one.output[0].clone_from(&name);
        other.input[0].clone_from(&name);
        other.output[0] = last.to_owned();
        // Sizes of the one that keeps them, elements of the other.
        let (sizes, elements) = if narrows { (&first.input[0], last) } else { (&second.output[0], &*first.input[0]) };
        types.extend(typed(graph, sizes, values.element(elements), &name));
        left.insert(between.to_owned());
        // A Reshape's sizes may be known no sooner than it.
        made.insert(if narrows { before } else { at }, vec![one, other]);
        gone.insert(if narrows { at } else { before });
    }
    let n_places = made.len();
    let nodes = std::mem::take(&mut graph.node);
    for (at, node) in nodes.into_iter().enumerate() {
        match made.remove(&at) {
            Some(pair) => graph.node.extend(pair),
            None if gone.contains(&at) => {}
            None => graph.node.push(node),
        }
    }
    forget(graph, &left);
    graph.value_info.extend(types);
    n_places
}

/// The node that a node alone reads, one of both a Cast and one a Reshape, that change places; whether the Cast narrows.
fn pair<'g>(graph: &'g GraphProto, second: &NodeProto, values: &Values) -> Option<(usize, &'g NodeProto, bool)> {
    let source = second.input.first()?;
    let (before, first) = values.producer(graph, source)?;
    values.only_reader(source)?;
    let bytes = |name: &str| Some(DType::from_onnx(values.element(name)?).ok()?.size_bytes());
    let is_float = |name: &str| {
        [DType::F32, DType::BF16, DType::F16].iter().any(|dtype| values.element(name) == Some(dtype.onnx_code()))
    };
    let cast = if is(first, "Cast") { first } else { second };
    let (from, to) = (cast.input.first()?, only_output(cast)?);
    let narrows = bytes(to)? < bytes(from)?;
    let changes = is_float(from) && is_float(to) && bytes(to) != bytes(from);
    let are_two = match narrows {
        true => is(first, "Reshape") && is(second, "Cast"),
        false => is(first, "Cast") && is(second, "Reshape"),
    };
    (changes && are_two).then_some((before, first, narrows))
}

/// What the graph says of a value, for one of other elements by another name.
fn typed(graph: &GraphProto, like: &str, element: Option<i32>, name: &str) -> Option<ValueInfoProto> {
    let all = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
    let mut info = all.into_iter().find(|info| info.name() == like)?.clone();
    info.name = Some(name.to_owned());
    match info.r#type.as_mut()?.value.as_mut()? {
        type_proto::Value::TensorType(tensor) => tensor.elem_type = element,
        _ => return None,
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::super::nodes::integer;
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::TensorDesc;

    fn half(name: &str, dims: &[i64]) -> ValueInfoProto {
        value_info(name, &TensorDesc::new(DType::BF16, dims).unwrap())
    }

    fn cast(input: &str, output: &str, to: DType) -> NodeProto {
        NodeProto { attribute: vec![integer("to", to.onnx_code().into())], ..node("Cast", &[input], output) }
    }

    fn sizes() -> ValueInfoProto {
        value_info("s", &TensorDesc::new(DType::I64, [1]).unwrap())
    }

    #[test]
    fn what_widens_comes_behind_and_what_narrows_before() {
        let nodes = vec![cast("x", "a", DType::F32), node("Reshape", &["a", "s"], "y")];
        let mut found = graph(nodes, &[half("x", &[2, 3]), sizes()], &[of("y", &[6])], &[of("a", &[2, 3])]);
        assert_eq!(run(&mut found), 1);
        assert_eq!(text(&found), ["a/moved = Reshape(x, s)", "y = Cast(a/moved) to=1"]);
        assert_eq!(found.value_info, [half("a/moved", &[6])]);
        let nodes = vec![node("Reshape", &["x", "s"], "a"), cast("a", "y", DType::BF16)];
        let mut found = graph(nodes, &[of("x", &[2, 3]), sizes()], &[half("y", &[6])], &[of("a", &[6])]);
        assert_eq!(run(&mut found), 1);
        assert_eq!(text(&found), ["a/moved = Cast(x) to=16", "y = Reshape(a/moved, s)"]);
        assert_eq!(found.value_info, [half("a/moved", &[2, 3])]);
    }

    #[test]
    fn what_others_read_or_goes_the_other_way_stays() {
        let narrow = || vec![cast("x", "a", DType::BF16), node("Reshape", &["a", "s"], "y")];
        let wide = || vec![cast("x", "a", DType::F32), node("Reshape", &["a", "s"], "y")];
        for (nodes, x) in [
            (narrow(), of("x", &[2, 3])),
            ([wide(), vec![node("Neg", &["a"], "z")]].concat(), half("x", &[2, 3])),
            (wide(), of("x", &[2, 3])),
        ] {
            let mut found = graph(nodes, &[x, sizes()], &[of("y", &[6]), of("z", &[2, 3])], &[]);
            let before = found.clone();
            assert_eq!((run(&mut found), found), (0, before));
        }
    }
}
