//! Calls that run now, each of which can be told to end alone.

use std::sync::{Arc, Mutex};

use crate::base::ids::CallId;
use crate::base::sync::lock;
use crate::runtime::StopToken;

/// The calls of one client that run now, over lanes and observed.
#[derive(Default)]
pub(super) struct Running(Mutex<Vec<(CallId, Arc<StopToken>)>>);

/// A call that runs until this is dropped.
pub(super) struct Runs<'a> {
    all: &'a Running,
    stop: Arc<StopToken>,
}

impl Running {
    /// The call runs from now on, under `stop`.
    pub(super) fn begin(&self, call: CallId, stop: &Arc<StopToken>) -> Runs<'_> {
        lock(&self.0).push((call, Arc::clone(stop)));
        Runs { all: self, stop: Arc::clone(stop) }
    }

    /// Ends a call between two of its nodes. One that does not run, or no more, is left alone.
    pub(super) fn cancel(&self, call: CallId) {
        for (_, stop) in lock(&self.0).iter().filter(|(running, _)| *running == call) {
            stop.stop();
        }
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).retain(|(_, stop)| !Arc::ptr_eq(stop, &self.stop));
    }
}
