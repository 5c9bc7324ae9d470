//! Running a session on leased tensors: bound once and run often, or fetched once.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use ort::sys;

use super::device_memory::with_room;
use super::devices::DeviceQueue;
use super::graphs::{self, Next, Replay};
use super::raw::{Binding, RunOptions, Value, Values, check};
use super::session::OrtSession;
use crate::base::ids::DeviceUuid;
use crate::base::sync::lock;
use crate::cuda::{self, Stream};
use crate::protocol::message::{Placement, RunStats, ValueSpec};
use crate::runtime::{BoundCall, RuntimeError, Session, StopToken, Terminate};
use crate::shm::{Lease, RawTensor};
use crate::tensor::TensorBuf;

impl Session for OrtSession {
    fn inputs(&self) -> &[ValueSpec] {
        &self.inputs.specs
    }

    fn outputs(&self) -> &[ValueSpec] {
        &self.outputs.specs
    }

    fn device(&self) -> Option<DeviceUuid> {
        self.queue.as_ref().map(|queue| queue.stream.device().uuid())
    }

    fn placement(&self) -> Placement {
        self.placement.clone()
    }

    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        self.inputs.check("input", feeds.raw_inputs())?;
        fetch(self, feeds, stop)
    }

    fn bind(self: Arc<Self>, mut lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
        self.inputs.check("input", lease.raw_inputs())?;
        self.outputs.check("output", lease.raw_outputs())?;
        Ok(Box::new(OrtCall::bind(self, lease, stop)?))
    }
}

/// Options of a run, and whether it was told to end.
struct Control {
    options: RunOptions,
    /// Of runs of the call's CUDA graph.
    of_graph: OnceLock<RunOptions>,
    terminated: AtomicBool,
}

impl Control {
    /// Of runs that `stop` ends.
    fn under(stop: &StopToken, options: RunOptions) -> Arc<Self> {
        let (of_graph, terminated) = (OnceLock::new(), AtomicBool::new(false));
        let control = Arc::new(Self { options, of_graph, terminated });
        let weak: Weak<Self> = Arc::downgrade(&control);
        stop.register(weak);
        control
    }

    /// Those of runs of the call's graph, from the first one on.
    fn of_graph(&self, id: i32) -> ort::Result<&RunOptions> {
        if self.of_graph.get().is_none() {
            let _ = self.of_graph.set(RunOptions::new()?.log_warnings()?.without_waiting()?.under_graph(id)?);
        }
        let options = self.of_graph.get().expect("set above");
        fence(Ordering::SeqCst); // either this sees the end, or `terminate` these options
        if self.terminated.load(Ordering::SeqCst) {
            options.terminate();
        }
        Ok(options)
    }

    /// Why a run ended.
    fn failed(&self, error: &ort::Error) -> RuntimeError {
        match self.terminated.load(Ordering::SeqCst) {
            true => RuntimeError::Stopped,
            false => RuntimeError::run_failed(error.to_string()),
        }
    }
}

impl Terminate for Control {
    fn terminate(&self) {
        self.terminated.store(true, Ordering::SeqCst);
        self.options.terminate();
        fence(Ordering::SeqCst);
        if let Some(options) = self.of_graph.get() {
            options.terminate();
        }
    }
}

/// A session bound to leased tensors. Fields drop in this order: what points before what is pointed at.
pub(super) struct OrtCall {
    control: Arc<Control>,
    target: Target,
    session: Arc<OrtSession>,
    lease: Lease,
    /// Of a call whose tensors lie on a device, but for scalars.
    queue: Option<Arc<DeviceQueue>>,
    /// See [`RunStats`].
    host_bytes: u64,
    /// Of a call whose session has CUDA graphs, and that one thread keeps.
    replay: Option<Replay>,
}

enum Target {
    /// Bound once: on the CPU binding copies nothing, so later changes of the inputs are seen.
    Binding { binding: Binding, _values: Vec<Value> },
    /// Handed over with every run: with other providers binding copies what a node has elsewhere, a scalar of the host or
    /// a tensor of the device for a node of the CPU.
    Values { inputs: Values, outputs: Values },
}

