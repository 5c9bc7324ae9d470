//! Models to files.

use std::path::Path;

use prost::Message as _;

use super::OnnxError;
use super::proto::ModelProto;
use crate::base::files::write_whole;

/// What protobuf's C++ and Python readers accept in one message.
const PROTOBUF_LIMIT: usize = i32::MAX as usize;

/// Write the model to one file: whole or not at all. Errors: [`OnnxError::TooBig`], [`OnnxError::Io`].
pub fn save(model: &ModelProto, path: &Path) -> Result<(), OnnxError> {
    write_whole(path, 0o644, &[&encoded(model)?]).map_err(OnnxError::io(path, "write"))
}

/// The model as a file has it. Errors: [`OnnxError::TooBig`].
pub fn encoded(model: &ModelProto) -> Result<Vec<u8>, OnnxError> {
    let n_bytes = model.encoded_len();
    if n_bytes > PROTOBUF_LIMIT {
        return Err(OnnxError::TooBig { n_bytes, limit: PROTOBUF_LIMIT });
    }
    Ok(model.encode_to_vec())
}
