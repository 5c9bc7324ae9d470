//! What cannot be served any more.

use crate::cuda::CudaError;
use crate::protocol::message::{ErrorCode, WireError};

/// What a call is told when the code that served it panicked.
pub(super) fn panicked() -> WireError {
    let message = "the executor panicked in this request; run again, and please report it with the executor's log";
    WireError::fault(ErrorCode::Internal, message)
}

/// An error of CUDA's; ends the process where its context is lost: every call after it would fail, of the next client, too.
pub(super) fn unless_lost(error: CudaError) -> CudaError {
    if error.is_sticky() {
        end_now(&error.to_string());
    }
    error
}

/// Ends the process without the runtime's destructors, which may wait for threads that are inside a run.
pub(super) fn end_now(reason: &str) -> ! {
    tracing::info!(reason, "executor ends");
    std::process::abort()
}
