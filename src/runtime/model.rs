//! What a runtime, and the executor itself, need to know of a model.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::error::RuntimeError;
use super::types::declared_shape;
use crate::onnx::proto::{ModelProto, NodeProto};
use crate::onnx::{self, Attention, OnnxError};
use crate::tensor::TensorBuf;

/// A model as a runtime gets it: its bytes, and what was seen of them when they were decoded, once.
#[derive(Clone, Debug)]
pub struct Model {
    /// A ModelProto.
    pub bytes: Bytes,
    /// A node of its main graph is one that a runtime may do otherwise than as the model says: a Where, a
    /// ScatterElements, or attention; or one that only our operator does: a region, a product
    /// that reads half precision.
    pub has_replaceable: bool,
    /// A Gemm of its main graph reads an output that is a Transpose's result.
    pub has_transposed_outputs: bool,
    /// Inputs and outputs of its main graph of which it tells no shape.
    pub unranked: HashSet<String>,
}

impl Model {
    /// The model in `bytes`, which `proto` was decoded from.
    pub fn new(bytes: Bytes, proto: &ModelProto) -> Self {
        let is_replaceable = |node: &NodeProto| {
            let is_ours = || Attention::called_by(node).is_some() || onnx::is_ours(node);
            matches!(node.op_type(), "Where" | "ScatterElements") || is_ours()
        };
        let has_replaceable = proto.graph.iter().flat_map(|graph| &graph.node).any(is_replaceable);
        let infos = proto.graph.iter().flat_map(|graph| graph.input.iter().chain(&graph.output));
        let unranked = infos.filter(|info| declared_shape(info).is_none()).map(|info| info.name().to_owned()).collect();
        Self { bytes, has_replaceable, has_transposed_outputs: onnx::has_transposed_outputs(proto), unranked }
    }

    /// A model, encoded.
    pub fn encode(proto: &ModelProto) -> Self {
        Self::new(proto.encode_to_vec().into(), proto)
    }

    /// The model in `bytes`; its weights are not copied. Errors: [`OnnxError::Decode`].
    pub fn read(bytes: Bytes) -> Result<Self, OnnxError> {
        let proto = onnx::decode(bytes.clone())?;
        Ok(Self::new(bytes, &proto))
    }
}

/// The value of a model's input that is a constant of its session.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Of the input.
    pub name: String,
    /// Its value, which sessions with the same may share.
    pub tensor: Arc<TensorBuf>,
}

/// Nodes of a model's main graph and what they produce, as exported, before any optimization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutline {
    n_nodes: u32,
    produced: HashSet<String>,
}

impl ModelOutline {
    /// Of a model. Errors: BadModel without a graph.
    pub fn of(model: &ModelProto) -> Result<Self, RuntimeError> {
        let no_graph = || RuntimeError::BadModel { reason: "no ModelProto: it has no graph".to_owned() };
        let nodes = &model.graph.as_ref().ok_or_else(no_graph)?.node;
        let produced = nodes.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()).cloned().collect();
        Ok(Self { n_nodes: nodes.len() as u32, produced })
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
