//! `constant-shapes`: whole numbers that are cast, reshaped and joined of nothing but Constants become Constants. ONNX
//! Runtime 1.31.1 folds them too, after its first passes; but each of its passes sorts the nodes (`GraphViewer`), and for
//! each of them walks through a list of those that wait for none. Of a backward most of these make shapes.

use std::collections::{HashMap, HashSet};

use super::nodes::{attribute, drop_unread, is, only_output};
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use crate::tensor::DType;

/// More are no shape.
const MAX_NUMBERS: usize = 64;
/// float32 has each whole number up to this.
const EXACT_IN_F32: u64 = 1 << 24;

/// Each such node that gives no output.
pub(super) fn run(graph: &mut GraphProto) -> usize {
    let outputs: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut known = HashMap::new();
    let (mut left, mut n_places) = (HashSet::new(), 0);
    for node in &mut graph.node {
        let Some(output) = only_output(node).map(str::to_owned) else { continue };
        if let Some(numbers) = Numbers::of(node) {
            known.insert(output, numbers);
            continue;
        }
        let Some(folded) = folded(node, &known).filter(|_| !outputs.contains(output.as_str())) else { continue };
        left.extend(node.input.drain(..));
        (node.op_type, node.attribute) = (Some("Constant".to_owned()), vec![folded.attribute()]);
        if let Folded::Numbers(numbers) = folded {
            known.insert(output, numbers);
        }
        n_places += 1;
    }
    drop_unread(graph, &left);
    n_places
}

/// Numbers of int64.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    /// At most one size.
    dims: Vec<i64>,
    pub(super) values: Vec<i64>,
}

impl Numbers {
    /// A Constant's.
    pub(super) fn of(node: &NodeProto) -> Option<Self> {
        let [value] = node.attribute.as_slice() else { return None };
        let found = match value.name() {
            _ if !is(node, "Constant") => return None,
            "value_ints" => Self { dims: vec![value.ints.len() as i64], values: value.ints.clone() },
            "value_int" => Self { dims: Vec::new(), values: vec![value.i?] },
            "value" => Self::of_tensor(value.t.as_ref()?)?,
            _ => return None,
        };
        (found.values.len() <= MAX_NUMBERS).then_some(found)
    }

    pub(super) fn of_tensor(tensor: &TensorProto) -> Option<Self> {
        let n_values = match tensor.dims.as_slice() {
            [] => 1,
            &[size] => usize::try_from(size).ok().filter(|&size| size <= MAX_NUMBERS)?,
            _ => return None,
        };
        let (numbers, rest) = tensor.raw_data().as_chunks::<8>();
        let whole = tensor.external_data.is_empty() && tensor.segment.is_none() && tensor.int64_data.is_empty();
        if tensor.data_type() != DType::I64.onnx_code() || !whole || numbers.len() != n_values || !rest.is_empty() {
            return None;
        }
        let values = numbers.iter().map(|&number| i64::from_le_bytes(number)).collect();
        Some(Self { dims: tensor.dims.clone(), values })
    }

    fn is_row(&self) -> bool {
        self.dims.len() == 1
    }
}

/// What a node gives.
enum Folded {
    Numbers(Numbers),
    /// Of float32.
    Rounded(Numbers),
}

impl Folded {
    /// As a Constant holds it.
    fn attribute(&self) -> AttributeProto {
        let (Self::Numbers(numbers) | Self::Rounded(numbers)) = self;
        let (dtype, raw): (_, Vec<u8>) = match self {
            Self::Numbers(_) => (DType::I64, numbers.values.iter().flat_map(|&number| number.to_le_bytes()).collect()),
            Self::Rounded(_) => {
                (DType::F32, numbers.values.iter().flat_map(|&number| (number as f32).to_le_bytes()).collect())
            }
        };
        let tensor = TensorProto {
            dims: numbers.dims.clone(),
            data_type: Some(dtype.onnx_code()),
            raw_data: Some(raw.into()),
            ..TensorProto::default()
        };
        AttributeProto {
            name: Some("value".to_owned()),
            t: Some(tensor),
            r#type: Some(AttributeType::Tensor as i32),
            ..AttributeProto::default()
        }
    }
}

