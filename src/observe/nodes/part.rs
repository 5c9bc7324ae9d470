//! What is known of a part's nodes before anything runs.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;

use crate::base::footprint::Footprint;
use crate::base::ids::ValueName;
use crate::onnx::{self, Isolator, OnnxError};

/// A part's model, ready to be cut, and where its values come from.
#[derive(Debug)]
pub struct PartNodes {
    pub(super) isolator: Isolator,
    origins: HashMap<ValueName, Origin>,
}

/// What a named value takes in the tables of names and origins, about.
const NAMED_BYTES: usize = 1 << 10;
/// What an object in provenance.json takes, about.
const OBJECT_BYTES: usize = 512;
/// The same of a name and its value.
const ENTRY_BYTES: usize = 256;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub op: String,
    pub module: String,
    pub source: String,
    pub role: String,
    pub seq_nr: i64,
    pub onnx_ops: Vec<String>,
    pub onnx_index: i64,
}

/// provenance.json, as far as it is needed here; what is missing stays empty.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Provenance {
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

impl PartNodes {
    /// Reads a ModelProto. A provenance that cannot be read leaves the nodes without origin. Errors: [`OnnxError`].
    pub fn read(model: &Bytes, named_values: &[ValueName], provenance_json: &str) -> Result<Self, OnnxError> {
        let isolator = Isolator::new(onnx::decode(model.clone())?, named_values)?;
        let provenance = serde_json::from_str(provenance_json).unwrap_or_else(|error| {
            tracing::warn!(%error, "provenance: not as expected; nodes are shown without their origin");
            Provenance::default()
        });
        let origins = provenance.origins(&isolator, named_values);
        Ok(Self { isolator, origins })
    }

    /// What [`PartNodes::read`] of these takes beside the model's own bytes, at most: told before anything is decoded.
    pub fn footprint(model: &[u8], named_values: &[ValueName], provenance_json: &str) -> usize {
        // The isolator keeps the decoded model and knows each name of it by up to three tables.
        let Footprint { text_bytes, n_bytes, .. } = onnx::footprint(model);
        let decoded = text_bytes.saturating_add(n_bytes).saturating_mul(3);
        let named = named_values.iter().map(|name| 4 * name.len() + NAMED_BYTES).sum::<usize>();
        let count = |byte| provenance_json.bytes().filter(|&other| other == byte).count();
        let provenance = 2 * provenance_json.len() + OBJECT_BYTES * count(b'{') + ENTRY_BYTES * count(b':');
        decoded.saturating_add(named).saturating_add(provenance)
    }

    pub(super) fn origin(&self, value: &str) -> Origin {
        self.origins.get(value).cloned().unwrap_or_else(|| Origin::of(ValueFacts::default()))
    }
}

impl Provenance {
    fn origins(mut self, isolator: &Isolator, named_values: &[ValueName]) -> HashMap<ValueName, Origin> {
        let mut ops: HashMap<&str, Vec<String>> = HashMap::new();
        for node in isolator.nodes() {
            if let Some(fx) = self.nodes.get(node.name()) {
                ops.entry(fx).or_default().push(node.op_type().to_owned());
            }
        }
        let roles: HashMap<&str, String> = (self.outputs.iter())
            .map(|output| (output.name.as_str(), format!("{} {}", output.role, output.of).trim().to_owned()))
            .collect();
        let mut origin = |name: &ValueName| {
            let facts = self.values.remove(name).unwrap_or_default();
            let producer = isolator.producer(name);
            let fx = if facts.fx.is_empty() { name } else { &facts.fx };
            let own = || producer.map(|at| isolator.nodes()[at].op_type().to_owned()).into_iter().collect();
            let onnx_ops = ops.get(fx.as_str()).cloned().unwrap_or_else(own);
            let role = roles.get(name.as_str()).cloned().unwrap_or_default();
            let onnx_index = producer.map_or(-1, |at| at as i64);
            (name.clone(), Origin { onnx_ops, role, onnx_index, ..Origin::of(facts) })
        };
        named_values.iter().map(&mut origin).collect()
    }
}

impl Origin {
    fn of(facts: ValueFacts) -> Self {
        let ValueFacts { op, module, source, seq_nr, .. } = facts;
        Self { op, module, source, role: String::new(), seq_nr, onnx_ops: Vec::new(), onnx_index: -1 }
    }
}
