//! What the executor itself needs to know of a model. Decodes the names of the main graph only: weights are skipped, so a
//! model of 100 MB costs no copy.

use std::collections::{BTreeMap, HashSet};

use prost::Message;

use super::ExecutorError;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
}

/// Nodes of a model's main graph and what they produce, as exported, before any optimization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutline {
    n_nodes: u32,
    produced: HashSet<String>,
}

impl ModelOutline {
    /// Reads a ModelProto. Errors: BadModel.
    pub fn read(model: &[u8]) -> Result<Self, ExecutorError> {
        let bad = |reason: String| ExecutorError::BadModel { reason };
        let model = Model::decode(model).map_err(|error| bad(format!("no ModelProto: {error}")))?;
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
