//! One function a request: what it needs, what it changes, what it answers. No transport.
//!
//! Legal states: a client has nothing; it may attach segments, register graphs and open a dump at any time; lanes,
//! parts and observed runs need a lease. Handles and open lanes belong to the lease and go with it. Requests that take
//! long ([`takes_long`]) come one at a time; the others also while one of those is served.

mod dumps;
pub mod nodes;
mod release;

use std::cell::Cell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::ids::{GraphId, SegmentId};
use crate::base::limits;
use crate::base::sync::lock;
use crate::compare::{self, Tolerance};
use crate::daemon::client::{Client, Part, State};
use crate::daemon::errors::{client as client_error, fault};
use crate::daemon::executors::Executor;
use crate::daemon::ledger::Held;
use crate::daemon::shared::Daemon;
use crate::daemon::status::StepRecord;
use crate::daemon::verdicts;
use crate::dump;
use crate::link::message::{LinkReply, LinkRequest};
use crate::observe::call::{DumpAt, ObservedCall};
use crate::protocol::control::*;
use crate::protocol::message::{ErrorCode, RunStats, WireError};
use crate::shm::{Lanes, Segment};
use crate::tensor::CallRecord;

/// Answers one client's requests.
pub struct Handler<'a> {
    /// Everything shared.
    pub daemon: &'a Daemon,
    /// Who asks.
    pub client: &'a Client,
    /// What the request, its own bytes and decoded, counts for, until its answer; who keeps them takes it.
    pub body: Cell<Option<Held>>,
}

pub(super) type Answer = Result<Reply, WireError>;

/// Whether a request may wait for a disk or a runtime, or compute: it is then served one at a time, in the order of
/// coming. The others are answered at once, also while such a one is served.
pub fn takes_long(request: &Request) -> bool {
    match request {
        Request::Hello(_)
        | Request::AttachSegment { .. }
        | Request::DetachSegment(_)
        | Request::OpenLane(_)
        | Request::ReportEager { .. }
        | Request::Release(_)
        | Request::GetStatus
        | Request::Stop { .. } => false,
        Request::LeaseExecutor(_)
        | Request::RegisterGraph(_)
        | Request::PreparePart(_)
        | Request::OpenDump(_)
        | Request::CloseDump
        | Request::FlushDump
        | Request::RunObserved(_)
        | Request::CompareTensors { .. }
        | Request::CompareNodes(_)
        | Request::SettleNode(_)
        | Request::FinishNodes(_)
        | Request::GetPlan(_)
        | Request::PutPlan { .. } => true,
    }
}

