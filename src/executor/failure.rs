//! What cannot be served any more.

use crate::protocol::message::{ErrorCode, WireError};

/// What a call is told when the code that served it panicked.
pub(super) fn panicked() -> WireError {
    let message = "the executor panicked in this request; run again, and please report it with the executor's log";
    WireError::fault(ErrorCode::Internal, message)
}

/// Ends the process without the runtime's destructors, which may wait for threads that are inside a run.
pub(super) fn end_now(reason: &str) -> ! {
    tracing::info!(reason, "executor ends");
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
