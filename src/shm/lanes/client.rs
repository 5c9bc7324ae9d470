//! The client's end of a lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::executor::Failure;
use super::memory::{
    ERROR_AREA_LEN, ERROR_KIND, ERROR_LEN, LaneError, Lanes, NODE_LEN, Place, RECORD, REPLY, REQUEST, RUN_NS, RUNNING,
    STATUS,
};
use crate::shm::record::{RECORD_HEAD_LEN, RawRecord, RecordError, RecordHead};
use crate::shm::wait::SPIN;
use crate::tensor::CallRecord;

/// Between two looks at whether anybody is there to answer.
const TURN: Duration = Duration::from_millis(100);

/// What the executor answered: nanoseconds inside the runtime, or the error.
pub type Answer = Result<u64, Failure>;

impl Lanes {
    /// The client's end of a lane: one call at a time. Errors: Absent.
    pub fn client(self: &Arc<Self>, lane: u32) -> Result<ClientLane, LaneError> {
        self.place(lane).map(ClientLane::new)
    }
}

/// The client's end of a lane, used by whoever has the lane for the length of a call.
#[derive(Debug)]
pub struct ClientLane {
    place: Place,
    /// Of the newest request. What the shared word says is the executor's to spoil.
    sequence: AtomicU32,
}

impl ClientLane {
    fn new(place: Place) -> Self {
        let sequence = AtomicU32::new(place.word(REQUEST).load(Ordering::Relaxed));
        Self { place, sequence }
    }

    /// Writes the record of the next call. descriptors: None leaves those that lie there, which are as long and of as many
    /// tensors. Errors: TooLong.
    pub fn write(&self, head: &RecordHead, locations: &[u64], descriptors: Option<&[u8]>) -> Result<(), RecordError> {
        let (got, capacity) = (8 * locations.len() + head.descriptors_len as usize, self.place.body_capacity());
        if got > capacity {
            return Err(RecordError::TooLong { got, capacity });
        }
        let body = RECORD + RECORD_HEAD_LEN as u64;
        self.place.copy_in(RECORD, &head.to_bytes());
        for (at, location) in (body..).step_by(8).zip(locations) {
            self.place.copy_in(at, &location.to_le_bytes());
        }
        if let Some(descriptors) = descriptors {
            self.place.copy_in(body + 8 * locations.len() as u64, descriptors);
        }
        Ok(())
    }

    /// Hands the record that was written to the executor.
    pub fn post(&self) {
        let request = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        self.sequence.store(request, Ordering::Relaxed);
        self.place.requests().ring(request);
    }

    /// Whether no call is in flight.
    pub fn is_answered(&self) -> bool {
        self.place.word(REPLY).load(Ordering::Acquire) == self.sequence.load(Ordering::Relaxed)
    }

    /// Whether the executor is inside the runtime with the lane's call.
    pub fn is_running(&self) -> bool {
        self.place.word(RUNNING).load(Ordering::Acquire) != 0
    }

    /// Polls for the answer, for so long at most. Whether it is there.
    pub fn poll(&self, span: Duration) -> bool {
        let before = self.place.word(REPLY).load(Ordering::Acquire);
        before == self.sequence.load(Ordering::Relaxed)
            || self.place.replies().poll(before, span).is_some() && self.is_answered()
    }

    /// Waits for the answer: polls for `span`, then sleeps, and asks `give_up` before it sleeps, after a millisecond and
    /// then every 100 ms. Whether the answer is there: false when it gave up, and the call may still be in flight.
    pub fn wait(&self, span: Duration, mut give_up: impl FnMut() -> bool) -> bool {
        loop {
            let before = self.place.word(REPLY).load(Ordering::Acquire);
            if before == self.sequence.load(Ordering::Relaxed) {
                return true;
            }
            if self.place.replies().wait(before, span, Some(TURN), &mut give_up).is_none() {
                return false;
            }
        }
    }

    /// What the executor said to the newest call, which is answered.
    pub fn answer(&self) -> Answer {
        let place = &self.place;
        let load = |field| place.word(field).load(Ordering::Relaxed);
        match load(STATUS) {
            0 => Ok(place.word64(RUN_NS).load(Ordering::Relaxed)),
            code => {
                let mut area = vec![0; ERROR_AREA_LEN as usize];
                place.copy_out(place.error_area(), &mut area);
                let (message, rest) = area.split_at(area.len().min(load(ERROR_LEN) as usize));
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let node = text(&rest[..rest.len().min(load(NODE_LEN) as usize)]);
                Err(Failure { kind: load(ERROR_KIND), code, message: text(message), node })
            }
        }
    }

    /// Posts a call and waits for the answer; asks `give_up` now and then. None when it gave up. Errors: the record does
    /// not fit the lane.
    pub fn call(&self, record: &CallRecord, give_up: impl FnMut() -> bool) -> Result<Option<Answer>, RecordError> {
        let (head, body) = RawRecord::write(record)?;
        let (locations, descriptors) = body.split_at(body.len() - head.descriptors_len as usize);
        let locations: Vec<u64> = locations.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        self.write(&head, &locations, Some(descriptors))?;
        self.post();
        Ok(self.wait(SPIN, give_up).then(|| self.answer()))
    }
}
