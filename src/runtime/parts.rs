//! Sessions of parts: on ONNX Runtime, or divided among runtimes.

use std::sync::Arc;

use super::error::RuntimeError;
use super::model::Constant;
use super::stop::StopToken;
use super::traits::{Runtime, Session};
use super::{mixed, precision};
use crate::onnx;
use crate::onnx::proto::ModelProto;
use crate::protocol::message::{Division, PartSpec};

/// A session of its own for a part. Errors: as [`session_with`].
pub fn session(runtime: &dyn Runtime, part: &PartSpec) -> Result<Arc<dyn Session>, RuntimeError> {
    let exported = onnx::decode_whole(part.model.clone())?;
    Ok(session_with(runtime, part, exported, Vec::new(), &StopToken::default())?.0)
}

/// A session of its own for a part, of which some inputs are constants, and what its rules made of its nodes. `exported`:
/// the part's model. `stop` ends it between two of its steps, of which ONNX Runtime's own is one. Errors: Stopped, the runtime's, and BadModel where [`precision::runnable`] fails or the model cannot be divided,
/// NoLibtorch.
pub fn session_with(
    runtime: &dyn Runtime,
    part: &PartSpec,
    exported: ModelProto,
    constants: Vec<Constant>,
    stop: &StopToken,
) -> Result<(Arc<dyn Session>, Division), RuntimeError> {
    if !part.session.runtimes.is_empty() {
        return mixed::build(runtime, part, exported, constants, stop);
    }
    let runnable = precision::runnable(part, &exported)?;
    // What was decoded goes before the build, which takes memory of its own.
    drop(exported);
    stop.check()?;
    Ok((runtime.build_with(&runnable, &part.session, constants)?, Division::default()))
}
