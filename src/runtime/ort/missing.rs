//! Sessions of a provider that lacks kernels of half precision.

use bytes::Bytes;
use prost::Message as _;

use super::options::Loaded;
use crate::onnx::{self, MissingKernels};
use crate::protocol::message::{CPU_PROVIDER, CUDA_PROVIDER, SessionSpec};
use crate::runtime::RuntimeError;

/// Makes a session, by `build`, with what its provider is known to lack (None: nothing); and again while what ONNX Runtime
/// says when it refuses one tells of another operator. Errors: those of `build`.
pub(super) fn learning<T>(
    loaded: &Loaded,
    spec: &SessionSpec,
    build: impl Fn(Option<&MissingKernels>) -> Result<T, RuntimeError>,
) -> Result<T, RuntimeError> {
    if !is_cuda(spec) || spec.disabled_passes.iter().any(|off| off == onnx::MISSING_KERNELS) {
        return build(None);
    }
    again(MissingKernels::of_cuda(&loaded.version), build)
}

fn again<T>(
    mut missing: MissingKernels,
    build: impl Fn(Option<&MissingKernels>) -> Result<T, RuntimeError>,
) -> Result<T, RuntimeError> {
    loop {
        let refusal = match build(Some(&missing)) {
            Err(RuntimeError::BadModel { reason }) => reason,
            done => return done,
        };
        let Some(operator) = missing.learn(&refusal) else { return Err(RuntimeError::BadModel { reason: refusal }) };
        tracing::warn!(operator, refusal, "refused: in half precision it is tried in float32");
    }
}

/// The model with other nodes for those that lack a kernel.
pub(super) fn fitted(bytes: Bytes, missing: &MissingKernels) -> Result<Bytes, RuntimeError> {
    let mut model = onnx::decode(bytes.clone())?;
    match onnx::fit_kernels(&mut model, missing) {
        Ok(true) => Ok(model.encode_to_vec().into()),
        Ok(false) => Ok(bytes),
        Err(error) => {
            // Where all nodes have kernels it is no loss.
            tracing::warn!(%error, "whether nodes lack kernels of half precision is not looked at");
            Ok(bytes)
        }
    }
}

/// Whether CUDA's provider is the only one beside the CPU's.
fn is_cuda(spec: &SessionSpec) -> bool {
    !spec.cpu_only() && spec.providers.iter().all(|(name, _)| name == CUDA_PROVIDER || name == CPU_PROVIDER)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Builds that are refused by these words, one after the other, and then made.
    fn built(refusals: &[&str]) -> (Result<usize, String>, usize) {
        let left = RefCell::new(refusals.iter());
        let build = |missing: Option<&MissingKernels>| {
            assert!(missing.is_some());
            match left.borrow_mut().next() {
                Some(&reason) => Err(RuntimeError::BadModel { reason: reason.to_owned() }),
                None => Ok(refusals.len()),
            }
        };
        let made = again(MissingKernels::of_cuda("1.99.0"), build).map_err(|error| error.to_string());
        (made, left.borrow().len())
    }

    #[test]
    fn a_session_is_made_again_as_long_as_its_refusals_tell_something_new() {
        let [pad, log] = ["Provider type for Pad node", "Could not find an implementation for Log(13) node"];
        assert_eq!(built(&[]), (Ok(0), 0));
        assert_eq!(built(&[pad, log]), (Ok(2), 0));
        let (made, left) = built(&[pad, pad, log]);
        assert!(made.unwrap_err().contains(pad) && left == 1);
        let (made, left) = built(&["out of memory", pad]);
        assert!(made.unwrap_err().contains("out of memory") && left == 1);
    }
}
