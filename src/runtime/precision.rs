//! Which model a part's session is made of: as exported, or with its half precision computed in float32.

use std::sync::Arc;

use super::error::RuntimeError;
use super::model::Model;
use super::traits::{Runtime, Session};
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, OnnxError};
use crate::protocol::message::{Optimization, PartSpec, SessionSpec};
use crate::tensor::DType;

/// A session of its own for a part. Errors: the runtime's, and BadModel where [`widened`] fails.
pub fn build(runtime: &dyn Runtime, part: &PartSpec) -> Result<Arc<dyn Session>, RuntimeError> {
    // What was decoded goes before the build, which takes memory of its own.
    let runnable = runnable(part, &onnx::decode(part.model.clone())?)?;
    runtime.build(&runnable, &part.session)
}

/// The part's model as the runtime gets it: as exported, which `exported` was decoded from, or [`widened`]. Errors:
/// BadModel.
pub fn runnable(part: &PartSpec, exported: &ModelProto) -> Result<Model, RuntimeError> {
    refuse_rules(&part.session)?;
    let wide = widened(part, exported)?;
    Ok(wide.map_or_else(|| Model::new(part.model.clone(), exported), |wide| Model::encode(&wide)))
}

/// Rules that nothing follows yet are refused, not left out. Errors: BadOption.
fn refuse_rules(session: &SessionSpec) -> Result<(), RuntimeError> {
    match session.has_patterns() {
        true => Err(RuntimeError::BadOption {
            name: "runtimes, precision_rules".to_owned(),
            reason: "no rule by pattern is followed yet".to_owned(),
        }),
        false => Ok(()),
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
