//! Faults to be planted in a model: each changes one node to something that runs, has the same shapes and is wrong.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::base::ids::ValueName;
use crate::onnx::proto::attribute_proto::AttributeType;
use crate::onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::onnx::{NamedTensor, tensor_proto};
use crate::tensor::{DType, TensorBuf};

/// What is done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The last two inputs of Sub, Div or Pow are exchanged.
    SwappedOperands,
    /// Add becomes Sub.
    AddAsSub,
    /// An Add's second operand is zero.
    LostSummand,
    /// A product is 1.03 times what it is.
    Scaled,
    /// A floating constant is 1.01 times what it is.
    ConstantOff,
    /// Softmax goes along the axis before the last.
    WrongAxis,
    /// Gather takes the index before.
    EarlierIndex,
    /// A float32 result is rounded to bfloat16.
    Rounded,
}

/// Every kind.
pub const KINDS: [Kind; 8] = [
    Kind::SwappedOperands,
    Kind::AddAsSub,
    Kind::LostSummand,
    Kind::Scaled,
    Kind::ConstantOff,
    Kind::WrongAxis,
    Kind::EarlierIndex,
    Kind::Rounded,
];

/// Where a fault may be planted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// What is done.
    pub kind: Kind,
    /// The node's place among those of the main graph.
    pub at: usize,
    /// Its operator.
    pub op: String,
    /// The first value that it gives.
    pub value: ValueName,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::SwappedOperands => "swapped operands",
            Kind::AddAsSub => "Add as Sub",
            Kind::LostSummand => "lost summand",
            Kind::Scaled => "x 1.03",
            Kind::ConstantOff => "constant x 1.01",
            Kind::WrongAxis => "wrong axis",
            Kind::EarlierIndex => "index - 1",
            Kind::Rounded => "through bfloat16",
        }
    }

    fn fits(self, node: &NodeProto, dtype: Option<DType>) -> bool {
        let is_float = dtype.is_some_and(DType::is_float);
        let two = node.input.len() == 2 && node.input[0] != node.input[1];
        match (self, node.op_type()) {
            (Kind::SwappedOperands, "Sub" | "Div" | "Pow") | (Kind::AddAsSub | Kind::LostSummand, "Add") => {
                two && is_float
            }
            (Kind::Scaled, "MatMul" | "Gemm" | "Conv") => is_float,
            (Kind::ConstantOff, "Constant") => constant(node).is_some(),
            (Kind::WrongAxis, "Softmax" | "LogSoftmax") | (Kind::EarlierIndex, "Gather") => true,
            (Kind::Rounded, "Mul" | "Add" | "MatMul" | "Gemm" | "Softmax" | "ReduceSum" | "ReduceMean" | "Tanh") => {
                dtype == Some(DType::F32)
            }
            _ => false,
        }
    }
}

/// Every place in the main graph for every kind. dtypes: of values that are known.
pub fn sites(model: &ModelProto, dtypes: &HashMap<&str, DType>) -> Vec<Site> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node).enumerate();
    let of_onnx = nodes.filter(|(_, node)| node.domain().is_empty() || node.domain() == "ai.onnx");
    of_onnx
        .flat_map(|(at, node)| {
            let value = node.output.first().cloned().unwrap_or_default();
            let dtype = dtypes.get(value.as_str()).copied();
            KINDS.into_iter().filter(move |kind| kind.fits(node, dtype)).map(move |kind| Site {
                kind,
                at,
                op: node.op_type().to_owned(),
                value: node.output.first().cloned().unwrap_or_default(),
            })
        })
        .collect()
}

/// The model with the fault. What is at a place that it has not stays.
pub fn planted(model: &ModelProto, site: &Site) -> ModelProto {
    let mut model = model.clone();
    if let Some(graph) = &mut model.graph
        && site.at < graph.node.len()
    {
        apply(graph, site);
    }
    model
}

fn apply(graph: &mut GraphProto, site: &Site) {
    let node = &mut graph.node[site.at];
    match site.kind {
        Kind::SwappedOperands => node.input.swap(0, 1),
        Kind::AddAsSub => node.op_type = Some("Sub".to_owned()),
        Kind::LostSummand => {
            let lost = node.input[1].clone();
            node.input[1] = name("zero");
            graph.node.insert(site.at, of("Sub", &[&lost, &lost], &name("zero")));
        }
        Kind::Scaled => {
            let value = std::mem::replace(&mut node.output[0], name("in"));
            let like = of("CastLike", &[&name("by"), &name("in")], &name("like"));
            let scaled = of("Mul", &[&name("in"), &name("like")], &value);
            graph.node.splice(site.at + 1..site.at + 1, [like, scaled]);
            graph.initializer.push(scalar(&name("by"), 1.03));
        }
        Kind::ConstantOff => {
            if let Some(made) = constant(node) {
                node.attribute = vec![AttributeProto {
                    name: Some("value".to_owned()),
                    r#type: Some(AttributeType::Tensor as i32),
                    t: Some(made),
                    ..AttributeProto::default()
                }];
            }
        }
        Kind::WrongAxis => {
            node.attribute.retain(|attribute| attribute.name() != "axis");
            node.attribute.push(int("axis", -2));
        }
        Kind::EarlierIndex => {
            let index = std::mem::replace(&mut node.input[1], name("index"));
            let like = of("CastLike", &[&name("by"), &index], &name("like"));
            let earlier = of("Sub", &[&index, &name("like")], &name("index"));
            graph.node.splice(site.at..site.at, [like, earlier]);
            graph.initializer.push(scalar(&name("by"), 1.));
        }
        Kind::Rounded => {
            let value = std::mem::replace(&mut node.output[0], name("in"));
            let cast = |from: &str, to: &str, dtype: DType| NodeProto {
                attribute: vec![int("to", dtype.onnx_code().into())],
                ..of("Cast", &[from], to)
            };
            let casts = [cast(&name("in"), &name("half"), DType::BF16), cast(&name("half"), &value, DType::F32)];
            graph.node.splice(site.at + 1..site.at + 1, casts);
        }
    }
}

