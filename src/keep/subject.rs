//! What is searched: a part in half precision, and the calls of it that were dumped.

use std::collections::{BTreeMap, HashMap, HashSet};

use prost::Message as _;
use serde::Deserialize;

use crate::base::ids::{GraphId, ValueName};
use crate::compare::Tolerance;
use crate::onnx::proto::ModelProto;
use crate::onnx::{Described, Descriptions, NamedTensor, half_of};
use crate::protocol::message::{PartSpec, SessionSpec};
use crate::tensor::DType;

/// What provenance tells of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Told {
    /// What rules are looked for in.
    #[serde(flatten)]
    pub described: Described,
    /// Line of the user's code.
    pub source: String,
}

/// A part and its calls.
pub struct Subject {
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// As exported.
    pub model: ModelProto,
    /// What is known of values that are an FX node's.
    pub told: BTreeMap<ValueName, Told>,
    /// {output: what it is}, such as `GradAOTOutput layer.weight`.
    pub roles: HashMap<ValueName, String>,
    /// How it ran, without rules of precision.
    pub spec: SessionSpec,
    /// Of the run; None: by dtype.
    pub tolerance: Option<Tolerance>,
    /// One a call.
    pub calls: Vec<Call>,
}

/// What a part was called with.
pub struct Call {
    /// Number of the call.
    pub step: u64,
    /// In the model's order.
    pub feeds: Vec<NamedTensor>,
}

impl Subject {
    /// Values of the model that are an FX node's: where it is rounded.
    pub fn named_values(&self) -> Vec<ValueName> {
        let nodes = self.model.graph.iter().flat_map(|graph| &graph.node);
        let produced: HashSet<&str> = nodes.flat_map(|node| &node.output).map(String::as_str).collect();
        self.told.keys().filter(|name| produced.contains(name.as_str())).cloned().collect()
    }

    /// What patterns are looked for in.
    pub fn described(&self) -> Descriptions {
        self.told.iter().map(|(value, told)| (value.clone(), told.described.clone())).collect()
    }

    /// The half precision that takes part, the coarser one of two; None: there is none.
    pub fn half(&self) -> Option<DType> {
        half_of(&self.model)
    }

    /// The part as it is compiled with these rules.
    pub fn compiled(&self, keep_float32: &[String]) -> PartSpec {
        let session = SessionSpec { keep_float32: keep_float32.to_vec(), ..self.spec.clone() };
        self.part_spec(&self.model, self.named_values(), session)
    }

    /// A model made of the part's.
    pub fn part_spec(&self, model: &ModelProto, named_values: Vec<ValueName>, session: SessionSpec) -> PartSpec {
        PartSpec {
            graph: GraphId::from_bytes([0; 32]),
            part: self.part,
            model: model.encode_to_vec().into(),
            session,
            fx_values: BTreeMap::new(),
            named_values,
            described: self.described(),
        }
    }
}
