//! Which model a part's session is made of: as exported, or with its half precision computed in float32.

use super::error::RuntimeError;
use super::model::Model;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, OnnxError};
use crate::protocol::message::{Optimization, PartSpec, SessionSpec};
use crate::tensor::DType;

/// The part's model as the runtime gets it: as exported, which `exported` was decoded from, or [`widened`]. Errors:
/// BadModel.
pub fn runnable(part: &PartSpec, exported: &ModelProto) -> Result<Model, RuntimeError> {
    refuse_rules(&part.session)?;
    let wide = widened(part, exported)?;
    Ok(wide.map_or_else(|| Model::new(part.model.clone(), exported), |wide| Model::encode(&wide)))
}

/// Rules that are not followed here are refused, not left out. Errors: BadOption.
fn refuse_rules(session: &SessionSpec) -> Result<(), RuntimeError> {
    let refuse =
        |name: &str, reason: &str| Err(RuntimeError::BadOption { name: name.to_owned(), reason: reason.to_owned() });
    if !session.runtimes.is_empty() {
        return refuse("runtimes", "a part that is divided among runtimes is no one model of ONNX Runtime's");
    }
    match session.keep_float32.is_empty() {
        true => Ok(()),
        false => refuse("precision_rules", "no rule by pattern is followed yet"),
    }
}

/// The part's model after the precision pass; None where its providers, or the pass, leave it as it is.
/// Errors: [`OnnxError`].
pub fn widened(part: &PartSpec, exported: &ModelProto) -> Result<Option<ModelProto>, OnnxError> {
    if !part.session.cpu_only() {
        return Ok(None);
    }
    let wide = match part.session.optimization {
        Optimization::Disable => onnx::widen(exported, &part.named_values),
        _ => onnx::widen_around_attention(exported, &part.named_values),
    };
    wide.or_else(|error| {
        if onnx::mentions(exported, DType::BF16) {
            return Err(error);
        }
        // Of float16 the runtime has kernels, or makes do with float32's: only roundings between its nodes are lost.
        tracing::warn!(part = part.part, %error, "float16 runs as ONNX Runtime runs it");
        Ok(None)
    })
}
