//! What the executor itself needs to know of a model.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;

use super::ExecutorError;
use crate::onnx;

/// Nodes of a model's main graph and what they produce, as exported, before any optimization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutline {
    n_nodes: u32,
    produced: HashSet<String>,
}

impl ModelOutline {
    /// Reads a ModelProto; its weights are not copied. Errors: BadModel.
    pub fn read(model: &Bytes) -> Result<Self, ExecutorError> {
        let no_graph = || ExecutorError::BadModel { reason: "no ModelProto: it has no graph".to_owned() };
        let nodes = onnx::decode(model.clone())?.graph.ok_or_else(no_graph)?.node;
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
