//! Serves the link.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::observing::Observing;
use super::session_cache::{Cached, Limits, Ready, SessionCache};
use super::tenant::{Part, Tenant};
use super::{failure, lane, walls};
use crate::base::ids::{SegmentId, Work};
use crate::base::limits;
use crate::base::process::{self, Process};
use crate::base::sync::lock;
use crate::cuda::{self, InUse, Stream};
use crate::link::message::{Hello, LinkReply, LinkRequest, PieceRun, Pieces, RanOnce, SOURCES, UNASKED};
use crate::link::socket::{LinkSender, Received};
use crate::onnx;
use crate::onnx::proto::ModelProto;
use crate::protocol::message::{
    DeviceSegmentSpec, Division, ErrorCode, FrozenInput, LaneEventsSpec, NodeRuntime, Optimization, PartSpec, Prepared,
    RunStats, SlotSpec, WireError,
};
use crate::runtime::ort::{OrtRuntime, ThreadPool};
use crate::runtime::{self, BoundCall, Runtime, RuntimeError, Session, StopToken, precision};
use crate::shm::{Counter, CounterPage, DeviceSegment, Lanes, Segment, cores_changed};
use crate::tensor::CallRecord;

/// Work that is queued on a device when its client goes has so long to be done.
const DRAIN: Duration = Duration::from_secs(4);

/// What is in the way of another allocation of a client is waited for so long.
const REMAP: Duration = Duration::from_secs(10);

/// Everything the process owns.
pub(super) struct Server {
    replies: Arc<Replies>,
    loaded: Option<Loaded>,
}

struct Replies {
    sender: Mutex<LinkSender<LinkReply>>,
}

/// After Hello.
struct Loaded {
    resident: Arc<Resident>,
    tenant: Arc<Tenant>,
    lanes: Option<Arc<Lanes>>,
    lane_threads: Vec<LaneThread>,
    /// Requests that are served on threads of their own.
    tasks: Vec<JoinHandle<()>>,
    /// Of the client that it serves.
    client: Option<Process>,
}

/// What outlives clients.
struct Resident {
    runtime: Box<dyn Runtime>,
    sessions: SessionCache,
    observing: Observing,
    counters: Arc<CounterPage>,
}

struct LaneThread {
    lane: u32,
    thread: JoinHandle<()>,
    calls: Arc<lane::Calls>,
    wake: Box<dyn Fn() + Send>,
}

impl Server {
    pub(super) fn new(sender: LinkSender<LinkReply>) -> Self {
        Self { replies: Arc::new(Replies { sender: Mutex::new(sender) }), loaded: None }
    }

    /// The runtime is loaded, and the process confined.
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    pub(super) fn serve(mut self, requests: Receiver<Received<LinkRequest>>) -> ExitCode {
        requests.into_iter().find_map(|received| self.answer(received)).unwrap_or(ExitCode::FAILURE)
    }

    /// Serves one request. The process's exit code when it was told to end.
    pub(super) fn answer(&mut self, Received { id, body, fd }: Received<LinkRequest>) -> Option<ExitCode> {
        if body == LinkRequest::Exit {
            self.loaded.iter_mut().for_each(Loaded::reset);
            return Some(ExitCode::SUCCESS);
        }
        if let Some(outcome) = self.handle(id, body, fd).transpose() {
            self.replies.send(id, outcome);
        }
        None
    }

