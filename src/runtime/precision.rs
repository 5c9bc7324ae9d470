//! Which model a part's session is made of: as exported, or with its half precision computed in float32.

use std::collections::HashSet;

use super::error::RuntimeError;
use super::model::Model;
use crate::base::ids::ValueName;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, Attend, Descriptions};
use crate::protocol::message::{Optimization, PartSpec, SessionSpec};
use crate::tensor::DType;

/// The part's model as the runtime gets it: as exported, which `exported` was decoded from, or [`widened`]. Errors:
/// BadModel, BadOption for rules that are not followed.
pub fn runnable(part: &PartSpec, exported: &ModelProto) -> Result<Model, RuntimeError> {
    runnable_but(part, exported, &kept(exported, &part.session.keep_float32, &part.described)?)
}

/// As [`runnable`], with these values not rounded to half precision: what `keep_float32` fits in the model that this one
/// is a piece of. Errors: as there.
pub(super) fn runnable_but(
    part: &PartSpec,
    exported: &ModelProto,
    unrounded: &HashSet<ValueName>,
) -> Result<Model, RuntimeError> {
    refuse_rules(&part.session)?;
    let wide = widened_but(part, exported, unrounded)?;
    Ok(wide.map_or_else(|| Model::new(part.model.clone(), exported), |wide| Model::encode(&wide)))
}

/// Rules that are not followed here are refused, not left out. Errors: BadOption.
fn refuse_rules(session: &SessionSpec) -> Result<(), RuntimeError> {
    match session.runtimes.is_empty() {
        true => Ok(()),
        false => Err(RuntimeError::BadOption {
            name: "runtimes".to_owned(),
            reason: "a part that is divided among runtimes is no one model of ONNX Runtime's".to_owned(),
        }),
    }
}

/// The part's model after the precision pass; None where its providers, or the pass, leave it as it is. Values that
/// `keep_float32` fits are not rounded to half precision. Errors: BadModel; BadOption for rules on other providers than
/// the CPU's.
pub fn widened(part: &PartSpec, exported: &ModelProto) -> Result<Option<ModelProto>, RuntimeError> {
    widened_but(part, exported, &kept(exported, &part.session.keep_float32, &part.described)?)
}

fn widened_but(
    part: &PartSpec,
    exported: &ModelProto,
    unrounded: &HashSet<ValueName>,
) -> Result<Option<ModelProto>, RuntimeError> {
    let SessionSpec { keep_float32, optimization, .. } = &part.session;
    if !part.session.cpu_only() {
        if keep_float32.is_empty() {
            return Ok(None);
        }
        let providers = part.session.providers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(RuntimeError::BadOption {
            name: "precision_rules".to_owned(),
            reason: format!("they are followed on the CPU provider only, got {providers}; leave them out"),
        });
    }
    let wide = onnx::widen_but(exported, &part.named_values, unrounded, attend(*optimization));
    match wide {
        Ok(wide) => Ok(wide.map(|wide| wide.model)),
        Err(error) if onnx::mentions(exported, DType::BF16) || !keep_float32.is_empty() => Err(error.into()),
        Err(error) => {
            // Of float16 the runtime has kernels, or makes do with float32's: only roundings between its nodes are lost.
            tracing::warn!(part = part.part, %error, "float16 runs as ONNX Runtime runs it");
            Ok(None)
        }
    }
}

/// Whether there are kernels for calls of attention.
pub fn attend(optimization: Optimization) -> Attend {
    match optimization {
        Optimization::Disable => Attend::InPlainNodes,
        _ => Attend::AsCalls,
    }
}

/// See [`onnx::fitting_values`]. Errors: BadModel.
pub fn kept<S: AsRef<str>>(
    exported: &ModelProto,
    patterns: &[S],
    described: &Descriptions,
) -> Result<HashSet<ValueName>, RuntimeError> {
    Ok(onnx::fitting_values(exported, patterns, described)?)
}
