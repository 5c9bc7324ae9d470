//! A model that names the operators here.

use bytes::Bytes;
use prost::Message as _;

use super::{DOMAIN, select};
use crate::onnx::proto::OperatorSetIdProto;
use crate::onnx::{self, OnnxError};
use crate::runtime::Model;

/// The model with our operators for ONNX's; None when it has none of these, or operators of its own by our domain's name. Errors: [`OnnxError::Decode`].
pub(in crate::runtime::ort) fn in_place(model: &Model) -> Result<Option<Bytes>, OnnxError> {
    if !model.selects {
        return Ok(None);
    }
    let (mut proto, mut n_replaced) = (onnx::decode(model.bytes.clone())?, 0);
    if proto.opset_import.iter().any(|opset| opset.domain() == DOMAIN) {
        return Ok(None); // somebody else's operators
    }
    onnx::for_each_typed(&mut proto, |node, inputs| {
        if let Some(name) = select::in_place_of(node, inputs) {
            (node.domain, node.op_type) = (Some(DOMAIN.to_owned()), Some(name.to_owned()));
            n_replaced += 1;
        }
    });
    if n_replaced == 0 {
        return Ok(None);
    }
    proto.opset_import.push(OperatorSetIdProto { domain: Some(DOMAIN.to_owned()), version: Some(1) });
    Ok(Some(proto.encode_to_vec().into()))
}
