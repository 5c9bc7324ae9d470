//! Numbers in the header page of the lanes: they order the streams of client and executor in calls on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::{Lanes, PAGE, SLOTS};
use crate::cuda::{CudaError, Device, HostMemory, PageLocked, Stream, Value};

/// Slots of a segment of lanes: each is a pair of numbers, of one stream of the client's. Slot 0 is for trying them out.
pub const N_SLOTS: u32 = ((PAGE - SLOTS) / SLOT_LEN) as u32;
const SLOT_LEN: u64 = 8;

/// Which end of the lanes this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its streams write `ready` and wait for `done`.
    Client,
    /// Its stream waits for `ready` and writes `done`.
    Executor,
}

/// The numbers of a segment of lanes, page-locked by this process.
pub struct Numbers {
    page: Arc<PageLocked>,
    end: End,
}

impl Numbers {
    /// Page-locks them. As long as this or a slot of it lives, streams may use them; none may after that. Errors:
    /// NoStreamValues, Call.
    pub fn new(lanes: &Arc<Lanes>, end: End, device: &Arc<Device>) -> Result<Self, CudaError> {
        let memory: Arc<dyn HostMemory> = lanes.segment.clone();
        Ok(Self { page: PageLocked::new(device, memory, PAGE as usize)?, end })
    }

    /// Sees whether streams of a device can be ordered by them. Errors: NoStreamValues, Call.
    pub fn try_out(&self, device: &Arc<Device>) -> Result<(), CudaError> {
        device.offers_values()?;
        let offset = SLOTS + if self.end == End::Client { 0 } else { 4 };
        let own = self.page.value(device, offset as usize)?;
        own.try_out(device, own.get().wrapping_add(1))
    }

    /// A slot for a stream of a device. Errors: Range, Call.
    pub fn slot(&self, slot: u32, device: &Arc<Device>) -> Result<Slot, CudaError> {
        let at = (SLOTS + SLOT_LEN * u64::from(slot)) as usize;
        let [ready, done] = [self.page.value(device, at)?, self.page.value(device, at + 4)?];
        Ok(Slot { index: slot, device: device.clone(), ready, done, given: AtomicU32::new(0), last: AtomicU32::new(0) })
    }
}

/// A pair of numbers, of one stream of the client's; each call on it has the number after the last one's.
pub struct Slot {
    index: u32,
    device: Arc<Device>,
    ready: Value,
    done: Value,
    /// The newest number that was given to a call.
    given: AtomicU32,
    /// Of the newest call that a stream waits for.
    last: AtomicU32,
}

impl Slot {
    /// By which a record names it: never 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whose stream it is of.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The client: the next call's number. None is given twice: a stream may have written it for a call that failed here.
    pub fn next(&self) -> u32 {
        self.given.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The client: the call's work comes behind what is on the stream, and what comes on it now behind that work. Errors: as
    /// of [`Stream::hand_over`].
    pub fn hand_over(&self, stream: &Stream, number: u32) -> Result<(), CudaError> {
        // Known before anything waits for it: whoever lets go of what waits does so for this one, too.
        let before = self.last.swap(number, Ordering::SeqCst);
        stream.hand_over(&self.ready, &self.done, number).inspect_err(|_| self.last.store(before, Ordering::SeqCst))
    }

    /// The client: how many calls are not done yet, or were never handed over because the stream refused them.
    pub fn undone(&self) -> u32 {
        let (last, done) = (self.last.load(Ordering::SeqCst), self.done.get());
        if done.wrapping_sub(last).cast_signed() >= 0 { 0 } else { last.wrapping_sub(done) }
    }

    /// The client: whether all is done and nothing is to come of its stream either.
    pub fn is_idle(&self) -> bool {
        self.undone() == 0 && self.ready.reaches(self.last.load(Ordering::SeqCst))
    }

    /// The client: writes `done` in the place of an executor that has ended.
    pub fn release(&self) {
        self.done.raise(self.last.load(Ordering::SeqCst));
    }

    /// The executor: what comes on its stream now comes behind what the client's stream had before the call. Errors: as of
    /// [`Stream::wait_value`].
    pub fn begin(&self, stream: &Stream, number: u32) -> Result<(), CudaError> {
        self.last.store(number, Ordering::SeqCst);
        stream.wait_value(&self.ready, number)
    }

    /// The executor: whether the client's stream has come to the call.
    pub fn is_ready(&self, number: u32) -> bool {
        self.ready.reaches(number)
    }

    /// The executor: the call is done when all that is on the stream is. Errors: as of [`Stream::write_value`].
    pub fn end(&self, stream: &Stream, number: u32) -> Result<(), CudaError> {
        stream.write_value(&self.done, number)
    }

    /// The executor: the call is done, and nothing of it is on a stream.
    pub fn end_now(&self, number: u32) {
        self.done.raise(number);
    }

    /// The executor: writes `ready` in the place of a client that has ended.
    pub fn release_ready(&self) {
        self.ready.raise(self.last.load(Ordering::SeqCst));
    }
}
