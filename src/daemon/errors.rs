//! What a client is told of errors that come from further down and know nothing of clients. Those of shared memory
//! (`shm/peer_errors.rs`) and of a runtime (`runtime/error.rs`) have their kinds and codes already.

use crate::dump::DumpError;
use crate::observe::call::CallError;
use crate::observe::nodes::NodesError;
use crate::protocol::frame::FrameError;
use crate::protocol::message::{ErrorCode, ErrorKind, WireError};

use crate::link::transport::TransportError;

impl From<DumpError> for WireError {
    fn from(error: DumpError) -> Self {
        let kind = if matches!(error, DumpError::Io { .. }) { ErrorKind::Fault } else { ErrorKind::Client };
        WireError::new(kind, ErrorCode::Dump, error.to_string())
    }
}

impl From<CallError<WireError>> for WireError {
    fn from(error: CallError<WireError>) -> Self {
        match error {
            CallError::Memory(error) => error.into(),
            CallError::Dump(error) => error.into(),
            CallError::Run { mut error, dump } => {
                if error.dump.is_empty() {
                    error.dump = dump.map(|dump| dump.display().to_string()).unwrap_or_default();
                }
                error
            }
            CallError::Count { .. } => WireError::client(ErrorCode::BadTensor, error.to_string()),
        }
    }
}

impl From<NodesError> for WireError {
    fn from(error: NodesError) -> Self {
        let message = error.to_string();
        match error {
            NodesError::Memory(error) => error.into(),
            NodesError::Lost(error) | NodesError::Device(error) => error,
            NodesError::Unknown { .. } | NodesError::Twice { .. } => WireError::client(ErrorCode::BadMessage, message),
            NodesError::Unlike { .. } => WireError::client(ErrorCode::BadTensor, message),
        }
    }
}

/// What the peer is told before the connection ends; None when nobody listens any more.
pub fn last_word(error: &TransportError) -> Option<WireError> {
    let code = match error {
        TransportError::Closed | TransportError::Io(_) => return None,
        TransportError::Frame(FrameError::Version { .. }) => ErrorCode::ProtocolVersion,
        TransportError::Frame(FrameError::Length { .. }) => ErrorCode::Limit,
        TransportError::NoThread(_) => {
            return Some(WireError::fault(ErrorCode::Limit, error.to_string()));
        }
        TransportError::Frame(_) | TransportError::Descriptors(_) => ErrorCode::BadFrame,
        TransportError::Handshake | TransportError::Stalled => ErrorCode::BadState,
    };
    Some(WireError::client(code, error.to_string()))
}
