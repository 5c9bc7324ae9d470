//! The executor's end of a lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::memory::{
    ERROR_AREA_LEN, ERROR_KIND, ERROR_LEN, EXECUTOR_WAITING, LaneError, Lanes, NODE_LEN, Place, REPLY, REQUEST, RUN_NS,
    RUNNING, STATUS,
};
use crate::base::sync::lock;
use crate::shm::pace::Pace;
use crate::shm::record::{RawRecord, RecordError};
use crate::shm::wait::wake;

impl Lanes {
    /// The executor's end of a lane. A request that is there already is not served: its client was told that its executor
    /// died. Errors: [`LaneError`].
    pub fn serve(self: &Arc<Self>, lane: u32) -> Result<ExecutorLane, LaneError> {
        let place = self.place(lane)?;
        if !lock(&self.served).insert(lane) {
            return Err(LaneError::Open { lane });
        }
        let seen = place.word(REQUEST).load(Ordering::Acquire);
        place.word(RUNNING).store(0, Ordering::Relaxed);
        place.word(EXECUTOR_WAITING).store(0, Ordering::Relaxed);
        place.word(REPLY).store(seen, Ordering::Release);
        Ok(ExecutorLane { place, seen, pace: Pace::default() })
    }
}

/// What ended a wait for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// A call is there.
    Request,
    /// The stop flag is set.
    Stopped,
}

/// An error as the error area carries it; the numbers are ErrorKind and ErrorCode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// ErrorKind.
    pub kind: u32,
    /// ErrorCode, not 0.
    pub code: u32,
    /// Cut where it and the node would be longer than 4096 bytes.
    pub message: String,
    /// The node to blame; empty where it is not known.
    pub node: String,
}

/// The executor's end of a lane, owned by the one thread that serves it.
#[derive(Debug)]
pub struct ExecutorLane {
    place: Place,
    /// Newest request seen.
    seen: u32,
    /// Decides how long it polls for the next one before it sleeps.
    pace: Pace,
}

impl ExecutorLane {
    /// Waits for the next call, without limit, until `stop` is set; whoever sets it must call [`ExecutorLane::waker`]'s
    /// function until the thread is gone, since the flag may be set between the last look and the sleep.
    pub fn next(&mut self, stop: &AtomicBool) -> Wake {
        let began = Instant::now();
        match self.place.requests().wait(self.seen, self.pace.span(), None, || stop.load(Ordering::SeqCst)) {
            Some(request) => {
                self.pace.waited(began.elapsed());
                self.seen = request;
                Wake::Request
            }
            None => Wake::Stopped,
        }
    }

    /// Its calls are handed over one soon after the other, by a client that does not wait: polls longer from now on where
    /// cores are spare.
    pub fn expect_more(&mut self) {
        self.pace.expect_more();
    }

    /// Copies the record out. Errors: [`RecordError`].
    pub fn read(&self, record: &mut RawRecord) -> Result<(), RecordError> {
        self.place.read_record(record)
    }

    /// Marks the lane's call as inside the runtime, for the daemon's post-mortem.
    pub fn set_running(&self, running: bool) {
        self.place.word(RUNNING).store(running.into(), Ordering::Release);
    }

    /// Answers the newest request: nanoseconds inside the runtime, or what went wrong.
    pub fn answer(&self, outcome: &Result<u64, Failure>) {
        let place = &self.place;
        let store = |field, value| place.word(field).store(value, Ordering::Relaxed);
        match outcome {
            Ok(run_ns) => {
                place.word64(RUN_NS).store(*run_ns, Ordering::Relaxed);
                store(STATUS, 0);
            }
            Err(failure) => {
                let cut = |text: &str, len: usize| text[..text.floor_char_boundary(len)].to_owned();
                let node = cut(&failure.node, ERROR_AREA_LEN as usize / 2);
                let message = cut(&failure.message, ERROR_AREA_LEN as usize - node.len());
                place.copy_in(place.error_area(), [message.as_bytes(), node.as_bytes()].concat().as_slice());
                store(ERROR_LEN, message.len() as u32);
                store(NODE_LEN, node.len() as u32);
                store(ERROR_KIND, failure.kind);
                store(STATUS, failure.code);
            }
        }
        place.replies().ring(self.seen);
    }

    /// Makes a sleeping [`ExecutorLane::next`] look at its stop flag.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let Place { ref lanes, lane, start } = self.place;
        let place = Place { lanes: Arc::clone(lanes), lane, start };
        move || wake(place.word(REQUEST))
    }
}

impl Drop for ExecutorLane {
    fn drop(&mut self) {
        let Place { lanes, lane, .. } = &self.place;
        lock(&lanes.served).remove(lane);
    }
}
