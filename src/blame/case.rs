//! What is examined: a part of a graph in one call, as it was dumped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;

use super::error::BlameError;
use super::same_pair::SAME;
use super::values::Values;
use crate::base::ids::{GraphId, ValueName};
use crate::compare::{NoiseKind, Policy, TensorVerdict, Tolerance, Verdict};
use crate::dump::{Judging, NodeRow, NodeTable};
use crate::onnx::proto::ModelProto;
use crate::onnx::{Descriptions, Isolator, NamedTensor, half_of, uses};
use crate::protocol::message::{PartSpec, SessionSpec};
use crate::tensor::TensorView;

/// A part in one call: what ran, on what, and what eager makes of it.
pub struct Case {
    /// As exported.
    pub model: Bytes,
    /// Values of the model that are an FX node's.
    pub named_values: Vec<ValueName>,
    /// What rules of the session are looked for in.
    pub described: Descriptions,
    /// How it ran.
    pub spec: SessionSpec,
    /// By what its outputs are judged.
    pub judging: Judging,
    /// What it was called with, in the model's order.
    pub feeds: Vec<NamedTensor>,
    /// What it gave, in the model's order.
    pub actuals: Vec<NamedTensor>,
    /// Eager's values, of inputs and outputs too.
    pub values: Rc<Values>,
    /// What comparing every node found; empty when that was not done.
    pub table: NodeTable,
    /// The model, to be cut.
    pub isolator: Isolator,
    rows: HashMap<ValueName, usize>,
    /// Value → nodes that read it.
    readers: HashMap<String, Vec<usize>>,
}

/// What makes a [`Case`].
pub struct Parts {
    /// As exported.
    pub model: ModelProto,
    /// Values that are an FX node's.
    pub named_values: Vec<ValueName>,
    /// What rules of the session are looked for in; empty where it has none.
    pub described: Descriptions,
    /// How it ran.
    pub spec: SessionSpec,
    /// By what its outputs are judged, as the call was compared; None: it was not.
    pub judging: Option<Judging>,
    /// The run's; None: by dtype.
    pub tolerance: Option<Tolerance>,
    /// What it was called with.
    pub feeds: Vec<NamedTensor>,
    /// What it gave.
    pub actuals: Vec<NamedTensor>,
    /// Eager's values.
    pub values: Rc<Values>,
    /// What comparing every node found.
    pub table: NodeTable,
}