impl OrtCall {
    pub(super) fn bind(session: Arc<OrtSession>, mut lease: Lease, stop: &StopToken) -> Result<Self, RuntimeError> {
        let failed = |error: ort::Error| RuntimeError::run_failed(error.to_string());
        let queue = session.queue.clone().filter(|_| lease.device().is_some());
        let target = Target::bind(&session, queue.as_deref(), &mut lease).map_err(failed)?;
        let options = run_options(&session).map_err(failed)?;
        let options = if queue.is_some() { options.without_waiting().map_err(failed)? } else { options };
        let of = |tensor: RawTensor<'_>| if tensor.device.is_none() { tensor.desc.len_bytes() as u64 } else { 0 };
        let on_host = lease.raw_inputs().map(of).sum::<u64>() + lease.raw_outputs().map(of).sum::<u64>();
        let host_bytes = if session.queue.is_some() { on_host } else { 0 };
        let control = Control::under(stop, options);
        Ok(Self { control, target, session, lease, queue, host_bytes, replay: None })
    }
}

impl Target {
    fn bind(session: &OrtSession, queue: Option<&DeviceQueue>, lease: &mut Lease) -> ort::Result<Self> {
        let value = |tensor: RawTensor<'_>| {
            let memory = queue.filter(|_| tensor.device.is_some()).map_or(&session.memory, |queue| &queue.memory);
            // SAFETY: the values are kept beside the lease and dropped before it, so the leased memory outlives them.
            unsafe { Value::over(memory, tensor) }
        };
        let inputs = lease.raw_inputs().map(value).collect::<ort::Result<Vec<_>>>()?;
        let outputs = lease.raw_outputs().map(value).collect::<ort::Result<Vec<_>>>()?;
        if !session.cpu_only {
            return Ok(Self::Values { inputs: inputs.into(), outputs: outputs.into() });
        }
        let mut binding = Binding::new(&session.session)?;
        for (name, value) in session.input_names.iter().zip(&inputs) {
            binding.bind_input(name, value)?;
        }
        for (name, value) in session.output_names.iter().zip(&outputs) {
            binding.bind_output(name, value)?;
        }
        Ok(Self::Binding { binding, _values: inputs.into_iter().chain(outputs).collect() })
    }
}

impl BoundCall for OrtCall {
    fn keep(&mut self) {
        let on_host = |tensor: RawTensor<'_>| tensor.device.is_none() && tensor.desc.len_bytes() > 0;
        let all_on_device =
            self.queue.is_some() && !(self.lease.raw_inputs().any(on_host) || self.lease.raw_outputs().any(on_host));
        self.replay = self.session.graphs.as_ref().map(|_| Replay::of(all_on_device));
    }

    fn run(&mut self) -> Result<RunStats, RuntimeError> {
        if self.session.writes_outputs.load(Ordering::Relaxed) { self.run_once(true) } else { self.run_watched() }
    }

    fn stream(&self) -> Option<&Stream> {
        self.queue.as_ref().map(|queue| &*queue.stream)
    }
}

/// What memory of outputs holds before a run that is watched, one after the other.
const UNTOUCHED: [u8; 2] = [0xA5, 0x5A];

impl OrtCall {
    /// A session's first run: optimizers have taken nodes away that give an output, and then nothing writes it and nothing
    /// says so. Memory that is as it was is no proof, as these may be the output's own numbers: then once more, with others.
    fn run_watched(&mut self) -> Result<RunStats, RuntimeError> {
        let mut left: Vec<usize> = (0..self.session.outputs.specs.len()).collect();
        let queue = self.queue.clone();
        let stream = queue.as_ref().map(|queue| &*queue.stream);
        for byte in UNTOUCHED {
            (0..self.session.outputs.specs.len())
                .try_for_each(|output| self.lease.fill_output(output, byte, stream))?;
            let stats = self.run_once(false)?;
            let mut untouched = Vec::new();
            for output in left {
                if self.lease.output_holds_only(output, byte, stream)? {
                    untouched.push(output);
                }
            }
            left = untouched;
            if left.is_empty() {
                self.session.writes_outputs.store(true, Ordering::Relaxed);
                return Ok(stats);
            }
        }
        Err(RuntimeError::NotWritten { output: self.session.outputs.specs[left[0]].name.clone() })
    }

