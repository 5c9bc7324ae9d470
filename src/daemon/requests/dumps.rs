//! A client's dump: opened, written to the end, closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{Answer, Connected};
use crate::base::limits;
use crate::daemon::client::Client;
use crate::dump::{self, DumpError};
use crate::protocol::control::{OpenDump, Reply};
use crate::protocol::message::{ErrorCode, WireError};

/// Opens a dump; a client has one at a time.
pub fn open(at: &Connected<'_>, open: OpenDump) -> Answer {
    if let Some(dumping) = at.dumping() {
        let why = format!("dump {} is open already; close it first", dumping.run.path().display());
        return Err(WireError::client(ErrorCode::BadState, why));
    }
    let OpenDump { folder, run, clean, calls, run_json } = open;
    let run = open_after_former(at, &dump::RunSpec { folder, run, clean, calls, run_json })?;
    let path = run.path().display().to_string();
    let mut state = at.client.state();
    state.dump = Some(Arc::new(run));
    state.dumped.clear();
    Ok(Reply::DumpOpened { path })
}

/// Opens a dump; one that an earlier connection of the same process still writes to its end is waited for: who lost its
/// executor connects anew and carries on. Errors: Dump; BadState when the client leaves meanwhile.
fn open_after_former(at: &Connected<'_>, spec: &dump::RunSpec) -> Result<dump::Run, WireError> {
    let deadline = Instant::now() + limits::STOP_DUMPS;
    loop {
        // Before the attempt: what has ended since is no reason to give up.
        let waits = former_is_ending(at) && Instant::now() < deadline;
        match dump::Run::open(spec) {
            Err(DumpError::Busy { .. }) if waits => std::thread::sleep(Duration::from_millis(10)),
            opened => return Ok(opened?),
        }
        at.client.is_there()?;
    }
}

/// An earlier connection of this client's process has been closed and has not yet ended.
fn former_is_ending(at: &Connected<'_>) -> bool {
    let former = |other: &Client| other.id < at.client.id && other.hello.pid == at.client.hello.pid;
    let ends = |other: &Client| other.transport.peer_left() || other.is_there().is_err();
    at.daemon.clients().iter().any(|other| former(other) && ends(other))
}

/// Closes the dump once it is written.
pub fn close(at: &Connected<'_>) -> Answer {
    let run = at.must_dump("")?.run;
    let report = run.flush();
    {
        let mut state = at.client.state();
        state.dump = None;
        state.dumped.clear();
    }
    complete(&run, &report)
}

/// Waits until the dump is written.
pub fn flush(at: &Connected<'_>) -> Answer {
    let run = at.must_dump("")?.run;
    complete(&run, &run.flush())
}

fn complete(run: &dump::Run, report: &dump::FlushReport) -> Answer {
    if report.lost.is_empty() {
        return Ok(Reply::Done);
    }
    let (n, first) = (report.lost.len(), &report.lost[0]);
    let mut error = WireError::fault(
        ErrorCode::Dump,
        format!(
            "dump {}: {n} files could not be written, first {first}; free disk space and run again",
            run.path().display()
        ),
    );
    error.dump = run.path().display().to_string();
    Err(error)
}
