//! The thread that serves one lane.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use super::failure::{self, panicked};
use super::tenant::{Part, Tenant};
use crate::base::ids::{DeviceUuid, PartHandle};
use crate::base::sync::lock;
use crate::cuda::{CudaError, Device, Event, Stream};
use crate::protocol::message::{LaneEventsSpec, RunStats, WireError};
use crate::runtime::{BoundCall, RuntimeError};
use crate::shm::{Counter, ExecutorLane, Failure, RawRecord, Wake};

/// Bound calls kept for each part: a client's allocator goes round among a few blocks.
const BOUND_CALLS: usize = 4;

/// Serves a lane until its tenant ends.
pub(super) fn serve(mut lane: ExecutorLane, tenant: &Tenant, calls: &Calls) {
    calls.lock().generation = tenant.generation();
    while lane.next(tenant.stop.flag()) == Wake::Request {
        let served = catch_unwind(AssertUnwindSafe(|| calls.lock().serve(&lane, tenant)));
        lane.set_running(false);
        let answer = served.unwrap_or_else(|_| {
            calls.lock().bound.clear();
            count_error(tenant);
            Err(panicked())
        });
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

/// What orders the lane's calls on a device: see [`LaneEventsSpec`].
struct LaneEvents {
    ready: Event,
    done: Event,
}

struct Bound {
    record: RawRecord,
    part: Arc<Part>,
    call: Box<dyn BoundCall>,
}

impl Bindings {
    fn serve(&mut self, lane: &ExecutorLane, tenant: &Tenant) -> Result<u64, WireError> {
        self.forget_old(tenant);
        lane.read(&mut self.record).map_err(WireError::from).inspect_err(|_| count_error(tenant))?;
        tenant.counters.add(Counter::NodesInEager, self.record.eager_nodes.into());
        let bound = Self::bound(&mut self.bound, &self.record, tenant).inspect_err(|_| count_error(tenant))?;
        lane.set_running(true);
        tenant.hold();
        let outcome = ordered(&mut *bound.call, &self.events);
        tenant.count(&bound.part, &outcome);
        Ok(outcome?.run_ns)
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
                let mut call = Arc::clone(&part.session).bind(lease, &tenant.stop)?;
                call.keep();
                calls.truncate(BOUND_CALLS - 1);
                calls.insert(0, Bound { record: record.clone(), part, call });
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

/// Runs a call; one on a device behind what its tensors wait for, and others behind it.
fn ordered(call: &mut dyn BoundCall, events: &HashMap<DeviceUuid, LaneEvents>) -> Result<RunStats, RuntimeError> {
    let Some(device) = call.stream().map(|stream| stream.device().uuid()) else { return call.run() };
    let events = events.get(&device).ok_or(RuntimeError::NoEvents { device })?;
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