    /// may_replay: the run need not compute by itself.
    fn run_once(&mut self, may_replay: bool) -> Result<RunStats, RuntimeError> {
        let start = Instant::now();
        let (queue, session) = (self.queue.clone(), Arc::clone(&self.session));
        let _in_turn = session.queue.as_ref().map(|queue| lock(&queue.turn));
        if let Some(queue) = queue.as_ref().filter(|_| cuda::on_host()) {
            queue.stream.synchronize()?; // the CPU's kernels are on no stream
        }
        let of_graph = session.graphs.as_ref().zip(self.replay.as_mut()).filter(|_| may_replay);
        let next = of_graph.map_or(Next::Plain, |(graphs, replay)| replay.next(graphs));
        let (ran, shortage) = with_room(|| match next {
            Next::Plain => self.run_plain(),
            Next::Capture => self.run_captured(),
            Next::Replay { id } => self.run_replayed(id),
        });
        shortage.map_or(ran, |shortage| Err(shortage.into()))?;
        for &(output, input) in &self.session.passed_through {
            let [source, target] = self.lease.passed_through(input, output);
            if source.len_bytes() != target.len_bytes() {
                let (source, target) = (&source.shape, &target.shape);
                return Err(RuntimeError::run_failed(format!(
                    "an output is the input {source}: its memory is {target}"
                )));
            }
            self.lease.pass_through(input, output, queue.as_ref().map(|queue| &*queue.stream))?;
        }
        // Whoever reads an output of the host's has no event to wait for.
        if let Some(queue) = &queue
            && self.lease.raw_outputs().any(|output| output.device.is_none() && output.desc.len_bytes() > 0)
        {
            queue.stream.synchronize()?;
        }
        Ok(RunStats { run_ns: start.elapsed().as_nanos() as u64, host_bytes: self.host_bytes })
    }

    fn failed(&self, error: &ort::Error) -> RuntimeError {
        self.control.failed(error).with_memory(self.stream())
    }

    /// A run as without CUDA graphs.
    fn run_plain(&mut self) -> Result<(), RuntimeError> {
        match (&self.session.graphs, &mut self.replay) {
            (Some(graphs), Some(replay)) => replay.begin_plain(graphs),
            (Some(graphs), None) => {
                graphs.begin();
            }
            (None, _) => {}
        }
        let Self { control, target, session, replay, .. } = self;
        let outcome = match target {
            Target::Binding { binding, .. } => run_binding(session, control, binding),
            Target::Values { inputs, outputs } => {
                let mut run = || beside(|| run(session, &control.options, inputs.pointers(), outputs.pointers()));
                match (&session.graphs, replay) {
                    (Some(graphs), None) => graphs.aside(run),
                    _ => run(),
                }
            }
        };
        outcome.map_err(|error| self.failed(&error))
    }

    /// Has the call captured if this thread can be alone now, else runs it as any other; so also where capturing fails.
    fn run_captured(&mut self) -> Result<(), RuntimeError> {
        let Some(alone) = cuda::alone() else { return self.run_plain() };
        let taken = self.session.graphs.as_ref().zip(self.replay.as_mut());
        let Some(id) = taken.and_then(|(graphs, replay)| replay.take(graphs)) else {
            drop(alone);
            return self.run_plain();
        };
        let Err(error) = self.run_graph(id) else {
            tracing::debug!(id, "a call is a CUDA graph from now on");
            return Ok(());
        };
        self.replay.iter_mut().for_each(Replay::fail);
        let ended = self.queue.as_ref().map(|queue| queue.stream.end_capture(&alone)).transpose();
        drop(alone);
        ended?;
        if self.control.terminated.load(Ordering::SeqCst) {
            return Err(RuntimeError::Stopped);
        }
        tracing::warn!(%error, "enable_cuda_graph: a call cannot be captured; it runs without a graph");
        self.run_plain()
    }

    /// Replays what was captured of the call: it returns when that is on the stream.
    fn run_replayed(&mut self, id: i32) -> Result<(), RuntimeError> {
        let outcome = beside(|| self.run_graph(id));
        outcome.map_err(|error| self.failed(&error)).inspect_err(|_| self.replay.iter_mut().for_each(Replay::fail))
    }

