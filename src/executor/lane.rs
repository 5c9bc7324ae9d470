//! The thread that serves one lane.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use super::failure::{self, panicked};
use super::order::Order;
use super::tenant::{Part, Tenant};
use crate::base::ids::{DeviceUuid, PartHandle, Work};
use crate::base::sync::lock;
use crate::cuda::{CudaError, Device, Event, Stream};
use crate::protocol::message::{LaneEventsSpec, RunStats, WireError};
use crate::runtime::{BoundCall, RuntimeError, StopToken};
use crate::shm::{Counter, ExecutorLane, Failure, RawRecord, Wake};

/// Bound calls kept for each part: a client's allocator goes round among a few blocks.
const BOUND_CALLS: usize = 4;
/// The same of calls on a device, whose outputs are torch's: its allocator goes round among more.
const BOUND_ON_DEVICE: usize = 16;

/// Serves a lane until its tenant ends.
pub(super) fn serve(mut lane: ExecutorLane, tenant: &Tenant, calls: &Calls) {
    calls.lock().generation = tenant.generation();
    while lane.next(tenant.stop.flag()) == Wake::Request {
        let mut bindings = calls.lock();
        let answer = bindings.serve(&lane, tenant);
        let is_ordered = bindings.record.slot > 0;
        drop(bindings);
        lane.set_running(false);
        if is_ordered {
            lane.expect_more();
        }
        lane.answer(&answer.map_err(|error| {
            let WireError { kind, code, message, node, .. } = error;
            Failure { kind: kind.code(), code: code.code(), message, node }
        }));
        // After the answer: what a client detached is unmapped now rather than at the next call.
        calls.lock().forget_old(tenant);
    }
}

/// What one lane has bound. Its own thread holds the lock while it serves a call.
#[derive(Default)]
pub(super) struct Calls(Mutex<Bindings>);

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Bindings> {
        lock(&self.0)
    }

    /// Orders calls on a device by these events from now on. Errors: CUDA's.
    pub(super) fn open_events(&self, spec: &LaneEventsSpec) -> Result<(), CudaError> {
        let device = Device::by_uuid(spec.device)?;
        let events = LaneEvents { ready: Event::open(&device, &spec.ready)?, done: Event::open(&device, &spec.done)? };
        self.lock().events.insert(spec.device, events);
        Ok(())
    }

    /// Lets go of what is bound, unless a call is being served: then the lane's thread does after it, since the
    /// generation has changed.
    pub(super) fn forget_idle(&self) {
        if let Ok(mut bindings) = self.0.try_lock() {
            bindings.bound.clear();
        }
    }
}

#[derive(Default)]
struct Bindings {
    generation: u64,
    /// Most recently used first.
    bound: HashMap<PartHandle, Vec<Bound>>,
    record: RawRecord,
    events: HashMap<DeviceUuid, LaneEvents>,
}

/// What orders the lane's calls on a device where numbers do not: see [`LaneEventsSpec`].
struct LaneEvents {
    ready: Event,
    done: Event,
}

struct Bound {
    record: RawRecord,
    part: Arc<Part>,
    call: Box<dyn BoundCall>,
    /// Ends its runs.
    stop: Arc<StopToken>,
}

impl Bindings {
    /// Serves the call that lies in the lane: nanoseconds inside the runtime.
    fn serve(&mut self, lane: &ExecutorLane, tenant: &Tenant) -> Result<u64, WireError> {
        self.forget_old(tenant);
        lane.read(&mut self.record).map_err(WireError::from).inspect_err(|_| count_error(tenant))?;
        tenant.counters.add(Counter::NodesInEager, self.record.eager_nodes.into());
        let (slot, number) = (self.record.slot, self.record.number);
        if slot == 0 {
            return self.run(lane, tenant, None);
        }
        let order = tenant.order(slot).inspect_err(|_| count_error(tenant))?;
        let begun = order.begin(number, tenant.stop.flag()).inspect_err(|_| count_error(tenant));
        // The client's stream waits already: whatever happens, it is told of the end.
        let outcome = begun
            .map_err(WireError::from)
            .and_then(|()| self.run(lane, tenant, Some(&order)))
            .map_err(|error| spoiled(error, &self.record, &order.stream, tenant));
        order.end(number);
        outcome
    }

