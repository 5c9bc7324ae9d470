//! One function a request: what it needs, what it changes, what it answers. No transport.
//!
//! Legal states: a client has nothing; it may attach segments, register graphs and open a dump at any time; lanes,
//! parts and observed runs need a lease. Handles and open lanes belong to the lease and go with it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use super::client::{Client, DumpedPart, Part, State};
use super::errors::{client as client_error, fault};
use super::executor::Executor;
use super::status::StepRecord;
use super::{Daemon, limits, verdicts};
use crate::compare::{self, Tolerance};
use crate::dump;
use crate::ids::{GraphId, SegmentId};
use crate::protocol::control::*;
use crate::protocol::link::{LinkReply, LinkRequest};
use crate::protocol::message::{ErrorCode, RunStats, WireError};
use crate::shm::{Lanes, Segment};
use crate::step::{DumpAt, Step};

/// Answers one client's requests.
pub struct Handler<'a> {
    /// Everything shared.
    pub daemon: &'a Daemon,
    /// Who asks.
    pub client: &'a Client,
}

pub(super) type Answer = Result<Reply, WireError>;

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
            Request::GetPlan(graph) => Ok(Reply::Plan(self.daemon.plan(graph))),
            Request::PutPlan { graph, plan } => self.put_plan(graph, &plan),
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
        let for_executor = fd.try_clone().map_err(|error| fault(ErrorCode::Internal, error.to_string()))?;
        let segment = Segment::map(id, fd, len_bytes)?;
        let executor = {
            let mut state = self.client.state();
            if state.segments.segments().len() >= limits::SEGMENTS {
                let why = format!("{} segments are attached already; detach one first", limits::SEGMENTS);
                return Err(client_error(ErrorCode::Limit, why));
            }
            let lanes_id = state.lanes.as_ref().map(|lanes| lanes.segment().id());
            if lanes_id == Some(id) {
                return Err(bad("attached already; choose another id".into()));
            }
            if lanes {
                attach_lanes(&mut state, segment)?;
            } else {
                state.segments.attach(segment)?;
            }
            state.executor.clone()
        };
        if let Some(executor) = executor {
            let attach = LinkRequest::Attach { segment: id, len_bytes, lanes };
            // Of a dead executor the next lease attaches all segments anew.
            match executor.ask(&attach, Some(for_executor.as_fd())) {
                Err(error) if !executor.is_gone() => {
                    self.forget(id, lanes);
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(Reply::Done)
    }

    fn forget(&self, id: SegmentId, lanes: bool) {
        let mut state = self.client.state();
        if lanes {
            state.lanes = None;
        } else {
            // It was attached a moment ago.
            let _ = state.segments.detach(id);
        }
    }

    fn detach(&self, id: SegmentId) -> Answer {
        let executor = {
            let mut state = self.client.state();
            if state.lanes.as_ref().is_some_and(|lanes| lanes.segment().id() == id) {
                let why = format!("segment {}: lanes stay attached until the connection ends", id.0);
                return Err(client_error(ErrorCode::BadState, why));
            }
            state.segments.detach(id)?;
            state.executor.clone()
        };
        if let Some(executor) = executor.filter(|executor| !executor.is_gone()) {
            executor.ask(&LinkRequest::Detach { segment: id }, None)?;
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
        if let Err(error) = self.hand_segments(&executor) {
            self.daemon.pool.give_back(&executor);
            return Err(error);
        }
        self.client.state().executor = Some(Arc::clone(&executor));
        Ok(Reply::Leased(Leased {
            executor: executor.id,
            pid: executor.pid,
            warm,
            onnxruntime_version: executor.onnxruntime_version.clone(),
            log: executor.log.display().to_string(),
        }))
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
            executor.ask(&LinkRequest::Attach { segment, len_bytes, lanes }, Some(fd.as_fd()))?;
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
        executor.ask(&LinkRequest::OpenLane { lane }, None)?;
        Ok(Reply::Done)
    }

    fn register(&self, graph: RegisterGraph) -> Answer {
        let id = graph.graph;
        {
            let mut state = self.client.state();
            state.register(graph)?;
            if state.dump.is_some() {
                state.dump_graph(id)?;
            }
        }
        let known = self.daemon.saw_graph(id);
        Ok(Reply::Registered { known })
    }

    fn prepare(&self, prepare: PreparePart) -> Answer {
        let executor = self.leased("PreparePart")?;
        let (graph, index) = (prepare.part.graph, prepare.part.part);
        let part = Arc::new(Part::new(prepare, Vec::new(), Vec::new()));
        let dumped;
        let name = {
            let mut state = self.client.state();
            let name = state.known(graph)?.name.clone();
            self.daemon.quarantine.check(graph, index)?;
            if state.parts.len() >= limits::PARTS {
                return Err(client_error(ErrorCode::Limit, format!("{} parts are prepared already", limits::PARTS)));
            }
            state.keep(part.kept_bytes())?;
            dumped = match state.dump.clone() {
                Some(run) => Some((run, state.dump_part(&part)?)),
                None => None,
            };
            state.preparing = Some(Arc::clone(&part));
            name
        };
        if let Some((run, folder)) = dumped.as_ref().filter(|(_, folder)| folder.new) {
            dump_precision(&executor, run, folder, &part);
        }
        let reply = executor.ask(&LinkRequest::Prepare(part.spec.part.clone()), None);
        if let (Ok(_), Some((run, folder))) = (&reply, dumped.as_ref().filter(|(_, folder)| folder.new)) {
            dump_optimized(&executor, run, folder, &part);
        }
        let mut state = self.client.state();
        state.preparing = None;
        match reply {
            Ok(LinkReply::Prepared(prepared)) => {
                let spec = part.spec.clone();
                let (inputs, outputs) = (prepared.inputs.clone(), prepared.outputs.clone());
                state.parts.insert(prepared.handle, Arc::new(Part::new(spec, inputs, outputs)));
                Ok(Reply::Prepared(prepared))
            }
            Ok(other) => Err(unexpected("Prepare", &other)),
            Err(mut error) => {
                state.kept_bytes -= part.kept_bytes();
                // The executor knows the hash only.
                error.graph = name;
                Err(error)
            }
        }
    }

    fn open_dump(&self, open: OpenDump) -> Answer {
        let mut state = self.client.state();
        if let Some(run) = &state.dump {
            let why = format!("dump {} is open already; close it first", run.path().display());
            return Err(client_error(ErrorCode::BadState, why));
        }
        let OpenDump { folder, run, clean, calls, run_json } = open;
        let run = dump::Run::open(&dump::RunSpec { folder, run, clean, calls, run_json, keep_steps: None })?;
        let path = run.path().display().to_string();
        state.dump = Some(Arc::new(run));
        state.dumped.clear();
        Ok(Reply::DumpOpened { path })
    }

    pub(super) fn open_run(&self, what: &str) -> Result<Arc<dump::Run>, WireError> {
        let run = self.client.state().dump.clone();
        run.ok_or_else(|| client_error(ErrorCode::BadState, format!("{what}: no dump is open; send OpenDump first")))
    }

    fn close_dump(&self) -> Answer {
        let run = self.open_run("CloseDump")?;
        let report = run.flush();
        let mut state = self.client.state();
        state.dump = None;
        state.dumped.clear();
        drop(state);
        complete(&run, &report)
    }

    fn flush_dump(&self) -> Answer {
        let run = self.open_run("FlushDump")?;
        complete(&run, &run.flush())
    }

    fn run_observed(&self, run: &RunObserved) -> Answer {
        let executor = self.leased("RunObserved")?;
        let tolerance = run.tolerance.map(tolerance);
        let (lease, part, name, dump, observed);
        {
            let mut state = self.client.state();
            name = state.known(run.graph)?.name.clone();
            part = state.part(run.record.handle, (run.graph, run.part))?;
            dump = match (run.dump, state.dump.clone()) {
                (false, _) => None,
                (true, Some(open)) => {
                    let folder = state.dump_part(&part)?;
                    Some((open, folder))
                }
                (true, None) => {
                    let why = "RunObserved.dump: no dump is open; send OpenDump first";
                    return Err(client_error(ErrorCode::BadState, why));
                }
            };
            observed = Observation::new(run, &part, dump.as_ref(), tolerance.as_ref());
            lease = observed.step().lease(&state.segments)?;
            state.observing = Some(run.record.clone());
        }
        if let Some((run, folder)) = dump.as_ref().filter(|(_, folder)| folder.new) {
            dump_precision(&executor, run, folder, &part);
            dump_optimized(&executor, run, folder, &part);
        }
        let outcome = observed.step().run(&lease, |record| run_on(&executor, record));
        self.client.state().observing = None;
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
        dump: Option<&'a (Arc<dump::Run>, DumpedPart)>,
        tolerance: Option<&'a Tolerance>,
    ) -> Self {
        let names = |values: &[crate::protocol::message::ValueSpec]| values.iter().map(|v| v.name.clone()).collect();
        let dump = dump.map(|(open, folder)| (open.as_ref(), folder.name.as_str()));
        Self { run, input_names: names(&part.inputs), output_names: names(&part.outputs), dump, tolerance }
    }

    fn step(&self) -> Step<'_> {
        let RunObserved { record, part, step, references, .. } = self.run;
        Step {
            record,
            input_names: &self.input_names,
            output_names: &self.output_names,
            dump: self.dump.map(|(run, graph)| DumpAt { run, graph, part: *part, step: *step }),
            references: references.as_deref(),
            tolerance: self.tolerance,
        }
    }
}

/// Writes the part's model after the precision pass, where the pass changes it. The executor runs the pass: a model comes
/// from anywhere, and what it breaks there is one client's. What fails is logged: the session that is made of the same
/// model fails too, and tells.
fn dump_precision(executor: &Executor, run: &dump::Run, folder: &DumpedPart, part: &Part) {
    let written = match executor.ask(&LinkRequest::Widen(part.spec.part.clone()), None) {
        Ok(LinkReply::Widened(None)) => Ok(()),
        Ok(LinkReply::Widened(Some(model))) => {
            run.precision(&folder.name, part.spec.part.part, &model).map_err(WireError::from)
        }
        Ok(other) => Err(unexpected("Widen", &other)),
        Err(error) => Err(error),
    };
    if let Err(error) = written {
        let (graph, part) = (&folder.name, part.spec.part.part);
        tracing::warn!(graph, part, %error, "model after the precision pass not dumped");
    }
}

/// Writes what the runtime made of the part's model, once: a help to the reader that costs neither call nor dump when it
/// cannot be had.
fn dump_optimized(executor: &Executor, run: &dump::Run, folder: &DumpedPart, part: &Part) {
    let written = match executor.ask(&LinkRequest::Optimize(part.spec.part.clone()), None) {
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

fn run_on(executor: &Executor, record: &crate::tensor::CallRecord) -> Result<RunStats, WireError> {
    match executor.ask(&LinkRequest::Run(record.clone()), None)? {
        LinkReply::Ran(stats) => Ok(stats),
        other => Err(unexpected("Run", &other)),
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
    state.lanes = Some(Lanes::map(segment)?);
    Ok(())
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