    fn run_graph(&mut self, id: i32) -> ort::Result<()> {
        match &mut self.target {
            Target::Binding { .. } => Err(ort::Error::new("a call of the CPU's provider has no CUDA graph")),
            Target::Values { inputs, outputs } => {
                run(&self.session, self.control.of_graph(id)?, inputs.pointers(), outputs.pointers())
            }
        }
    }
}

fn run_binding(session: &OrtSession, control: &Control, binding: &Binding) -> ort::Result<()> {
    // SAFETY: all handles are alive; the runtime allows concurrent runs of one session; the tensors of the binding lie in the
    // lease of the call that runs, which is its alone.
    check(unsafe { (ort::api().RunWithBinding)(session.session.ptr(), control.options.ptr(), binding.ptr()) })
}

/// A run beside others, while no graph is captured.
fn beside<R>(run: impl FnOnce() -> R) -> R {
    let _beside = cuda::beside_captures();
    run()
}

/// See [`Session::fetch_until`](crate::runtime::Session::fetch_until).
fn fetch(session: &OrtSession, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
    let failed = |error: ort::Error| RuntimeError::run_failed(error.to_string());
    let value = |tensor: RawTensor<'_>| {
        // SAFETY: the values are dropped at the end of this function, before the lease that it borrows.
        unsafe { Value::over(&session.memory, tensor) }
    };
    let mut inputs = Values::from(feeds.raw_inputs().map(value).collect::<ort::Result<Vec<_>>>().map_err(failed)?);
    let control = Control::under(stop, run_options(session).map_err(failed)?);
    let mut fetched = || {
        let mut outputs = vec![ptr::null_mut(); session.output_names.pointers().len()];
        let ran = run(session, &control.options, inputs.pointers(), &mut outputs);
        // Owned before anything can return, so that none is lost.
        (ran, outputs.into_iter().map(Value::made).collect::<Vec<_>>())
    };
    let start = Instant::now();
    let _in_turn = session.queue.as_ref().map(|queue| lock(&queue.turn));
    let ((ran, outputs), shortage) = with_room(|| match &session.graphs {
        Some(graphs) => {
            graphs.begin();
            graphs.aside(|| beside(fetched))
        }
        None if session.cpu_only => fetched(),
        None => beside(fetched),
    });
    let stats = RunStats { run_ns: start.elapsed().as_nanos() as u64, host_bytes: 0 };
    if let Some(shortage) = shortage {
        return Err(shortage.into());
    }
    ran.map_err(|error| control.failed(&error))?;
    let null = || RuntimeError::run_failed("the runtime gave no tensor for an output".to_owned());
    let copies = outputs.into_iter().map(|output| output.ok_or_else(null)?.copy());
    Ok((copies.collect::<Result<_, _>>()?, stats))
}

/// Those of every run: a session that tells who has its nodes would log each of its runs.
fn run_options(session: &OrtSession) -> ort::Result<RunOptions> {
    let options = RunOptions::new()?;
    let options = if session.cpu_only { options } else { options.log_warnings()? };
    if session.graphs.is_some() { options.under_graph(graphs::NONE) } else { Ok(options) }
}

/// One run. `outputs`: those that are not null are written in place, the runtime makes the others, on the CPU.
fn run(
    session: &OrtSession,
    options: &RunOptions,
    inputs: &mut [*mut sys::OrtValue],
    outputs: &mut [*mut sys::OrtValue],
) -> ort::Result<()> {
    let (input_names, output_names) = (session.input_names.pointers(), session.output_names.pointers());
    assert_eq!((input_names.len(), output_names.len()), (inputs.len(), outputs.len()), "bound as declared");
    // SAFETY: all handles are alive; the runtime allows concurrent runs of one session; whoever made `inputs` and
    // `outputs` holds their memory; the arrays have the lengths given.
    check(unsafe {
        (ort::api().Run)(
            session.session.ptr(),
            options.ptr(),
            input_names.as_ptr(),
            inputs.as_ptr().cast(),
            inputs.len(),
            output_names.as_ptr(),
            outputs.len(),
            outputs.as_mut_ptr(),
        )
    })
}