    /// None when a thread of its own answers.
    fn handle(&mut self, id: u64, body: LinkRequest, fd: Option<OwnedFd>) -> Result<Option<LinkReply>, WireError> {
        if let LinkRequest::Hello(hello) = body {
            return self.hello(&hello, fd).map(Some);
        }
        let loaded = self.loaded.as_mut().ok_or_else(|| state("the first request is Hello"))?;
        match body {
            LinkRequest::Serve { pid, cpus } => {
                if let Err(error) = process::run_on(&cpus) {
                    tracing::warn!(%error, "not on the client's CPUs");
                }
                cores_changed();
                cuda::serve(pid);
                loaded.client = pid.and_then(|pid| Process::of(pid).ok());
            }
            LinkRequest::CountDeviceMemory => {
                loaded.spawn(&self.replies, id, |resident, _| {
                    resident.tell_device_memory();
                    Ok(LinkReply::Done)
                });
                return Ok(None);
            }
            LinkRequest::Attach { segment, len_bytes, lanes } => loaded.attach(segment, len_bytes, lanes, fd)?,
            LinkRequest::Detach { segment } => loaded.detach(segment)?,
            LinkRequest::OpenLane { lane } => loaded.open_lane(lane)?,
            LinkRequest::AttachDevice(spec) => loaded.attach_device(&spec)?,
            LinkRequest::OpenLaneEvents(spec) => loaded.open_lane_events(&spec)?,
            LinkRequest::OpenSlot(spec) => loaded.open_slot(&spec)?,
            LinkRequest::Release { handles } => {
                let parts = loaded.tenant.release(&handles)?;
                loaded.lane_threads.iter().for_each(|lane| lane.calls.forget_idle());
                loaded.spawn(&self.replies, id, move |resident, tenant| resident.release(parts, tenant));
                return Ok(None);
            }
            LinkRequest::Cancel(work) => {
                if loaded.tenant.running.cancel(work) {
                    loaded.watch(work, &self.replies);
                }
            }
            LinkRequest::Reset => loaded.reset(),
            LinkRequest::Prepare { request, part, frozen } => {
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    resident.prepare(request, (&part, &frozen), tenant).map(LinkReply::Prepared)
                });
                return Ok(None);
            }
            LinkRequest::Widen { work, part } => {
                loaded.spawn(&self.replies, id, move |_, tenant| {
                    let stop = StopToken::under(&tenant.stop);
                    let _running = tenant.running.begin(work, &stop);
                    stop.check()?;
                    let exported = decode(&part)?;
                    let wide = precision::widened(&part, &exported)?;
                    Ok(LinkReply::Widened(wide.map(|model| model.encode_to_vec().into())))
                });
                return Ok(None);
            }
            LinkRequest::Optimize { work, part } => {
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    let stop = StopToken::under(&tenant.stop);
                    let _running = tenant.running.begin(work, &stop);
                    stop.check()?;
                    tenant.hold_at("optimize");
                    let runnable = precision::runnable(&part, &decode(&part)?)?;
                    let optimized = stop.over_making(|| resident.runtime.optimized(&runnable, &part.session))?;
                    Ok(LinkReply::Optimized(optimized.into()))
                });
                return Ok(None);
            }
            LinkRequest::Run { record, beside } => {
                let run = move |_: &Resident, tenant: &Tenant| {
                    tenant.check_apart(&record, &beside)?;
                    observed_run(&record, tenant).map(LinkReply::Ran)
                };
                loaded.spawn(&self.replies, id, run);
                return Ok(None);
            }
            LinkRequest::CopyOut { copies, segment, len_bytes } => {
                let fd = fd.ok_or_else(|| state("CopyOut carries the segment's descriptor"))?;
                let target = Segment::map(segment, fd, len_bytes)?;
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    resident.observing.copy_out(&copies, target, tenant).map(|()| LinkReply::Done)
                });
                return Ok(None);
            }
            LinkRequest::Measure(pairs) => {
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    resident.observing.measure(&pairs, tenant).map(LinkReply::Measured)
                });
                return Ok(None);
            }
            LinkRequest::Copy(copies) => {
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    resident.observing.copy(&copies, tenant).map(|()| LinkReply::Done)
                });
                return Ok(None);
            }
            LinkRequest::Ranges(tensors) => {
                loaded.spawn(&self.replies, id, move |resident, tenant| {
                    resident.observing.ranges(&tensors, tenant).map(LinkReply::Ranged)
                });
                return Ok(None);
            }
            LinkRequest::RunPieces(pieces) => {
                loaded.spawn(&self.replies, id, move |resident, tenant| resident.run_pieces(&pieces, tenant));
                return Ok(None);
            }
            LinkRequest::Hello(_) | LinkRequest::Exit => unreachable!("served before"),
        }
        Ok(Some(LinkReply::Done))
    }

    fn hello(&mut self, hello: &Hello, fd: Option<OwnedFd>) -> Result<LinkReply, WireError> {
        let Hello { sources, library, threads, allow_spinning, niceness, libtorch, code, .. } = hello;
        if sources != SOURCES {
            let why = "executor: this program and the daemon's are not of one build; run `make build` and `make \
                       build-torch` of the same sources, then `rust-ort stop`";
            return Err(WireError::client(ErrorCode::RuntimeMissing, why));
        }
        if self.loaded.is_some() {
            return Err(state("the runtime is loaded already"));
        }
        if let Some(Err(error)) = niceness.map(process::set_niceness) {
            tracing::warn!(niceness, %error, "the client's niceness is not to be had; see the daemon's log");
        }
        let fd = fd.ok_or_else(|| state("Hello carries the counter page"))?;
        let counters = Arc::new(CounterPage::map(fd)?);
        let confined = walls::around(hello);
        let pool = ThreadPool { threads: *threads, allow_spinning: *allow_spinning };
        let mut runtime: Box<dyn Runtime> = Box::new(OrtRuntime::load_with_code(library, pool, code.clone())?);
        if *libtorch {
            runtime = runtime::with_libtorch(runtime, *threads)?;
            let torch = runtime.beside(NodeRuntime::Torch).map(|torch| torch.version().to_owned());
            tracing::info!(version = torch, "libtorch loaded");
        }
        let onnxruntime_version = runtime.version().to_owned();
        tracing::info!(library = %library.display(), version = onnxruntime_version, "onnxruntime loaded");
        let tenant = Arc::new(Tenant::new(Arc::clone(&counters)));
        let sessions = SessionCache::new(Limits::default());
        let resident = Arc::new(Resident { runtime, sessions, observing: Observing::default(), counters });
        self.loaded =
            Some(Loaded { resident, tenant, lanes: None, lane_threads: Vec::new(), tasks: Vec::new(), client: None });
        Ok(LinkReply::Ready { onnxruntime_version, confined })
    }
}