impl Case {
    /// Errors: [`BlameError::Onnx`] of the model.
    pub fn new(parts: Parts) -> Result<Self, BlameError> {
        let Parts { model, named_values, described, spec, judging, tolerance, feeds, actuals, values, table } = parts;
        let by_run = || Judging::by(Policy { given: tolerance, through: half_of(&model), ..Policy::default() });
        let mut judging = judging.unwrap_or_else(by_run);
        for row in table.nodes.iter().filter(|row| is_worse(&row.cumulative)) {
            judging.forget_terms(&row.name);
        }
        if table.nodes.iter().any(|row| row.local.verdict == Verdict::Mismatch) {
            judging.forget_sums_and_spreads();
        }
        let bytes = model.encode_to_vec().into();
        let isolator = Isolator::new(model, &named_values)?;
        let mut readers: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, node) in isolator.nodes().iter().enumerate() {
            uses(node).into_iter().for_each(|name| readers.entry(name.to_owned()).or_default().push(at));
        }
        let rows = table.nodes.iter().enumerate().map(|(at, row)| (row.name.clone(), at)).collect();
        Ok(Self {
            model: bytes,
            named_values,
            described,
            spec,
            judging,
            feeds,
            actuals,
            values,
            table,
            isolator,
            rows,
            readers,
        })
    }

    /// What comparing the nodes found of a value.
    pub fn row(&self, name: &str) -> Option<&NodeRow> {
        self.rows.get(name).map(|&at| &self.table.nodes[at])
    }

    /// The part as a session is made of it. `model`: whole, or a piece with its `named_values`.
    pub fn part(&self, model: Bytes, named_values: Vec<ValueName>, session: SessionSpec) -> PartSpec {
        PartSpec {
            graph: GraphId::from_bytes([0; 32]),
            part: self.table.part,
            model,
            session,
            fx_values: BTreeMap::new(),
            named_values,
            described: self.described.clone(),
        }
    }

    /// As it ran, but with nothing optimized: what pieces run with.
    pub fn unoptimized(&self) -> SessionSpec {
        self.spec.unoptimized()
    }

    /// An output, or any other value that has drifted, against eager's.
    pub fn judge(&self, name: &str, reference: &TensorView<'_>, candidate: &TensorView<'_>) -> TensorVerdict {
        self.judging.judge(name, reference, candidate)
    }

    /// Whether comparing the nodes found that an output is right but for rounding: it matches, as it drifted and as it came
    /// out of the session that nobody looked into. `as_ran`: as it is in the dump, which is that one where it is no further
    /// from eager's than both ways together.
    pub fn is_rounding(&self, as_ran: &TensorVerdict) -> bool {
        let plain = self.table.plain.iter().find(|verdict| verdict.name == as_ran.name);
        let drifted = self.row(&as_ran.name).map(|row| &row.cumulative);
        let (Some(plain), Some(drifted)) = (plain, drifted) else { return false };
        let is_reached = match (&plain.metrics, &drifted.metrics, &as_ran.metrics) {
            (Some(plain), Some(drifted), Some(whole)) => {
                whole.max_abs <= SAME * (plain.max_abs + drifted.max_abs)
                    && whole.nan_disagreements <= plain.nan_disagreements + drifted.nan_disagreements
            }
            _ => false,
        };
        is_reached && plain.verdict.is_pass() && drifted.verdict.is_pass()
    }

    /// Whether comparing the nodes found a value's own kernel further from float64 than rounding explains, though it may be
    /// within tolerance.
    pub fn is_worse(&self, name: &str) -> bool {
        self.row(name).is_some_and(|row| is_worse(&row.local))
    }

    /// By which values are judged.
    pub fn policy(&self) -> Policy {
        self.judging.policy
    }

    /// Whether the nodes can be examined: eager's value of one is known that is no output, or all are outputs.
    pub fn knows_nodes(&self) -> bool {
        let mut inner = self.inner_values().peekable();
        !self.named_values.is_empty() && (inner.peek().is_none() || self.has_inner_values())
    }

    /// Whether eager's value of a node is known that is no output.
    pub fn has_inner_values(&self) -> bool {
        self.inner_values().any(|name| self.values.has(name))
    }

    fn inner_values(&self) -> impl Iterator<Item = &ValueName> {
        let outputs: HashSet<&str> = self.actuals.iter().map(|actual| actual.name.as_str()).collect();
        self.named_values.iter().filter(move |name| !outputs.contains(name.as_str()))
    }

    /// What depends on these values, with them.
    pub fn after<'a>(&'a self, values: impl IntoIterator<Item = &'a str>) -> HashSet<&'a str> {
        let mut found = HashSet::new();
        let mut ahead: Vec<&str> = values.into_iter().collect();
        while let Some(value) = ahead.pop() {
            if found.insert(value) {
                let readers = self.readers.get(value).into_iter().flatten();
                ahead.extend(readers.flat_map(|&at| &self.isolator.nodes()[at].output).map(String::as_str));
            }
        }
        found
    }

    /// What these values depend on, with them.
    pub fn before<'a>(&'a self, values: impl IntoIterator<Item = &'a str>) -> HashSet<&'a str> {
        self.back_to(&HashSet::new(), values)
    }

    /// What of the exported model is computed on the way from `inputs` to a value, with it.
    pub fn between<'a>(&'a self, inputs: &HashSet<&str>, value: &'a str) -> HashSet<&'a str> {
        self.back_to(inputs, [value])
    }

    fn back_to<'a>(&'a self, ends: &HashSet<&str>, values: impl IntoIterator<Item = &'a str>) -> HashSet<&'a str> {
        let mut found = HashSet::new();
        let mut ahead: Vec<&str> = values.into_iter().collect();
        while let Some(value) = ahead.pop() {
            if !ends.contains(value)
                && found.insert(value)
                && let Some(at) = self.isolator.producer(value)
            {
                ahead.extend(uses(&self.isolator.nodes()[at]));
            }
        }
        found
    }
}

fn is_worse(verdict: &TensorVerdict) -> bool {
    verdict.noise.is_some_and(|noise| noise.kind == NoiseKind::CandidateWorse)
}

/// Whether a verdict accuses: it is outside tolerance, or there is no pair.
pub fn is_wrong(verdict: &TensorVerdict) -> bool {
    matches!(verdict.verdict, Verdict::Mismatch | Verdict::Failed(_))
}
