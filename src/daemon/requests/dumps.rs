//! A client's dump: opened, written to the end, closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{Answer, Connected};
use crate::base::limits;
use crate::daemon::client::Client;
use crate::daemon::shared::Daemon;
use crate::dump::{self, DumpError};
use crate::protocol::control::{OpenDump, Reply};
use crate::protocol::message::{ErrorCode, WireError};

/// Opens a dump; a client has one at a time. Clients of one process, whose executors differ in threads say, may have the
/// same.
pub fn open(at: &Connected<'_>, open: OpenDump) -> Answer {
    if let Some(dumping) = at.dumping() {
        let why = format!("dump {} is open already; close it first", dumping.run.path().display());
        return Err(WireError::client(ErrorCode::BadState, why));
    }
    let OpenDump { folder, run, clean, calls, run_json } = open;
    let run = open_after_former(at, &dump::RunSpec { folder, run, clean, calls, run_json })?;
    Ok(Reply::DumpOpened { path: run.path().display().to_string() })
}

/// Opens a dump; one that a former connection of the same process still writes to its end is waited for: who lost its
/// executor connects anew and carries on. Errors: Dump; BadState when the client leaves meanwhile.
fn open_after_former(at: &Connected<'_>, spec: &dump::RunSpec) -> Result<Arc<dump::Run>, WireError> {
    let deadline = Instant::now() + limits::STOP_DUMPS;
    let mut may_have_begun = true; // to end, after it was looked for
    loop {
        // Before the attempt: what has ended since is no reason to give up.
        let waits = former_is_ending(at) && Instant::now() < deadline;
        match shared_or_opened(at, spec) {
            Err(DumpError::Busy { .. }) if waits || std::mem::take(&mut may_have_begun) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return Ok(opened?),
        }
        at.client.is_there()?;
    }
}

/// The client has it on return: the dump that another client of its process has open, or one that is opened.
fn shared_or_opened(at: &Connected<'_>, spec: &dump::RunSpec) -> Result<Arc<dump::Run>, DumpError> {
    at.daemon.dumps.shared_or_opened(spec, |run| {
        let mut state = at.client.state();
        state.dump = Some(Arc::clone(run));
        state.dumped.clear();
    })
}

/// The dump of a client that has left ends once it is written, unless other clients have it.
pub fn leave(daemon: &Daemon, client: &Client) {
    let Some(run) = client.state().dump.clone() else { return };
    let others = || {
        let others = daemon.clients().into_iter().filter(|other| other.id != client.id);
        others.into_iter().any(|other| other.state().dump.as_ref().is_some_and(|others| Arc::ptr_eq(others, &run)))
    };
    if daemon.dumps.is_left_by_all(&run, others, || client.state().dump = None) {
        // Until then a daemon that ends finds it here.
        run.end_within(Duration::MAX);
        client.state().dump = None;
    }
}

/// Another connection of this client's process has been closed and has not yet ended.
fn former_is_ending(at: &Connected<'_>) -> bool {
    let former = |other: &Client| other.id != at.client.id && other.hello.pid == at.client.hello.pid;
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
