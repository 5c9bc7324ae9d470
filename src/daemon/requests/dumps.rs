//! A client's dump. File systems may hang: nothing here holds the client's lock while it writes, so that whoever asks for
//! status or stop never waits for a disk. One thread of a client opens, fills and closes dumps, one request at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::ids::GraphId;
use crate::base::limits;
use crate::daemon::client::{Client, DumpedPart, Part};
use crate::daemon::errors::{client as client_error, fault};
use crate::daemon::executors::Executor;
use crate::daemon::ledger::Held;
use crate::daemon::requests::{Answer, Handler, unexpected};
use crate::dump::{self, DumpError};
use crate::link::message::{LinkReply, LinkRequest};
use crate::protocol::control::{OpenDump, Reply};
use crate::protocol::message::{ErrorCode, WireError};

impl Handler<'_> {
    pub(super) fn open_dump(&self, open: OpenDump) -> Answer {
        if let Some(run) = self.run() {
            let why = format!("dump {} is open already; close it first", run.path().display());
            return Err(client_error(ErrorCode::BadState, why));
        }
        let OpenDump { folder, run, clean, calls, run_json } = open;
        let run = self.open_after_former(&dump::RunSpec { folder, run, clean, calls, run_json })?;
        let path = run.path().display().to_string();
        let mut state = self.client.state();
        state.dump = Some(Arc::new(run));
        state.dumped.clear();
        Ok(Reply::DumpOpened { path })
    }

    /// Opens a dump; one that an earlier connection of the same process still writes to its end is waited for: who lost
    /// its executor connects anew and carries on. Errors: Dump; BadState when the client leaves meanwhile.
    fn open_after_former(&self, spec: &dump::RunSpec) -> Result<dump::Run, WireError> {
        let deadline = Instant::now() + limits::STOP_DUMPS;
        loop {
            // Before the attempt: what has ended since is no reason to give up.
            let waits = self.former_is_ending() && Instant::now() < deadline;
            match dump::Run::open(spec) {
                Err(DumpError::Busy { .. }) if waits => std::thread::sleep(Duration::from_millis(10)),
                opened => return Ok(opened?),
            }
            self.client.is_there()?;
        }
    }

    /// An earlier connection of this client's process has been closed and has not yet ended.
    fn former_is_ending(&self) -> bool {
        let former = |other: &Client| other.id < self.client.id && other.hello.pid == self.client.hello.pid;
        let ends = |other: &Client| other.transport.peer_left() || other.is_there().is_err();
        self.daemon.clients().iter().any(|other| former(other) && ends(other))
    }

    /// The open dump.
    pub(super) fn run(&self) -> Option<Arc<dump::Run>> {
        self.client.state().dump.clone()
    }

    /// The open dump. Errors: BadState when there is none.
    pub(super) fn open_run(&self, what: &str) -> Result<Arc<dump::Run>, WireError> {
        self.run()
            .ok_or_else(|| client_error(ErrorCode::BadState, format!("{what}: no dump is open; send OpenDump first")))
    }

    pub(super) fn close_dump(&self) -> Answer {
        let run = self.open_run("CloseDump")?;
        let report = run.flush();
        {
            let mut state = self.client.state();
            state.dump = None;
            state.dumped.clear();
        }
        complete(&run, &report)
    }

    pub(super) fn flush_dump(&self) -> Answer {
        let run = self.open_run("FlushDump")?;
        complete(&run, &run.flush())
    }

    /// Counts bytes that wait for the dump's writer, after those before them are written where there is no room. Errors:
    /// Limit.
    pub(super) fn hold_for_dump(&self, run: &dump::Run, len_bytes: usize) -> Result<Held, WireError> {
        let hold = || self.client.memory.hold("tensors on their way to a dump", len_bytes);
        hold().or_else(|_| {
            run.wait();
            hold()
        })
    }

    /// The folder of a registered graph in the open dump, written when it is not there: a dump may be opened after the
    /// graph was registered. Errors: UnknownGraph, Dump.
    pub(super) fn dump_graph(&self, run: &dump::Run, id: GraphId) -> Result<String, WireError> {
        let graph = {
            let state = self.client.state();
            if let Some((folder, _)) = state.dumped.get(&id) {
                return Ok(folder.clone());
            }
            Arc::clone(state.known(id)?)
        };
        let folder = run.graph(&graph.record())?;
        self.client.state().dumped.insert(id, (folder.clone(), Default::default()));
        Ok(folder)
    }

    /// The folder of the part's graph in the open dump; part and graph are written when they are not there. Errors:
    /// UnknownGraph, Dump; what failed is tried again the next time.
    pub(super) fn dump_part(&self, run: &dump::Run, part: &Part) -> Result<DumpedPart, WireError> {
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        let name = self.dump_graph(run, graph)?;
        if self.client.state().dumped.get(&graph).is_some_and(|(_, parts)| parts.contains(&index)) {
            return Ok(DumpedPart { name, new: false });
        }
        run.part(&name, index, &part.spec.part.model, &part.spec.provenance_json)?;
        if let Some((_, parts)) = self.client.state().dumped.get_mut(&graph) {
            parts.insert(index);
        }
        Ok(DumpedPart { name, new: true })
    }

    /// The next time the part is dumped anew.
    pub(super) fn forget_dumped(&self, part: &Part) {
        if let Some((_, parts)) = self.client.state().dumped.get_mut(&part.spec.part.graph) {
            parts.remove(&part.spec.part.part);
        }
    }

    /// Writes a graph that the open dump lacks, and those parts of it that are prepared. Errors: Dump.
    pub(super) fn dump_known(&self, run: &dump::Run, graph: GraphId) -> Result<(), WireError> {
        self.dump_graph(run, graph)?;
        let (parts, executor) = {
            let state = self.client.state();
            (state.parts_of(graph), state.executor.clone())
        };
        for part in parts {
            let folder = self.dump_part(run, &part)?;
            if let Some(executor) = executor.as_ref().filter(|_| folder.new) {
                self.dump_passes(executor, run, &folder, &part);
            }
        }
        Ok(())
    }

    /// Writes what the precision pass and the runtime's optimizer make of the part's model.
    pub(super) fn dump_passes(&self, executor: &Executor, run: &dump::Run, folder: &DumpedPart, part: &Part) {
        self.dump_precision(executor, run, folder, part);
        self.dump_optimized(executor, run, folder, part);
    }

    /// Writes the part's model after the precision pass, where the pass changes it. The executor runs the pass: a model
    /// comes from anywhere, and what it breaks there is one client's. What fails is logged: the session that is made of
    /// the same model fails too, and tells.
    pub(super) fn dump_precision(&self, executor: &Executor, run: &dump::Run, folder: &DumpedPart, part: &Part) {
        let written = match self.ask(executor, &LinkRequest::Widen(part.spec.part.clone())) {
            Ok(LinkReply::Widened(None)) => Ok(()),
            Ok(LinkReply::Widened(Some(model))) => {
                run.precision(&folder.name, part.spec.part.part, &model).map_err(WireError::from)
            }
            Ok(other) => Err(unexpected("Widen", &other)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(graph = folder.name, part = part.spec.part.part, %error, "widened model not dumped");
        }
    }

    /// Writes what the runtime made of the part's model, once: a help to the reader that costs neither call nor dump when
    /// it cannot be had.
    pub(super) fn dump_optimized(&self, executor: &Executor, run: &dump::Run, folder: &DumpedPart, part: &Part) {
        let written = match self.ask(executor, &LinkRequest::Optimize(part.spec.part.clone())) {
            Ok(LinkReply::Optimized(model)) => {
                run.optimized(&folder.name, part.spec.part.part, &model).map_err(WireError::from)
            }
            Ok(other) => Err(unexpected("Optimize", &other)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(graph = folder.name, part = part.spec.part.part, %error, "optimized model not dumped");
        }
    }
}

fn complete(run: &dump::Run, report: &dump::FlushReport) -> Answer {
    if report.lost.is_empty() {
        return Ok(Reply::Done);
    }
    let (n, first) = (report.lost.len(), &report.lost[0]);
    let mut error = fault(
        ErrorCode::Dump,
        format!(
            "dump {}: {n} files could not be written, first {first}; free disk space and run again",
            run.path().display()
        ),
    );
    error.dump = run.path().display().to_string();
    Err(error)
}
