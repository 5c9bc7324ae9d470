//! `same-casts`: a CastLike of a value that is of the type already copies it. ONNX Runtime 1.31.1 takes a CastLike apart
//! only behind its optimizers, which would have left out the Cast that it comes to.

use super::nodes::{integer, is};
use super::values::Values;
use crate::onnx::proto::GraphProto;

/// Each such node becomes a Cast, which ONNX Runtime knows to leave out, also where it gives an output.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let values = Values::of(graph);
    let mut n_places = 0;
    for node in graph.node.iter_mut().filter(|node| is(node, "CastLike")) {
        let [value, like] = node.input.as_slice() else { continue };
        let (Some(element), Some(wanted)) = (values.element(value), values.element(like)) else { continue };
        if element == wanted {
            node.op_type = Some("Cast".to_owned());
            node.input.truncate(1);
            node.attribute.push(integer("to", wanted.into()));
            n_places += 1;
        }
    }
    n_places
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;
    use crate::onnx::value_info;
    use crate::tensor::{DType, TensorDesc};

    #[test]
    fn of_the_same_type_it_is_a_cast_to_it() {
        let half = value_info("h", &TensorDesc::new(DType::F16, [2]).unwrap());
        let nodes = ["x", "h", "unknown"].map(|like| node("CastLike", &["x", like], &format!("like_{like}")));
        let outputs = [of("like_x", &[2])];
        let mut found = graph(nodes.to_vec(), &[of("x", &[2]), half], &outputs, &[]);
        assert_eq!(run(&mut found), 1);
        let expected = ["like_x = Cast(x) to=1", "like_h = CastLike(x, h)", "like_unknown = CastLike(x, unknown)"];
        assert_eq!(text(&found), expected);
    }
}
