//! A model whose roundings to half precision are turned on and off from call to call.

use std::collections::{HashMap, HashSet};

use super::casts::cast;
use super::elements::FLOAT;
use super::widen::{Attend, Unrounded, Widened, widen_but};
use crate::base::ids::ValueName;
use crate::onnx::proto::{GraphProto, ModelProto, NodeProto};
use crate::onnx::{OnnxError, tensor_proto, value_info, walk};
use crate::tensor::{DType, Shape, TensorBuf, TensorDesc};

/// The input that turns roundings on: bool, one element a switch.
pub const SWITCHES: &str = "rust_ort/switches";

/// Such a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Switched {
    /// It has [`SWITCHES`] as its last input. Its outputs are the model's, in their order; those of half precision are
    /// float32, as nothing has rounded them, and may have other names.
    pub model: ModelProto,
    /// What is rounded where the input says so, in its order: every value that [`super::widen`] rounds, and whose nodes
    /// are the main graph's.
    pub switches: Vec<Unrounded>,
}

/// The model with a switch for each rounding; None where it has none. Nodes compute as in [`super::widen`]. Errors: as
/// there, [`OnnxError::NoGraph`].
pub fn switched<S: AsRef<str>>(
    model: &ModelProto,
    named_values: &[S],
    attend: Attend,
) -> Result<Option<Switched>, OnnxError> {
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let every: HashSet<ValueName> = graph.node.iter().flat_map(|node| &node.output).cloned().collect();
    let Some(wide) = widen_but(model, named_values, &every, attend)? else { return Ok(None) };
    let Widened { mut model, unrounded: switches, outputs } = wide;
    if switches.is_empty() {
        return Ok(None);
    }
    let graph = model.graph.as_mut().ok_or(OnnxError::NoGraph)?;
    let names = walk::names(graph).into_iter().map(str::to_owned).collect();
    Pass { names, exact: HashMap::new() }.graph(graph, &switches, &outputs);
    Ok(Some(Switched { model, switches }))
}

struct Pass {
    /// Every name of the model.
    names: HashSet<String>,
    /// {what readers read: the same before its switch}.
    exact: HashMap<String, String>,
}

impl Pass {
    fn graph(&mut self, graph: &mut GraphProto, switches: &[Unrounded], outputs: &[(ValueName, ValueName)]) {
        let by_wide: HashMap<&str, usize> =
            switches.iter().enumerate().map(|(at, switch)| (switch.wide.as_str(), at)).collect();
        for mut node in std::mem::take(&mut graph.node) {
            let mut after = Vec::new();
            for name in &mut node.output {
                let Some(&at) = by_wide.get(name.as_str()) else { continue };
                let exact = self.fresh(&format!("{name}/exact"));
                self.exact.insert(name.clone(), exact.clone());
                after.extend(self.switch(&exact, name, at, switches[at].element, graph));
                *name = exact;
            }
            graph.node.push(node);
            graph.node.extend(after);
        }
        for output in &mut graph.output {
            let Some((_, wide)) = outputs.iter().find(|(name, _)| name == output.name()) else { continue };
            output.name = Some(self.exact.get(wide).unwrap_or(wide).clone());
            super::scope::declare_float(output);
        }
        let n = i64::try_from(switches.len()).expect("a model has fewer nodes");
        graph.input.push(value_info(SWITCHES, &TensorDesc { dtype: DType::Bool, shape: one_axis(n) }));
    }

    /// `to` is `exact`, rounded where switch `at` is on.
    fn switch(&mut self, exact: &str, to: &str, at: usize, half: i32, graph: &mut GraphProto) -> [NodeProto; 4] {
        let [index, is_on, rounded, read] =
            ["index", "is_on", "rounded", "read"].map(|what| self.fresh(&format!("{to}/{what}")));
        let number = TensorBuf::new(
            TensorDesc { dtype: DType::I64, shape: Shape::new([]).expect("rank 0") },
            (at as i64).to_le_bytes().to_vec(),
        );
        graph.initializer.push(tensor_proto(&index, &number.expect("eight bytes").view()));
        [
            node("Gather", &[SWITCHES, &index], &is_on),
            cast(rounded.clone(), exact.to_owned(), rounded.clone(), half),
            cast(read.clone(), rounded, read.clone(), FLOAT),
            node("Where", &[&is_on, &read, exact], to),
        ]
    }

    fn fresh(&mut self, name: &str) -> String {
        walk::fresh(name, &mut self.names)
    }
}

fn one_axis(n: i64) -> Shape {
    Shape::new([n]).expect("one axis of some elements")
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(output.to_owned()),
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}
