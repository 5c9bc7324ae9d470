//! A model that names the operators here.

use bytes::Bytes;
use prost::Message as _;

use super::{attention, by_row, cuda_calls, select};
use crate::onnx::proto::{AttributeProto, ModelProto, NodeProto, OperatorSetIdProto, attribute_proto::AttributeType};
use crate::onnx::{self, Attention, DOMAIN, OnnxError};
use crate::protocol::message::{CUDA_PROVIDER, SessionSpec};
use crate::runtime::Model;
use crate::runtime::ort::libtorch::Libtorch;

/// The provider whose kernels our operators are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) enum Place {
    Cpu,
    Cuda,
}

impl Place {
    /// Of the first of a session's providers that has operators of ours; None where none has.
    pub(in crate::runtime::ort) fn of(spec: &SessionSpec) -> Option<Self> {
        let is_on_cuda = spec.providers.iter().any(|(name, _)| name == CUDA_PROVIDER);
        if spec.cpu_only() { Some(Self::Cpu) } else { is_on_cuda.then_some(Self::Cuda) }
    }
}

/// The model with the operators that we have for a provider: for ONNX's and, where it `fuses`, for calls of our functions and
/// for several nodes, and with those that passes made; None when it has none of these, or operators of its own by our
/// domain's name. Errors: [`OnnxError::Decode`].
pub(in crate::runtime::ort) fn in_place(model: &Model, place: Place, fuses: bool) -> Result<Option<Bytes>, OnnxError> {
    if !model.has_replaceable {
        return Ok(None);
    }
    let mut proto = onnx::decode(model.bytes.clone())?;
    let n_made = proto.graph.iter().flat_map(|graph| &graph.node).filter(|node| onnx::is_ours(node)).count();
    let mut n_replaced = n_made;
    let imported = proto.opset_import.iter().any(|opset| opset.domain() == DOMAIN);
    if imported && n_made == 0 && !proto.functions.iter().any(|function| function.domain() == DOMAIN) {
        return Ok(None); // somebody else's operators
    }
    n_replaced += match place {
        Place::Cpu => on_cpu(&mut proto, fuses),
        Place::Cuda if fuses => on_cuda(&mut proto),
        Place::Cuda => 0,
    };
    if n_replaced == 0 {
        return Ok(None);
    }
    by_row::without_transposes(&mut proto);
    onnx::drop_uncalled(&mut proto);
    if !imported {
        proto.opset_import.push(OperatorSetIdProto { domain: Some(DOMAIN.to_owned()), version: Some(1) });
    }
    Ok(Some(proto.encode_to_vec().into()))
}

fn on_cpu(model: &mut ModelProto, fuses: bool) -> usize {
    let mut n_replaced = 0;
    onnx::for_each_typed(model, |node, inputs| {
        if let Some(name) = select::in_place_of(node, inputs) {
            (node.domain, node.op_type) = (Some(DOMAIN.to_owned()), Some(name.to_owned()));
            n_replaced += 1;
        }
        if let Some((attention, name)) = attention::in_place_of(node, inputs).filter(|_| fuses) {
            replace(node, attention, name);
            n_replaced += 1;
        }
    });
    if fuses { n_replaced + onnx::reduce_rows(model) } else { n_replaced }
}

/// Attention by libtorch's kernels, if the process finds them. What runs as the plain nodes of its function is logged.
fn on_cuda(model: &mut ModelProto) -> usize {
    let mut nodes = model.graph.iter().flat_map(|graph| &graph.node);
    if !nodes.any(|node| Attention::called_by(node).is_some()) || Libtorch::get().is_err() {
        return 0;
    }
    let (n_replaced, left) = cuda_calls::replace(model);
    for (node, why) in left {
        tracing::warn!(node, why, "attention runs as the plain ONNX nodes of its function");
    }
    n_replaced
}

fn replace(node: &mut NodeProto, attention: Attention, name: &str) {
    node.op_type = Some(name.to_owned());
    node.attribute = vec![AttributeProto {
        name: Some(attention::IS_CAUSAL.to_owned()),
        i: Some(attention.is_causal.into()),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    }];
}