impl Replies {
    fn send(&self, id: u64, outcome: Result<LinkReply, WireError>) {
        let reply = outcome.unwrap_or_else(LinkReply::Failed);
        let mut sender = lock(&self.sender);
        if let Err(error) = sender.send(id, &reply, None) {
            failure::end_now(&error.to_string());
        }
    }
}

impl Loaded {
    fn attach(&mut self, id: SegmentId, len_bytes: u64, lanes: bool, fd: Option<OwnedFd>) -> Result<(), WireError> {
        let fd = fd.ok_or_else(|| state("Attach carries the segment's descriptor"))?;
        let segment = Segment::map(id, fd, len_bytes)?;
        if !lanes {
            segment.apart_from(self.lanes.iter().map(|lanes| lanes.segment()))?;
            return Ok(self.tenant.attach(segment)?);
        }
        self.tenant.apart(&segment)?;
        let lanes = Lanes::map(segment)?;
        if self.lanes.is_some() {
            return Err(state("a client has one lanes segment"));
        }
        self.lanes = Some(lanes);
        Ok(())
    }

    /// Maps memory of a device; where what was there before is still bound to a call that runs, when that has ended.
    fn attach_device(&self, spec: &DeviceSegmentSpec) -> Result<(), WireError> {
        let deadline = Instant::now() + REMAP;
        loop {
            match DeviceSegment::map(spec) {
                Err(error) if error.is_in_the_way() && Instant::now() < deadline => {
                    self.lane_threads.iter().for_each(|lane| lane.calls.forget_idle());
                    std::thread::sleep(Duration::from_millis(1));
                }
                mapped => return Ok(self.tenant.attach_device(mapped.map_err(failure::unless_lost)?)?),
            }
        }
    }

    fn detach(&mut self, segment: SegmentId) -> Result<(), WireError> {
        self.tenant.detach(segment)?;
        // What is bound keeps it mapped, and another allocation of the client's may be to lie there.
        self.lane_threads.iter().for_each(|lane| lane.calls.forget_idle());
        Ok(())
    }

    fn open_lane(&mut self, lane: u32) -> Result<(), WireError> {
        let lanes = self.lanes.as_ref().ok_or_else(|| state("attach the lanes segment before opening a lane"))?;
        let end = lanes.serve(lane)?;
        let (wake, tenant) = (Box::new(end.waker()), Arc::clone(&self.tenant));
        let calls = Arc::new(lane::Calls::default());
        let served = Arc::clone(&calls);
        let thread = std::thread::Builder::new()
            .name(format!("lane-{lane}"))
            .spawn(move || lane::serve(end, &tenant, &served))
            .map_err(|error| {
                WireError::fault(ErrorCode::Limit, format!("lane {lane}: {}", process::no_thread(&error)))
            })?;
        self.lane_threads.push(LaneThread { lane, thread, calls, wake });
        Ok(())
    }

