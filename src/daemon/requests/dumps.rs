//! A client's dump: opened, written to the end, closed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::{Answer, Connected};
use crate::base::files::Umask;
use crate::base::ids::ClientId;
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
    let OpenDump { folder, run, clean, calls, run_json, umask, answered } = open;
    // Who does not say so wants nobody else to read it.
    let umask = umask.map_or(Umask::PRIVATE, |umask| Umask(Some(umask)));
    let run = open_after_former(at, &dump::RunSpec { folder, run, clean, calls, run_json, umask })?;
    run.tell_unwritten(&answered);
    Ok(Reply::DumpOpened { path: run.path().display().to_string() })
}

/// Opens a dump; one that a former connection of the same process still writes to its end is waited for: who lost its
/// executor connects anew and carries on. Errors: Dump; BadState when the client leaves meanwhile.
fn open_after_former(at: &Connected<'_>, spec: &dump::RunSpec) -> Result<Arc<dump::Run>, WireError> {
    let deadline = Instant::now() + limits::STOP_DUMPS;
    loop {
        let before = formers(at);
        match shared_or_opened(at, spec) {
            // Who ends has it yet, who has ended, or come and ended, meanwhile had it.
            Err(DumpError::Busy { .. }) if Instant::now() < deadline && may_have_ended(&before, &formers(at)) => {
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

/// The other connections of this client's process, and whether each has been closed and has not yet ended.
fn formers(at: &Connected<'_>) -> HashMap<ClientId, bool> {
    let process = |client: &Client| (client.hello.pid, client.hello.pid_namespace);
    let former = |other: &&Arc<Client>| other.id != at.client.id && process(other) == process(at.client);
    let ends = |other: &Client| other.transport.peer_left() || other.is_there().is_err();
    at.daemon.clients().iter().filter(former).map(|other| (other.id, ends(other))).collect()
}

/// Whether one of the connections was ending after `before` was looked for.
fn may_have_ended(before: &HashMap<ClientId, bool>, after: &HashMap<ClientId, bool>) -> bool {
    before != after || after.values().any(|&ends| ends)
}

/// Closes the dump once it is written.
pub fn close(at: &Connected<'_>) -> Answer {
    let run = at.must_dump("")?.run;
    let report = run.flush();
    {
        let mut state = at.client.state();
        state.unsettled.forget();
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
