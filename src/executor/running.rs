//! Calls that run now, each of which can be told to end alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::base::ids::CallId;
use crate::base::sync::lock;
use crate::runtime::StopToken;

/// Cancelled calls that are kept because they may yet begin.
const EARLY: usize = 64;

/// The calls of one client that run now, over lanes and observed.
#[derive(Default)]
pub(super) struct Running(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    running: Vec<(CallId, Arc<StopToken>)>,
    /// Cancelled before they began, the last of them; ids are not given twice.
    early: VecDeque<CallId>,
}

/// A call that runs until this is dropped.
pub(super) struct Runs<'a> {
    all: &'a Running,
    stop: Arc<StopToken>,
}

impl Running {
    /// The call runs from now on, under `stop`, which is stopped at once where the call is cancelled already.
    pub(super) fn begin(&self, call: CallId, stop: &Arc<StopToken>) -> Runs<'_> {
        let mut calls = lock(&self.0);
        calls.running.push((call, Arc::clone(stop)));
        if !calls.early.is_empty() && calls.early.contains(&call) {
            stop.stop();
        }
        Runs { all: self, stop: Arc::clone(stop) }
    }

    /// Ends a call between two of its nodes, or as soon as it begins. One that has ended is left alone.
    pub(super) fn cancel(&self, call: CallId) {
        let mut calls = lock(&self.0);
        let mut running = calls.running.iter().filter(|(running, _)| *running == call).peekable();
        if running.peek().is_some() {
            running.for_each(|(_, stop)| stop.stop());
        } else {
            calls.early.truncate(EARLY - 1);
            calls.early.push_front(call);
        }
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        lock(&self.all.0).running.retain(|(_, stop)| !Arc::ptr_eq(stop, &self.stop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_cancelled_before_it_begins_ends_at_once() {
        let all = Running::default();
        let [first, second] = [(); 2].map(|()| Arc::new(StopToken::default()));
        all.cancel(CallId(7));
        let running = all.begin(CallId(7), &first);
        assert!(first.is_stopped());
        drop(running);
        let _running = all.begin(CallId(8), &second);
        assert!(!second.is_stopped());
        all.cancel(CallId(8));
        assert!(second.is_stopped());
        for call in 0..1000 {
            all.cancel(CallId(call));
        }
        assert_eq!(lock(&all.0).early.len(), EARLY);
    }
}