    fn open_lane_events(&self, spec: &LaneEventsSpec) -> Result<(), WireError> {
        let lane = self.lane_threads.iter().find(|thread| thread.lane == spec.lane);
        let lane = lane.ok_or_else(|| state("open a lane before its events"))?;
        Ok(lane.calls.open_events(spec).map_err(failure::unless_lost)?)
    }

    fn open_slot(&self, spec: &SlotSpec) -> Result<(), WireError> {
        let lanes = self.lanes.as_ref().ok_or_else(|| state("attach the lanes segment before opening a slot"))?;
        self.tenant.orders.open(lanes, spec.slot, self.resident.runtime.stream(spec.device)?)
    }

    /// Serves a request on a thread of its own; a panic becomes an error.
    fn spawn(
        &mut self,
        replies: &Arc<Replies>,
        id: u64,
        task: impl FnOnce(&Resident, &Tenant) -> Result<LinkReply, WireError> + Send + 'static,
    ) {
        self.tasks.retain(|task| !task.is_finished());
        let (resident, tenant) = (Arc::clone(&self.resident), Arc::clone(&self.tenant));
        let answers = Arc::clone(replies);
        let started = std::thread::Builder::new().name("request".to_owned()).spawn(move || {
            let task = std::panic::AssertUnwindSafe(|| task(&resident, &tenant));
            let outcome = std::panic::catch_unwind(task).unwrap_or_else(|_| {
                tenant.counters.add(Counter::Errors, 1);
                Err(failure::panicked())
            });
            answers.send(id, outcome);
        });
        match started {
            Ok(thread) => self.tasks.push(thread),
            Err(error) => {
                let why = format!("the executor does not serve the request: {}", process::no_thread(&error));
                replies.send(id, Err(WireError::fault(ErrorCode::Limit, why)));
            }
        }
    }