    /// Runs the call of the record, and answers for a panic.
    fn run(&mut self, lane: &ExecutorLane, tenant: &Tenant, order: Option<&Order>) -> Result<u64, WireError> {
        let run = AssertUnwindSafe(|| {
            let bound = Self::bound(&mut self.bound, &self.record, tenant).inspect_err(|_| count_error(tenant))?;
            let running = tenant.running.begin(Work::Call(self.record.call), &bound.stop);
            lane.set_running(true);
            tenant.hold(&tenant.stop);
            let outcome = match order {
                Some(order) => numbered(&mut *bound.call, order),
                None => by_events(&mut *bound.call, &self.events),
            };
            tenant.count(&bound.part, &outcome);
            // From here on nobody stops it.
            drop(running);
            if bound.stop.is_stopped() {
                // Told to end once, it would end each later run.
                self.bound.remove(&self.record.handle);
            }
            Ok(outcome?.run_ns)
        });
        catch_unwind(run).unwrap_or_else(|_| {
            self.bound.clear();
            count_error(tenant);
            Err(panicked())
        })
    }

    /// The call of this record, bound before or now.
    fn bound<'a>(
        bound: &'a mut HashMap<PartHandle, Vec<Bound>>,
        record: &RawRecord,
        tenant: &Tenant,
    ) -> Result<&'a mut Bound, WireError> {
        let calls = bound.entry(record.handle).or_default();
        match calls.iter().position(|bound| bound.record.same_run(record)) {
            Some(index) => calls[..=index].rotate_right(1),
            None => {
                let parsed = record.parse()?;
                let part = tenant.part(record.handle)?;
                let lease = tenant.lease_for(&*part.session, &parsed)?;
                let stop = StopToken::under(&tenant.stop);
                let mut call = Arc::clone(&part.session).bind(lease, &stop)?;
                call.keep();
                tracing::debug!(handle = record.handle.0, "bound");
                let most = if call.stream().is_some() { BOUND_ON_DEVICE } else { BOUND_CALLS };
                calls.truncate(most - 1);
                calls.insert(0, Bound { record: record.clone(), part, call, stop });
            }
        }
        Ok(&mut calls[0])
    }

    fn forget_old(&mut self, tenant: &Tenant) {
        let generation = tenant.generation();
        if self.generation != generation {
            self.bound.clear();
            self.generation = generation;
        }
    }
}

/// Runs a call whose order numbers say, behind what the stream waits for.
fn numbered(call: &mut dyn BoundCall, order: &Order) -> Result<RunStats, RuntimeError> {
    match call.stream().map(|stream| stream.device().uuid()) {
        Some(device) if device != order.stream.device().uuid() => return Err(RuntimeError::NotOrdered { device }),
        Some(_) => {}
        // It computes on no stream.
        None => order.stream.synchronize().map_err(failure::unless_lost)?,
    }
    call.run()
}

/// An error of a call whose outputs the client's stream goes on to read: they are made what nobody takes for a result.
fn spoiled(error: WireError, record: &RawRecord, stream: &Stream, tenant: &Tenant) -> WireError {
    let spoil = || {
        let mut outputs = tenant.lease_outputs(&record.parse()?)?;
        outputs.spoil_outputs(stream).map_err(failure::unless_lost).map_err(WireError::from)
    };
    match spoil() {
        Ok(()) => error,
        Err(why) => {
            let message = format!("{}; its outputs could not be filled with NaN ({})", error.message, why.message);
            WireError { message, ..error }
        }
    }
}

/// Runs a call; one on a device behind what its tensors wait for, and others behind it.
fn by_events(call: &mut dyn BoundCall, events: &HashMap<DeviceUuid, LaneEvents>) -> Result<RunStats, RuntimeError> {
    let Some(device) = call.stream().map(|stream| stream.device().uuid()) else { return call.run() };
    let events = events.get(&device).ok_or(RuntimeError::NotOrdered { device })?;
    let on_stream = |call: &dyn BoundCall, act: &dyn Fn(&Stream) -> Result<(), CudaError>| {
        call.stream().map_or(Ok(()), |stream| act(stream).map_err(failure::unless_lost)).map_err(RuntimeError::from)
    };
    let outcome = on_stream(call, &|stream| stream.wait(&events.ready))
        .and_then(|()| call.run())
        .and_then(|stats| on_stream(call, &|stream| stream.record(&events.done)).map(|()| stats));
    // The answer says that nothing is read or written any more.
    outcome.inspect_err(|_| drop(on_stream(call, &Stream::synchronize)))
}

fn count_error(tenant: &Tenant) {
    tenant.counters.add(Counter::Errors, 1);
}