impl Handler<'_> {
    /// The reply to a request; `fd` came with it. Errors: what the client is told; nothing has changed then.
    pub fn handle(&self, request: Request, fd: Option<OwnedFd>) -> Answer {
        if fd.is_some() && !matches!(request, Request::AttachSegment { .. }) {
            let why = format!("{} came with a descriptor; send one with AttachSegment only", request.name());
            return Err(client_error(ErrorCode::BadMessage, why));
        }
        match request {
            Request::Hello(_) => Err(client_error(ErrorCode::BadState, "Hello: answered already; send it once")),
            Request::AttachSegment { segment, len_bytes, lanes } => self.attach(segment, len_bytes, lanes, fd),
            Request::DetachSegment(segment) => self.detach(segment),
            Request::LeaseExecutor(spec) => self.lease(&spec),
            Request::OpenLane(lane) => self.open_lane(lane),
            Request::RegisterGraph(graph) => self.register(*graph),
            Request::PreparePart(part) => self.prepare(*part),
            Request::OpenDump(open) => self.open_dump(open),
            Request::CloseDump => self.close_dump(),
            Request::FlushDump => self.flush_dump(),
            Request::RunObserved(run) => self.run_observed(&run),
            Request::CompareTensors { pairs, tolerance } => self.compare(pairs, tolerance),
            Request::ReportEager { graph, eager_nodes } => self.report_eager(graph, eager_nodes),
            Request::CompareNodes(compare) => self.compare_nodes(&compare),
            Request::SettleNode(settle) => self.settle_node(&settle),
            Request::FinishNodes(finish) => self.finish_nodes(finish),
            Request::GetPlan(graph) => self.get_plan(graph),
            Request::PutPlan { graph, plan } => self.put_plan(graph, &plan),
            Request::Release(release) => self.release(&release),
            Request::GetStatus => Ok(Reply::Status(self.daemon.status_json())),
            Request::Stop { force } => self.stop(force),
        }
    }

    fn attach(&self, id: SegmentId, len_bytes: u64, lanes: bool, fd: Option<OwnedFd>) -> Answer {
        let bad = |why: String| client_error(ErrorCode::BadSegment, format!("segment {}: {why}", id.0));
        let fd =
            fd.ok_or_else(|| bad("no descriptor came with AttachSegment; send the memfd with the frame".into()))?;
        if len_bytes > limits::SEGMENT_BYTES {
            let why = format!("segment {}: {len_bytes} bytes: expected at most {}", id.0, limits::SEGMENT_BYTES);
            return Err(client_error(ErrorCode::Limit, why));
        }
        let held = [
            self.client.segments.hold("segment", 1)?,
            self.client.segment_bytes.hold("segment", usize::try_from(len_bytes).unwrap_or(usize::MAX))?,
        ];
        let for_executor = fd.try_clone().map_err(|error| fault(ErrorCode::Internal, error.to_string()))?;
        let segment = Segment::map(id, fd, len_bytes)?;
        let _in_turn = lock(&self.client.showing);
        let executor = {
            let mut state = self.client.state();
            let lanes_id = state.lanes.as_ref().map(|lanes| lanes.segment().id());
            if lanes_id == Some(id) {
                return Err(bad("attached already; choose another id".into()));
            }
            if lanes {
                attach_lanes(&mut state, segment)?;
            } else {
                segment.apart_from(state.lanes.iter().map(|lanes| lanes.segment()))?;
                state.segments.attach(segment)?;
            }
            state.segments_held.insert(id, held);
            state.executor.clone()
        };
        if let Some(executor) = executor {
            let attach = LinkRequest::Attach { segment: id, len_bytes, lanes };
            // Of a dead executor the next lease attaches all segments anew.
            match self.ask_quickly(&executor, ("AttachSegment", &attach), Some(for_executor.as_fd())) {
                Err(error) if !executor.is_gone() => {
                    self.forget(id, lanes);
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(Reply::Done)
    }

    /// Asks the client's executor, for as long as it takes: on the thread of what takes long.
    pub(super) fn ask(&self, executor: &Executor, request: &LinkRequest) -> Result<LinkReply, WireError> {
        executor.ask(self.client.id, request)
    }

    /// Asks the client's executor what it answers at once, while the client is there.
    pub(super) fn ask_quickly(
        &self,
        executor: &Executor,
        asked: (&str, &LinkRequest),
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<LinkReply, WireError> {
        executor.ask_quickly(self.client.id, asked, fd, &|| !self.client.transport.peer_left())
    }

    fn forget(&self, id: SegmentId, lanes: bool) {
        let mut state = self.client.state();
        if lanes {
            state.lanes = None;
        } else {
            // It was attached a moment ago.
            let _ = state.segments.detach(id);
        }
        state.segments_held.remove(&id);
    }

    fn detach(&self, id: SegmentId) -> Answer {
        let executor = {
            let mut state = self.client.state();
            if state.lanes.as_ref().is_some_and(|lanes| lanes.segment().id() == id) {
                let why = format!("segment {}: lanes stay attached until the connection ends", id.0);
                return Err(client_error(ErrorCode::BadState, why));
            }
            state.segments.detach(id)?;
            state.segments_held.remove(&id);
            state.executor.clone()
        };
        if let Some(executor) = executor.filter(|executor| !executor.is_gone()) {
            self.ask_quickly(&executor, ("DetachSegment", &LinkRequest::Detach { segment: id }), None)?;
        }
        Ok(Reply::Done)
    }

    fn lease(&self, spec: &LeaseSpec) -> Answer {
        let held = self.client.state().executor.clone();
        if let Some(held) = held {
            if !held.is_gone() {
                let why = format!("executor {} is leased already; one connection holds one executor", held.id.0);
                return Err(client_error(ErrorCode::BadState, why));
            }
            // Its post-mortem reads this client's calls: it must be over before the next executor serves them.
            held.lost();
            self.client.state().end_lease();
        }
        let (executor, warm) = self.daemon.pool.lease(spec, self.client.id)?;
        if let Err(error) = self.take(&executor) {
            self.daemon.pool.give_back(&executor);
            return Err(error);
        }
        Ok(Reply::Leased(Leased {
            executor: executor.id,
            pid: executor.pid,
            warm,
            onnxruntime_version: executor.onnxruntime_version.clone(),
            log: executor.log.display().to_string(),
        }))
    }

    /// Shows the client's segments to its new executor. Errors: the executor's; BadState when the client left meanwhile.
    fn take(&self, executor: &Arc<Executor>) -> Result<(), WireError> {
        let _in_turn = lock(&self.client.showing);
        self.hand_segments(executor)?;
        let mut state = self.client.state();
        if state.gone {
            return Err(client_error(ErrorCode::BadState, "the client has left"));
        }
        state.executor = Some(Arc::clone(executor));
        Ok(())
    }

    fn hand_segments(&self, executor: &Executor) -> Result<(), WireError> {
        let mut segments = Vec::new();
        {
            let state = self.client.state();
            let out_of_fds = |error: std::io::Error| fault(ErrorCode::Internal, error.to_string());
            if let Some(lanes) = &state.lanes {
                let segment = lanes.segment();
                segments.push((segment.id(), segment.len_bytes(), true, segment.try_clone_fd().map_err(out_of_fds)?));
            }
            for segment in state.segments.iter() {
                segments.push((segment.id(), segment.len_bytes(), false, segment.try_clone_fd().map_err(out_of_fds)?));
            }
        }
        for (segment, len_bytes, lanes, fd) in segments {
            let attach = LinkRequest::Attach { segment, len_bytes, lanes };
            self.ask_quickly(executor, ("a segment", &attach), Some(fd.as_fd()))?;
        }
        Ok(())
    }

    pub(super) fn leased(&self, what: &str) -> Result<Arc<Executor>, WireError> {
        let executor = self.client.state().executor.clone();
        executor
            .ok_or_else(|| client_error(ErrorCode::BadState, format!("{what}: no executor; send LeaseExecutor first")))
    }

    fn open_lane(&self, lane: u32) -> Answer {
        let executor = self.leased("OpenLane")?;
        {
            let mut state = self.client.state();
            let n_lanes = state.lanes.as_ref().map(|lanes| lanes.n_lanes());
            let n_lanes = n_lanes.ok_or_else(|| {
                client_error(ErrorCode::BadState, "OpenLane: no lanes segment; attach one of kind lanes first")
            })?;
            if lane >= n_lanes.min(limits::LANES) {
                let why = format!("lane {lane}: expected below {}", n_lanes.min(limits::LANES));
                return Err(client_error(ErrorCode::Limit, why));
            }
            state.open_lanes.insert(lane);
        }
        self.ask_quickly(&executor, ("OpenLane", &LinkRequest::OpenLane { lane }), None)?;
        Ok(Reply::Done)
    }

    fn register(&self, graph: RegisterGraph) -> Answer {
        let id = graph.graph;
        let again = self.client.state().known(id).is_ok_and(|known| known.name == graph.name);
        let mut before = None;
        if !again {
            let held = self.hold(format_args!("texts of graph {}", graph.name), graph.kept_bytes())?;
            before = self.client.state().register(graph, held)?;
        }
        if let Some(run) = self.run() {
            self.dump_known(&run, id).inspect_err(|_| {
                if !again {
                    self.client.state().unregister(id, before);
                }
            })?;
        }
        let known = self.daemon.saw_graph(id);
        Ok(Reply::Registered { known })
    }

    /// Counts bytes that are kept of a request, in the place of the request's own.
    fn hold(&self, what: std::fmt::Arguments<'_>, len_bytes: usize) -> Result<Held, WireError> {
        drop(self.body.take());
        self.client.memory.hold(&what.to_string(), len_bytes)
    }

    fn prepare(&self, prepare: PreparePart) -> Answer {
        let executor = self.leased("PreparePart")?;
        let part = Arc::new(Part::new(prepare, Vec::new(), Vec::new(), None));
        let name = self.may_prepare(&part)?;
        let what = format_args!("model of graph {name}, part {}", part.spec.part.part).to_string();
        let held = self.hold(format_args!("{what}"), part.kept_bytes())?;
        let dumped = match self.run() {
            Some(run) => Some((self.dump_part(&run, &part)?, run)),
            None => None,
        };
        self.client.state().preparing = Some(Arc::clone(&part));
        if let Some((folder, run)) = dumped.as_ref().filter(|(folder, _)| folder.new) {
            self.dump_precision(&executor, run, folder, &part);
        }
        let reply = self.ask(&executor, &LinkRequest::Prepare(part.spec.part.clone()));
        self.client.state().preparing = None;
        let prepared = match reply {
            Ok(LinkReply::Prepared(prepared)) => Ok(prepared),
            Ok(other) => Err(unexpected("Prepare", &other)),
            // The executor knows the hash only.
            Err(error) => Err(WireError { graph: name, ..error }),
        };
        // Another model may come in this one's place.
        let prepared = prepared.inspect_err(|_| self.forget_dumped(&part))?;
        if let Some((folder, run)) = dumped.filter(|(folder, _)| folder.new) {
            self.dump_optimized(&executor, &run, &folder, &part);
        }
        let (inputs, outputs) = (prepared.inputs.clone(), prepared.outputs.clone());
        let part = Part::new(part.spec.clone(), inputs, outputs, Some(held));
        self.client.state().parts.insert(prepared.handle, Arc::new(part));
        Ok(Reply::Prepared(prepared))
    }

    /// The name of the part's graph. Errors: UnknownGraph, Quarantined, Limit.
    fn may_prepare(&self, part: &Part) -> Result<String, WireError> {
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        let state = self.client.state();
        let name = state.known(graph)?.name.clone();
        self.daemon.quarantine.check(graph, index)?;
        if state.parts.len() >= limits::PARTS {
            let why = format!(
                "{} parts are prepared already; drop compiled functions (torch._dynamo.reset())",
                limits::PARTS
            );
            return Err(client_error(ErrorCode::Limit, why));
        }
        Ok(name)
    }

    fn run_observed(&self, run: &RunObserved) -> Answer {
        let executor = self.leased("RunObserved")?;
        let tolerance = run.tolerance.map(tolerance);
        let (part, name) = {
            let state = self.client.state();
            (state.part(run.record.handle, (run.graph, run.part))?, state.known(run.graph)?.name.clone())
        };
        let dump = if run.dump {
            let open = self.open_run("RunObserved.dump")?;
            let folder = self.dump_part(&open, &part)?;
            if folder.new {
                self.dump_passes(&executor, &open, &folder, &part);
            }
            Some((open, folder.name))
        } else {
            None
        };
        let observed = Observation::new(run, &part, dump.as_ref(), tolerance.as_ref());
        let lease = observed.call().lease(&self.client.state().segments)?;
        let copied = dump.as_ref().map(|(open, _)| self.hold_for_dump(open, copied_bytes(run))).transpose()?;
        self.client.state().observing = Some(run.record.clone());
        let outcome = observed.call().run(&lease, |record| self.run_on(&executor, record));
        self.client.state().observing = None;
        if let (Some((open, _)), Some(copied)) = (&dump, copied) {
            open.keep_until_written(copied);
        }
        let outcome = outcome.map_err(|error| {
            let mut error = WireError::from(error);
            error.graph.clone_from(&name);
            error
        })?;
        self.daemon.quarantine.survived(run.graph, run.part);
        let verdicts = outcome.verdicts.as_deref().map(verdicts::summaries);
        self.daemon.last_steps.add(StepRecord::new(self.client.id, &name, run, &outcome));
        Ok(Reply::Observed(Observed {
            run_us: outcome.stats.run_ns / 1000,
            verdicts,
            dump: outcome.dump.map(|dump| dump.display().to_string()).unwrap_or_default(),
        }))
    }

    fn run_on(&self, executor: &Executor, record: &CallRecord) -> Result<RunStats, WireError> {
        match self.ask(executor, &LinkRequest::Run(record.clone()))? {
            LinkReply::Ran(stats) => Ok(stats),
            other => Err(unexpected("Run", &other)),
        }
    }

    fn compare(&self, pairs: Vec<(String, PairToCompare)>, terms: Option<ToleranceTerms>) -> Answer {
        let judged = self.judge(pairs, terms.map(tolerance).as_ref())?;
        Ok(Reply::Comparison(verdicts::summaries(&judged)))
    }

    pub(super) fn judge(
        &self,
        pairs: Vec<(String, PairToCompare)>,
        tolerance: Option<&Tolerance>,
    ) -> Result<Vec<compare::TensorVerdict>, WireError> {
        let mut judged = Vec::with_capacity(pairs.len());
        for (name, pair) in pairs {
            self.client.is_there()?;
            judged.push(match pair {
                PairToCompare::NotCompared(reason) => compare::TensorVerdict::not_compared(&name, reason),
                PairToCompare::Pair { reference, candidate } => {
                    let lease = self.client.state().segments.lease(&[reference, candidate], &[])?;
                    let tensors = lease.inputs();
                    compare::judge(&name, tensors[0], tensors[1], tolerance)
                }
            });
        }
        Ok(judged)
    }

    fn report_eager(&self, graph: GraphId, eager_nodes: u32) -> Answer {
        self.client.state().known(graph)?;
        self.daemon.count_eager(eager_nodes);
        Ok(Reply::Done)
    }

    fn get_plan(&self, graph: GraphId) -> Answer {
        let plan = self.daemon.plan(graph);
        // Held until it is sent.
        let held = self.hold(format_args!("plan of graph {graph}"), plan.as_ref().map_or(0, bytes::Bytes::len))?;
        self.body.set(Some(held));
        Ok(Reply::Plan(plan))
    }

    /// An export counts where it is of a registered graph; what else a client keeps here was not exported.
    fn put_plan(&self, graph: GraphId, plan: &[u8]) -> Answer {
        if self.client.state().graphs.contains_key(&graph) {
            self.daemon.count_export();
        }
        // An empty one says that it holds for this process alone.
        if !plan.is_empty() {
            self.daemon.plans.put(graph, plan);
        }
        Ok(Reply::Done)
    }

    fn stop(&self, force: bool) -> Answer {
        // Who only looks, as `rust-ort status` does, loses nothing.
        let clients = self.daemon.clients();
        let others =
            clients.iter().filter(|other| other.id != self.client.id && other.state().holds_something()).count();
        if others > 0 && !force {
            let why = format!("stop: {others} other clients are connected; end them or use `rust-ort stop --force`");
            return Err(client_error(ErrorCode::BadState, why));
        }
        // The connection ends the daemon once this is sent.
        match self.daemon.end_dumps().as_slice() {
            [] => Ok(Reply::Done),
            incomplete => Err(incomplete_dumps(incomplete)),
        }
    }
}

/// What an observed run needs for as long as it lasts.
struct Observation<'a> {
    run: &'a RunObserved,
    input_names: Vec<String>,
    output_names: Vec<String>,
    dump: Option<(&'a dump::Run, &'a str)>,
    tolerance: Option<&'a Tolerance>,
}

impl<'a> Observation<'a> {
    fn new(
        run: &'a RunObserved,
        part: &Part,
        dump: Option<&'a (Arc<dump::Run>, String)>,
        tolerance: Option<&'a Tolerance>,
    ) -> Self {
        let names = |values: &[crate::protocol::message::ValueSpec]| values.iter().map(|v| v.name.clone()).collect();
        let dump = dump.map(|(open, folder)| (open.as_ref(), folder.as_str()));
        Self { run, input_names: names(&part.inputs), output_names: names(&part.outputs), dump, tolerance }
    }

    fn call(&self) -> ObservedCall<'_> {
        let RunObserved { record, part, step, references, .. } = self.run;
        ObservedCall {
            record,
            input_names: &self.input_names,
            output_names: &self.output_names,
            dump: self.dump.map(|(run, graph)| DumpAt { run, graph, part: *part, step: *step }),
            references: references.as_deref(),
            tolerance: self.tolerance,
        }
    }
}

fn attach_lanes(state: &mut State, segment: Segment) -> Result<(), WireError> {
    let id = segment.id();
    let taken = state.segments.segments().iter().any(|&(taken, _)| taken == id);
    if taken || state.lanes.is_some() {
        let why =
            format!("segment {}: its id is taken, or lanes are attached already; one lanes segment a client", id.0);
        return Err(client_error(ErrorCode::BadSegment, why));
    }
    segment.apart_from(state.segments.iter())?;
    state.lanes = Some(Lanes::map(segment)?);
    Ok(())
}

/// Bytes of a call that wait in memory for the dump's writer: inputs are written at once.
fn copied_bytes(run: &RunObserved) -> usize {
    let tensors = run.record.outputs.iter().chain(run.references.iter().flatten());
    tensors.map(|tensor| tensor.desc.len_bytes()).fold(0, usize::saturating_add)
}

fn incomplete_dumps(dumps: &[(PathBuf, usize)]) -> WireError {
    let each: Vec<String> = dumps.iter().map(|(run, n)| format!("{} ({n} files)", run.display())).collect();
    let within = limits::STOP_DUMPS.as_secs();
    let message = format!(
        "stop: not written within {within} s, see incomplete.json there: {}; the daemon ends all the same",
        each.join(", ")
    );
    let mut error = fault(ErrorCode::Dump, message);
    error.dump = dumps.first().map(|(run, _)| run.display().to_string()).unwrap_or_default();
    error
}

pub(super) fn unexpected(request: &str, reply: &LinkReply) -> WireError {
    fault(ErrorCode::Internal, format!("the executor answered {request} with {reply:?}"))
}

pub(super) fn tolerance(terms: ToleranceTerms) -> Tolerance {
    let ToleranceTerms { atol, rtol, scale, equal_nan } = terms;
    Tolerance { atol, rtol, scale, equal_nan }
}