    /// Tells the daemon where a cancelled work goes on all the same.
    fn watch(&self, work: Work, replies: &Arc<Replies>) {
        // Not the tenant, whose end ends sessions.
        let (running, replies) = (Arc::clone(&self.tenant.running), Arc::clone(replies));
        let watch = move || {
            if !running.ends_within(work, limits::EXECUTOR_CANCEL) {
                replies.send(UNASKED, Ok(LinkReply::GoesOn(work)));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("cancelled".to_owned()).spawn(watch) {
            tracing::warn!(%error, "no thread: nobody looks whether what was cancelled ends");
        }
    }

    /// Ends everything of the client and starts anew. Returns when nothing of it runs any more.
    fn reset(&mut self) {
        self.tenant.stop.stop();
        let (client, tenant) = (self.client.take(), Arc::clone(&self.tenant));
        // In the place of a client that is dead, again and again: what its device had begun may come later. One that lives
        // writes its numbers itself.
        let release = || {
            if client.as_ref().is_some_and(Process::has_ended) {
                tenant.orders.release();
            }
        };
        for LaneThread { thread, wake, .. } in self.lane_threads.drain(..) {
            // Again and again: a wake between the thread's last look and its sleep is lost.
            while !thread.is_finished() {
                wake();
                release();
                std::thread::sleep(Duration::from_micros(200));
            }
            let _ = thread.join();
        }
        for task in self.tasks.drain(..) {
            while !task.is_finished() {
                release();
                std::thread::sleep(Duration::from_micros(200));
            }
            let _ = task.join();
        }
        // What a client's stream never reaches is waited for in vain; its memory goes with this process then.
        if !self.resident.runtime.drain(DRAIN, &release) {
            failure::end_now("work on a device failed, or waits for a client that is gone");
        }
        drop(tenant); // it holds its parts' sessions
        self.lanes = None;
        cuda::serve(None);
        self.tenant = Arc::new(Tenant::new(Arc::clone(&self.resident.counters)));
        // Those with weights of the client's, which are as large as a model.
        self.resident.drop_unwanted();
    }
}

impl Resident {
    /// A part's session; one that nobody waits for any more gets no handle.
    fn prepare(
        &self,
        request: u64,
        (part, frozen): (&PartSpec, &[FrozenInput]),
        tenant: &Tenant,
    ) -> Result<Prepared, WireError> {
        let at = |error: WireError| WireError { graph: part.graph.to_string(), ..error };
        let stop = StopToken::under(&tenant.stop);
        let _running = tenant.running.begin(Work::Request(request), &stop);
        stop.check().map_err(|error| at(error.into()))?;
        let tensors: Vec<_> = frozen.iter().map(|frozen| frozen.tensor.clone()).collect();
        let frozen: Vec<u32> = frozen.iter().map(|frozen| frozen.input).collect();
        let lease = tenant.lease_inputs(&tensors).map_err(at)?;
        let constants = lease.inputs().iter().map(|tensor| self.sessions.share(tensor.to_owned())).collect::<Vec<_>>();
        drop(lease);
        let constants = frozen.iter().copied().zip(constants).collect();
        let made = stop.over_making(|| self.sessions.get(&*self.runtime, part, constants, &stop));
        let cached = made.map_err(|error| at(error.into()))?;
        // What was made stays in the cache: who asks again finds it.
        stop.check().map_err(|error| at(error.into()))?;
        let counter = if cached.built_in.is_some() { Counter::SessionsBuilt } else { Counter::SessionHits };
        self.counters.add(counter, 1);
        self.tell_sessions();
        let Ready { session, outline, inputs, division } = cached.ready;
        let fx_nodes = outline.count_fx_nodes(&part.fx_values);
        let (inputs, outputs) = (inputs.to_vec(), session.outputs().to_vec());
        let (frozen_inputs, placement) = (frozen.len() as u32, session.placement());
        Ok(Prepared {
            handle: tenant.add(Part { session, fx_nodes, frozen }),
            built: cached.built_in.is_some(),
            fx_nodes,
            onnx_nodes: outline.n_nodes(),
            inputs,
            outputs,
            build_us: cached.built_in.map_or(0, |time| time.as_micros() as u64),
            frozen_inputs,
            division: Division::clone(&division),
            placement,
        })
    }

    /// Ends the sessions of parts that were released, where no other part has them.
    fn release(&self, parts: Vec<Arc<Part>>, tenant: &Tenant) -> Result<LinkReply, WireError> {
        let sessions: Vec<_> = parts.iter().map(|part| Arc::clone(&part.session)).collect();
        drop(parts);
        for session in sessions.into_iter().filter(|session| !tenant.uses(session)) {
            self.sessions.unwanted(session);
        }
        self.drop_unwanted();
        Ok(LinkReply::Done)
    }

    fn drop_unwanted(&self) {
        if self.sessions.drop_unwanted() {
            self.runtime.give_back();
        }
        self.tell_sessions();
    }

    fn tell_sessions(&self) {
        self.counters.set(Counter::SessionsLive, self.sessions.len() as u64);
        self.counters.set(Counter::FrozenBytes, self.sessions.constant_bytes());
        self.tell_device_memory();
    }

    fn tell_device_memory(&self) {
        self.counters.set_device_memory(InUse::now());
    }

    /// Pieces one after the other; what they leave on a device is done when this returns. Errors: those of a lease, CUDA's.
    fn run_pieces(&self, pieces: &Pieces, tenant: &Tenant) -> Result<LinkReply, WireError> {
        if !pieces.beside.is_empty() {
            let outputs: Vec<_> = pieces.runs.iter().flat_map(|run| &run.record.outputs).cloned().collect();
            tenant.lease_anywhere(&pieces.beside, &outputs)?;
        }
        let stop = StopToken::under(&tenant.stop);
        let _running = tenant.running.begin(Work::Request(pieces.request), &stop);
        // Bound until their work is done.
        let mut calls = Vec::new();
        let mut sessions: Vec<Option<PieceSession>> = vec![None; pieces.models.len()];
        let mut outcomes = Vec::with_capacity(pieces.runs.len());
        for (index, PieceRun { model, record }) in pieces.runs.iter().enumerate() {
            if stop.is_stopped() {
                break;
            }
            self.counters.set_piece(index);
            let known = sessions.get_mut(*model as usize).ok_or_else(|| state("a run of no model"))?;
            let part = &pieces.models[*model as usize];
            let outcome = match known.get_or_insert_with(|| self.session_of_piece(part, tenant, &stop)) {
                Ok((session, division)) => run_piece(session, record, tenant, &stop).map(|(stats, call)| {
                    calls.extend(call);
                    RanOnce { stats, division: division.clone() }
                }),
                Err(error) => Err(error.clone()),
            };
            outcomes.push(outcome);
        }
        for stream in calls.iter().filter_map(|call| call.stream()) {
            stream.synchronize().map_err(|error| RuntimeError::from(failure::unless_lost(error)))?;
        }
        stop.check()?;
        Ok(LinkReply::RanPieces(outcomes))
    }

    fn session_of_piece(&self, part: &PartSpec, tenant: &Tenant, stop: &StopToken) -> PieceSession {
        let on_device = part.session.device.is_some();
        // Others hold, between two runs, what a run took.
        let holds_little = part.session.optimization == Optimization::Kernels && (on_device || part.session.cpu_only());
        let part = PartSpec { session: part.session.without_cuda_graphs(), ..part.clone() };
        if !holds_little {
            self.counters.add(Counter::PiecesBuilt, 1);
            return Ok(runtime::session_with(&*self.runtime, &part, decode(&part)?, Vec::new(), stop)?);
        }
        let kept = if on_device { &tenant.pieces_on_device } else { &tenant.pieces };
        let Cached { ready: Ready { session, division, .. }, built_in } =
            kept.get(&*self.runtime, &part, Vec::new(), stop)?;
        if built_in.is_some() {
            self.counters.add(Counter::PiecesBuilt, 1);
            if on_device {
                self.tell_device_memory();
            }
        }
        Ok((session, Division::clone(&division)))
    }
}

/// A piece's session, and what rules made of its nodes.
type PieceSession = Result<(Arc<dyn Session>, Division), WireError>;

/// One piece; the call where it left work on a device.
fn run_piece(
    session: &Arc<dyn Session>,
    record: &CallRecord,
    tenant: &Tenant,
    stop: &StopToken,
) -> Result<(RunStats, Option<Box<dyn BoundCall>>), WireError> {
    let lease = tenant.lease_for(&**session, record)?;
    let mut call = Arc::clone(session).bind(lease, stop)?;
    tenant.hold(stop);
    let stats = call.run().inspect_err(|_| {
        // What it left on a stream may be going on.
        let _ = call.stream().map(Stream::synchronize);
    })?;
    tenant.counters.add(Counter::HostBytes, stats.host_bytes);
    let call = call.stream().is_some().then_some(call);
    Ok((stats, call))
}

fn observed_run(record: &CallRecord, tenant: &Tenant) -> Result<RunStats, WireError> {
    let count = |_: &WireError| tenant.counters.add(Counter::Errors, 1);
    tenant.counters.add(Counter::NodesInEager, record.eager_nodes.into());
    let part = tenant.part(record.handle).inspect_err(count)?;
    let lease = tenant.lease_for(&*part.session, &part.without_frozen(record)).inspect_err(count)?;
    let stop = StopToken::under(&tenant.stop);
    let _running = tenant.running.begin(Work::Call(record.call), &stop);
    let bound = Arc::clone(&part.session).bind(lease, &stop).map_err(WireError::from);
    let mut call = bound.inspect_err(count)?;
    tenant.hold(&tenant.stop);
    let outcome = run_to_its_end(&mut *call);
    tenant.count(&part, &outcome);
    if outcome.is_ok() {
        tenant.counters.add(Counter::ObservedRuns, 1);
    }
    Ok(outcome?)
}

/// Runs a call whose inputs are there; what it gives is there when this returns, also on a device.
fn run_to_its_end(call: &mut dyn BoundCall) -> Result<RunStats, RuntimeError> {
    let start = Instant::now();
    let outcome = call.run();
    let Some(stream) = call.stream() else { return outcome };
    let done = stream.synchronize().map_err(|error| RuntimeError::from(failure::unless_lost(error)));
    let stats = outcome?;
    done.map(|()| RunStats { run_ns: start.elapsed().as_nanos() as u64, ..stats })
}

fn state(message: &str) -> WireError {
    WireError::client(ErrorCode::BadState, message)
}

fn decode(part: &PartSpec) -> Result<ModelProto, RuntimeError> {
    Ok(onnx::decode_whole(part.model.clone())?)
}