/// The nearest of `named` values at or after those that the node gives: the FX nodes of which it is a part.
pub fn behind(model: &ModelProto, site: &Site, named: &HashSet<&str>) -> HashSet<ValueName> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node).collect::<Vec<_>>();
    let mut ahead: Vec<&str> =
        nodes.get(site.at).into_iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let (mut seen, mut found) = (HashSet::new(), HashSet::new());
    while let Some(value) = ahead.pop() {
        if value.is_empty() || !seen.insert(value) {
            continue;
        }
        if named.contains(value) {
            found.insert(value.to_owned());
        } else {
            let readers = nodes.iter().filter(|node| crate::onnx::uses(node).contains(value));
            ahead.extend(readers.flat_map(|node| &node.output).map(String::as_str));
        }
    }
    found
}

/// A Constant of float32 that can be off: its tensor, off.
fn constant(node: &NodeProto) -> Option<TensorProto> {
    let tensor = node.attribute.iter().find(|attribute| attribute.name() == "value")?.t.as_ref()?;
    let read = NamedTensor::from_proto(tensor).ok().filter(|read| read.desc.dtype == DType::F32)?;
    let values = read.view().flat_f64(0..read.desc.shape.n_elements())?;
    let usual = values.iter().all(|value| value.abs() < 1e30) && values.iter().any(|&value| value != 0.);
    let off: Vec<f32> = values.iter().map(|&value| (value * 1.01) as f32).collect();
    let made = TensorBuf::from_f32(read.desc.shape.dims().to_vec(), &off).ok()?;
    usual.then(|| tensor_proto(&read.name, &made.view()))
}

fn name(of: &str) -> String {
    format!("rust_ort_planted_{of}")
}

fn of(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        name: Some(format!("{output}_node")),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    }
}

fn scalar(name: &str, value: f32) -> TensorProto {
    let raw_data = Some(value.to_le_bytes().to_vec().into());
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(DType::F32.onnx_code()),
        raw_data,
        ..TensorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{order, value_info};
    use crate::tensor::TensorDesc;

    fn model() -> ModelProto {
        let constant = NodeProto {
            attribute: vec![AttributeProto {
                name: Some("value".to_owned()),
                t: Some(scalar("", 2.)),
                ..AttributeProto::default()
            }],
            ..of("Constant", &[], "two")
        };
        let graph = GraphProto {
            input: ["x", "y"].map(|name| value_info(name, &TensorDesc::new(DType::F32, [2, 2]).unwrap())).to_vec(),
            node: vec![
                constant,
                of("Sub", &["x", "two"], "a"),
                of("Add", &["a", "y"], "b"),
                of("MatMul", &["b", "x"], "c"),
                of("Softmax", &["c"], "d"),
            ],
            ..GraphProto::default()
        };
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn each_kind_has_its_places_and_leaves_a_graph_in_order() {
        let dtypes = ["two", "a", "b", "c", "d"].map(|name| (name, DType::F32)).into();
        let found = sites(&model(), &dtypes);
        let kinds: Vec<_> = found.iter().map(|site| (site.kind, site.value.as_str())).collect();
        use Kind::*;
        let expected = [
            (ConstantOff, "two"),
            (SwappedOperands, "a"),
            (AddAsSub, "b"),
            (LostSummand, "b"),
            (Rounded, "b"),
            (Scaled, "c"),
            (Rounded, "c"),
            (WrongAxis, "d"),
            (Rounded, "d"),
        ];
        assert_eq!(kinds, expected);
        for site in &found {
            let changed = planted(&model(), site);
            assert_ne!(changed, model(), "{site:?}");
            let graph = changed.graph.unwrap();
            assert_eq!(order(&graph).unwrap(), (0..graph.node.len()).collect::<Vec<_>>(), "{site:?}");
            assert!(graph.node.iter().any(|node| node.output == [site.value.clone()]), "{site:?}");
        }
        assert!(sites(&model(), &HashMap::new()).iter().all(|site| matches!(site.kind, ConstantOff | WrongAxis)));
    }

    #[test]
    fn who_holds_a_fault_is_the_nearest_named_value_after_it() {
        let site = Site { kind: Kind::ConstantOff, at: 0, op: "Constant".to_owned(), value: "two".to_owned() };
        let behind = |named: &[&str]| behind(&model(), &site, &named.iter().copied().collect());
        assert_eq!(behind(&["a", "b"]), ["a".to_owned()].into());
        assert_eq!(behind(&["c", "d"]), ["c".to_owned()].into());
        assert_eq!(behind(&["two"]), ["two".to_owned()].into());
        assert!(behind(&[]).is_empty());
    }
}
