//! Fields of any message: what a peer may write in one, and what it is told where it wrote something else.

use std::path::{Path, PathBuf};

use super::super::super::message::{ErrorCode, WireError};
use super::super::proto;
use crate::base::ids::{GraphId, SegmentId};
use crate::base::limits;
use crate::tensor::{BadLocation, CallRecord, DType, Location, TensorDesc, TensorRef};

/// Why a body is no message.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// body: {0}; the peer was built from another protos/rust_ort.proto
    Protobuf(String),
    /// {field}: missing; send it
    Missing {
        /// Its path in the schema.
        field: &'static str,
    },
    /// {field}: {why}
    Bad {
        /// Its path in the schema.
        field: &'static str,
        /// What the peer is told.
        code: ErrorCode,
        /// Expected and got.
        why: String,
    },
}

impl DecodeError {
    /// What the peer is told.
    pub fn code(&self) -> ErrorCode {
        match self {
            DecodeError::Protobuf(_) | DecodeError::Missing { .. } => ErrorCode::BadMessage,
            DecodeError::Bad { code, .. } => *code,
        }
    }
}

impl From<DecodeError> for WireError {
    fn from(error: DecodeError) -> Self {
        WireError::client(error.code(), error.to_string())
    }
}

pub type Decoded<T> = Result<T, DecodeError>;

pub(super) fn missing(field: &'static str) -> DecodeError {
    DecodeError::Missing { field }
}

pub(super) fn bad(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadMessage, why: why.into() }
}

pub(super) fn bad_option(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadOption, why: why.into() }
}

pub(super) fn bad_tensor(field: &'static str, why: impl Into<String>) -> DecodeError {
    DecodeError::Bad { field, code: ErrorCode::BadTensor, why: why.into() }
}

pub(super) fn optional(field: &'static str, reference: Option<proto::TensorRef>) -> Decoded<Option<TensorRef>> {
    reference.map(|reference| tensor_ref(field, reference)).transpose()
}

pub(super) fn required(field: &'static str, reference: Option<proto::TensorRef>) -> Decoded<TensorRef> {
    tensor_ref(field, reference.ok_or(missing(field))?)
}

pub(super) fn tensor_refs(field: &'static str, references: Vec<proto::TensorRef>) -> Decoded<Vec<TensorRef>> {
    if references.len() > CallRecord::MAX_VALUES {
        let (max, got) = (CallRecord::MAX_VALUES, references.len());
        return Err(DecodeError::Bad {
            field,
            code: ErrorCode::Limit,
            why: format!("expected at most {max} tensors, got {got}"),
        });
    }
    references.into_iter().map(|reference| tensor_ref(field, reference)).collect()
}

pub(super) fn tensor_ref(field: &'static str, reference: proto::TensorRef) -> Decoded<TensorRef> {
    let location = location(field, SegmentId(reference.segment), reference.offset)?;
    let dtype = DType::from_onnx(reference.dtype).map_err(|error| bad_tensor(field, error.to_string()))?;
    let desc = TensorDesc::new(dtype, reference.dims).map_err(|error| bad_tensor(field, error.to_string()))?;
    Ok(TensorRef { location, desc })
}

pub(super) fn segment(field: &'static str, segment: u32) -> Decoded<SegmentId> {
    Ok(location(field, SegmentId(segment), 0)?.segment())
}

pub(super) fn location(field: &'static str, segment: SegmentId, offset: u64) -> Decoded<Location> {
    Location::new(segment, offset).map_err(|error| {
        let code = match error {
            BadLocation::Segment(_) => ErrorCode::BadSegment,
            BadLocation::Offset(_) => ErrorCode::BadTensor,
        };
        DecodeError::Bad { field, code, why: error.to_string() }
    })
}

pub(super) fn graph_id(field: &'static str, text: &str) -> Decoded<GraphId> {
    text.parse().map_err(|error: crate::base::ids::BadGraphId| bad(field, error.to_string()))
}

pub(super) fn name(field: &'static str, text: String) -> Decoded<String> {
    if text.len() <= limits::NAME_BYTES {
        Ok(text)
    } else {
        Err(bad(field, format!("expected at most {} bytes, got {}", limits::NAME_BYTES, text.len())))
    }
}

/// One path component of letters, digits, `_`, `-`, `.`, `=`, `+` and spaces inside, not beginning with a dot.
pub(super) fn folder_name(field: &'static str, text: String) -> Decoded<String> {
    if is_folder_name(&text) {
        Ok(text)
    } else {
        let (most, got) = (limits::FOLDER_NAME_BYTES, clipped(&text));
        Err(bad(
            field,
            format!(
                "expected one folder name of 1 to {most} bytes (letters, digits, \"_-.=+ \", not beginning with a dot or \
                 space), got {got:?}"
            ),
        ))
    }
}

/// Whether a graph or a run may be named so.
pub fn is_folder_name(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | '+' | ' ');
    let fits = !text.is_empty() && text.len() <= limits::FOLDER_NAME_BYTES && !text.starts_with(['.', ' ']);
    fits && text.chars().all(plain)
}

pub(super) fn absolute(field: &'static str, text: String) -> Decoded<PathBuf> {
    if Path::new(&text).is_absolute() && !text.contains('\0') && text.len() <= 4095 {
        Ok(PathBuf::from(text))
    } else {
        Err(bad_option(field, format!("expected an absolute path, got {:?}", clipped(&text))))
    }
}

pub(super) fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}
