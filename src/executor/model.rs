//! What the executor itself needs to know of a model.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;

use super::ExecutorError;
use crate::onnx::{self, OnnxError};

/// Nodes of a model's main graph and what they produce, as exported, before any optimization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutline {
    n_nodes: u32,
    produced: HashSet<String>,
}

impl ModelOutline {
    /// Reads a ModelProto; its weights are not copied. Errors: BadModel.
    pub fn read(model: &Bytes) -> Result<Self, ExecutorError> {
        let bad = |reason: String| ExecutorError::BadModel { reason };
        let model = onnx::decode(model.clone()).map_err(|error| match error {
            // BadModel says "model:" itself.
            OnnxError::Decode { source, .. } => bad(format!("no ModelProto: {source}")),
            other => bad(other.to_string()),
        })?;
        let nodes = model.graph.ok_or_else(|| bad("no ModelProto: it has no graph".to_owned()))?.node;
        let n_nodes = nodes.len() as u32;
        let produced = nodes.into_iter().flat_map(|node| node.output).filter(|name| !name.is_empty()).collect();
        Ok(Self { n_nodes, produced })
    }

    /// Nodes of the main graph.
    pub fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    /// Those FX nodes whose value a node of the model produces.
    pub fn count_fx_nodes(&self, fx_values: &BTreeMap<String, String>) -> u32 {
        fx_values.values().filter(|&value| self.produced.contains(value)).count() as u32
    }
}
