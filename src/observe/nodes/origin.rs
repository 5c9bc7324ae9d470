//! Where a part's values come from, by its provenance.json.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::base::ids::ValueName;
use crate::onnx::Isolator;

/// Operators of ONNX nodes. Values of one FX node share the list: many values and many nodes may name the same one.
type Operators = Arc<[String]>;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub op: String,
    pub module: String,
    pub source: String,
    pub role: String,
    pub seq_nr: i64,
    pub onnx_ops: Operators,
    pub onnx_index: i64,
}

/// provenance.json, as far as it is needed here; what is missing stays empty.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Provenance {
    values: HashMap<ValueName, ValueFacts>,
    outputs: Vec<OutputFacts>,
    /// ONNX node → FX node.
    nodes: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(default)]
struct ValueFacts {
    fx: String,
    op: String,
    module: String,
    source: String,
    seq_nr: i64,
}

impl Default for ValueFacts {
    fn default() -> Self {
        let nothing = String::new;
        Self { fx: nothing(), op: nothing(), module: nothing(), source: nothing(), seq_nr: -1 }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OutputFacts {
    name: ValueName,
    role: String,
    of: String,
}

impl Provenance {
    /// What cannot be read leaves everything without origin.
    pub fn read(json: &str) -> Self {
        serde_json::from_str(json).unwrap_or_else(|error| {
            tracing::warn!(%error, "provenance: not as expected; nodes are shown without their origin");
            Self::default()
        })
    }

    /// Origins of the named values.
    pub fn origins(mut self, isolator: &Isolator, named_values: &[ValueName]) -> HashMap<ValueName, Origin> {
        let of_fx = operators(&self.nodes, isolator);
        let mut roles: HashMap<ValueName, String> = (self.outputs.into_iter())
            .map(|OutputFacts { name, role, of }| (name, [role, of].join(" ").trim().to_owned()))
            .collect();
        // Values that one node gives share its name.
        let mut of_node: HashMap<usize, Operators> = HashMap::new();
        let mut origins = HashMap::with_capacity(named_values.len());
        for name in named_values {
            if origins.contains_key(name) {
                continue;
            }
            let facts = self.values.remove(name).unwrap_or_default();
            let fx = if facts.fx.is_empty() { name } else { &facts.fx };
            let producer = isolator.producer(name);
            let onnx_ops = match (of_fx.get(fx.as_str()), producer) {
                (Some(shared), _) => Arc::clone(shared),
                (None, Some(at)) => {
                    Arc::clone(of_node.entry(at).or_insert_with(|| [isolator.nodes()[at].op_type().to_owned()].into()))
                }
                (None, None) => Operators::default(),
            };
            let role = roles.remove(name).unwrap_or_default();
            let onnx_index = producer.map_or(-1, |at| at as i64);
            origins.insert(name.clone(), Origin { onnx_ops, role, onnx_index, ..Origin::of(facts) });
        }
        origins
    }
}

/// FX node → operators of its ONNX nodes, in the model's order.
fn operators<'p>(fx_of_node: &'p HashMap<String, String>, isolator: &Isolator) -> HashMap<&'p str, Operators> {
    let mut lists: HashMap<&str, Vec<String>> = HashMap::new();
    for node in isolator.nodes() {
        if let Some(fx) = fx_of_node.get(node.name()) {
            lists.entry(fx).or_default().push(node.op_type().to_owned());
        }
    }
    lists.into_iter().map(|(fx, list)| (fx, list.into())).collect()
}

impl Origin {
    fn of(facts: ValueFacts) -> Self {
        let ValueFacts { op, module, source, seq_nr, .. } = facts;
        let (role, onnx_ops) = Default::default();
        Self { op, module, source, role, seq_nr, onnx_ops, onnx_index: -1 }
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::of(ValueFacts::default())
    }
}