/// What a node gives that reads nothing but known numbers.
fn folded(node: &NodeProto, known: &HashMap<String, Numbers>) -> Option<Folded> {
    let read: Vec<&Numbers> = node.input.iter().map(|name| known.get(name)).collect::<Option<_>>()?;
    match read.as_slice() {
        [numbers] if is(node, "Cast") => {
            let to = attribute(node, "to")?.i?;
            let exact = numbers.values.iter().all(|number| number.unsigned_abs() <= EXACT_IN_F32);
            if to == i64::from(DType::I64.onnx_code()) {
                Some(Folded::Numbers((*numbers).clone()))
            } else if to == i64::from(DType::F32.onnx_code()) && exact {
                Some(Folded::Rounded((*numbers).clone()))
            } else {
                None
            }
        }
        [numbers, to] if is(node, "Reshape") && to.dims == [1] && to.values == [-1] => {
            // Of none, ONNX leaves it open what -1 is.
            let dims = vec![numbers.values.len() as i64];
            (!numbers.values.is_empty()).then(|| Folded::Numbers(Numbers { dims, values: numbers.values.clone() }))
        }
        [_, ..]
            if is(node, "Concat")
                && attribute(node, "axis")?.i? == 0
                && read.iter().all(|numbers| numbers.is_row()) =>
        {
            let values: Vec<i64> = read.iter().flat_map(|numbers| &numbers.values).copied().collect();
            let dims = vec![values.len() as i64];
            (values.len() <= MAX_NUMBERS).then_some(Folded::Numbers(Numbers { dims, values }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::integer;
    use super::super::nodes::tests::{graph, node, of, text};
    use super::*;

    fn constant(name: &str, dims: &[i64], values: &[i64]) -> NodeProto {
        let numbers = Numbers { dims: dims.to_vec(), values: values.to_vec() };
        NodeProto { attribute: vec![Folded::Numbers(numbers).attribute()], ..node("Constant", &[], name) }
    }

    fn ints(name: &str, values: &[i64]) -> NodeProto {
        let ints = AttributeProto { name: Some("value_ints".to_owned()), ints: values.to_vec(), ..Default::default() };
        NodeProto { attribute: vec![ints], ..node("Constant", &[], name) }
    }

    fn with(attribute: &str, value: i64, node: NodeProto) -> NodeProto {
        NodeProto { attribute: vec![integer(attribute, value)], ..node }
    }

    fn value(graph: &GraphProto, name: &str) -> TensorProto {
        let given = graph.node.iter().find(|node| node.output[0] == name).unwrap();
        assert_eq!((given.op_type(), given.input.len()), ("Constant", 0));
        given.attribute[0].t.clone().unwrap()
    }

    #[test]
    fn a_shape_is_one_constant() {
        let nodes = vec![
            constant("n", &[], &[-7]),
            with("to", 7, node("Cast", &["n"], "m")),
            ints("flat", &[-1]),
            node("Reshape", &["m", "flat"], "row"),
            ints("k", &[3, 4]),
            with("axis", 0, node("Concat", &["k", "row"], "shape")),
            with("to", 1, node("Cast", &["m"], "f")),
            node("Reshape", &["x", "shape"], "y"),
            node("Mul", &["y", "f"], "z"),
        ];
        let mut found = graph(nodes, &[of("x", &[12])], &[of("z", &[3, 4])], &[of("m", &[])]);
        assert_eq!(run(&mut found), 4);
        assert_eq!(text(&found)[2..], ["y = Reshape(x, shape)", "z = Mul(y, f)"]);
        let expected: Vec<u8> = [3_i64, 4, -7].iter().flat_map(|number| number.to_le_bytes()).collect();
        let (shape, factor) = (value(&found, "shape"), value(&found, "f"));
        assert_eq!((shape.data_type(), shape.dims.as_slice(), shape.raw_data()), (7, &[3][..], &expected[..]));
        assert_eq!((factor.data_type(), factor.dims.len(), factor.raw_data()), (1, 0, &(-7_f32).to_le_bytes()[..]));
        assert!(found.value_info.is_empty());
    }

    #[test]
    fn what_is_no_such_thing_is_left_alone() {
        let big = (1 << 24) + 1;
        let nodes = vec![
            constant("n", &[], &[big]),
            constant("a", &[1], &[2]),
            ints("none", &[]),
            ints("flat", &[-1]),
            ints("many", &[1; MAX_NUMBERS]),
            with("to", 1, node("Cast", &["n"], "rounds")),
            with("to", 9, node("Cast", &["n"], "truth")),
            node("Reshape", &["a", "a"], "other_shape"),
            node("Reshape", &["none", "flat"], "empty"),
            with("axis", 0, node("Concat", &["n", "a"], "no_row")),
            with("axis", 1, node("Concat", &["a", "a"], "other_axis")),
            with("axis", 0, node("Concat", &["many", "a"], "long")),
            with("axis", 0, node("Concat", &["a", "x"], "of_input")),
            with("axis", 0, node("Concat", &["a", "a"], "y")),
        ];
        let mut found = graph(nodes.clone(), &[of("x", &[1])], &[of("y", &[2])], &[]);
        assert_eq!((run(&mut found), found.node), (0, nodes));
    }

    #[test]
    fn tensors_whose_fields_do_not_fit_are_left_alone() {
        let tensor = |dims: &[i64], n_bytes| TensorProto {
            dims: dims.to_vec(),
            data_type: Some(7),
            raw_data: Some(vec![0; n_bytes].into()),
            ..Default::default()
        };
        assert!(Numbers::of_tensor(&tensor(&[2], 16)).is_some());
        for (dims, n_bytes) in [(&[2][..], 8), (&[-1], 8), (&[1, 1], 8), (&[], 0), (&[i64::MAX], 8)] {
            assert_eq!(Numbers::of_tensor(&tensor(dims, n_bytes)), None, "{dims:?}");
        }
        assert_eq!(Numbers::of_tensor(&TensorProto { int64_data: vec![1], ..tensor(&[1], 8) }), None);
    }
}
