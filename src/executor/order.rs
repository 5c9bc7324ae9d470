//! The order of a client's calls on devices by numbers in memory: this process's half.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use super::failure;
use crate::base::sync::{lock, read, write};
use crate::cuda::{CudaError, Stream};
use crate::protocol::message::{ErrorCode, WireError};
use crate::shm::{End, Lanes, N_SLOTS, Numbers, Slot};

/// Between two looks at a number that a stream could not be told to wait for.
const LOOK: Duration = Duration::from_micros(50);

/// One client's slots.
#[derive(Default)]
pub(super) struct Orders {
    numbers: Mutex<Option<Numbers>>,
    slots: RwLock<Vec<Arc<Order>>>,
}

impl Orders {
    /// Orders the calls that name a slot from now on. Errors: CUDA's, NoStreamValues among them; BadState for a slot that is
    /// open.
    pub(super) fn open(&self, lanes: &Arc<Lanes>, slot: u32, stream: Arc<Stream>) -> Result<(), WireError> {
        let device = stream.device();
        let refused = |code, why: &str| Err(WireError::client(code, format!("slot {slot}: {why}")));
        if !(1..N_SLOTS).contains(&slot) {
            return refused(ErrorCode::Limit, "there is none of this number");
        }
        if self.of(slot).is_some() {
            return refused(ErrorCode::BadState, "open already");
        }
        let mut numbers = lock(&self.numbers);
        let mut open = || {
            if numbers.is_none() {
                *numbers = Some(Numbers::new(lanes, End::Executor, device)?);
            }
            let numbers = numbers.as_ref().expect("made above");
            numbers.try_out(device)?;
            numbers.slot(slot, device)
        };
        let slot = open().map_err(failure::unless_lost)?;
        tracing::info!(slot = slot.index(), device = %device.uuid(), "numbers in memory order the calls of a stream");
        write(&self.slots).push(Arc::new(Order { slot, stream }));
        Ok(())
    }

    /// The order of an open slot.
    pub(super) fn of(&self, slot: u32) -> Option<Arc<Order>> {
        read(&self.slots).iter().find(|order| order.slot.index() == slot).cloned()
    }

    /// Writes what streams of a client that has ended would have written.
    pub(super) fn release(&self) {
        read(&self.slots).iter().for_each(|order| order.slot.release_ready());
    }
}

/// A slot, and the stream that its calls leave work on.
pub(super) struct Order {
    slot: Slot,
    pub(super) stream: Arc<Stream>,
}

impl Order {
    /// Has the stream wait for what is before a call on the client's; where it cannot be told to, waits here. Errors:
    /// CUDA's, why it could not.
    pub(super) fn begin(&self, number: u32, stop: &AtomicBool) -> Result<(), CudaError> {
        self.slot.begin(&self.stream, number).map_err(failure::unless_lost).inspect_err(|_| {
            while !self.slot.is_ready(number) && !stop.load(Ordering::SeqCst) {
                std::thread::sleep(LOOK);
            }
        })
    }

    /// Has the client's stream go on behind what is on the stream now. A process that cannot say so ends: the client sees that.
    pub(super) fn end(&self, number: u32) {
        let Err(error) = self.slot.end(&self.stream, number).map_err(failure::unless_lost) else { return };
        tracing::warn!(%error, "the end of a call is not told by the stream");
        match self.stream.synchronize() {
            Ok(()) => self.slot.end_now(number),
            Err(error) => failure::end_now(&error.to_string()),
        }
    }
}
