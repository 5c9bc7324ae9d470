//! The thread that serves one lane.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use super::failure::panicked;
use super::tenant::{Part, Tenant};
use crate::base::ids::PartHandle;
use crate::base::sync::lock;
use crate::protocol::message::WireError;
use crate::runtime::BoundCall;
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
        let outcome = bound.call.run();
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
                let call = Arc::clone(&part.session).bind(tenant.lease(&parsed)?, &tenant.stop)?;
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

fn count_error(tenant: &Tenant) {
    tenant.counters.add(Counter::Errors, 1);
}
