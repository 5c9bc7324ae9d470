//! Work that goes on now, each piece of which can be told to end alone.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::base::ids::Work;
use crate::base::sync::lock;
use crate::runtime::StopToken;

/// Cancelled works that are kept because they may yet begin, or go on.
const CANCELLED: usize = 64;

/// The work of one client that goes on now: calls over lanes and observed, parts that are prepared, nodes that are compared.
#[derive(Default)]
pub(super) struct Running {
    works: Mutex<Works>,
    ended: Condvar,
}

#[derive(Default)]
struct Works {
    running: Vec<(Work, Arc<StopToken>)>,
    /// The last that were cancelled; ids are not given twice.
    cancelled: VecDeque<Work>,
}

/// A work that goes on until this is dropped.
pub(super) struct Runs<'a> {
    all: &'a Running,
    stop: Arc<StopToken>,
}

impl Running {
    /// The work goes on from now on, under `stop`, which is stopped at once where it is cancelled already.
    pub(super) fn begin(&self, work: Work, stop: &Arc<StopToken>) -> Runs<'_> {
        let mut works = lock(&self.works);
        works.running.push((work, Arc::clone(stop)));
        if !works.cancelled.is_empty() && works.cancelled.contains(&work) {
            stop.stop();
        }
        Runs { all: self, stop: Arc::clone(stop) }
    }

    /// Ends a work at its next step, and each time it begins: one comparison of nodes begins several times. What has ended is
    /// left alone. Whether it runs, and was not cancelled before.
    pub(super) fn cancel(&self, work: Work) -> bool {
        let mut works = lock(&self.works);
        works.running.iter().filter(|(running, _)| *running == work).for_each(|(_, stop)| stop.stop());
        let again = works.cancelled.contains(&work);
        works.cancelled.truncate(CANCELLED - 1);
        works.cancelled.push_front(work);
        !again && works.runs(work)
    }

    /// Waits until a work does not run. Whether that was within `timeout`.
    pub(super) fn ends_within(&self, work: Work, timeout: Duration) -> bool {
        let works = lock(&self.works);
        let waited = self.ended.wait_timeout_while(works, timeout, |works| works.runs(work));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        lock(&self.all.works).running.retain(|(_, stop)| !Arc::ptr_eq(stop, &self.stop));
        self.all.ended.notify_all();
    }
}

impl Works {
    fn runs(&self, work: Work) -> bool {
        self.running.iter().any(|(running, _)| *running == work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::CallId;

    fn call(id: u64) -> Work {
        Work::Call(CallId(id))
    }

    #[test]
    fn a_call_that_is_cancelled_before_it_begins_ends_at_once() {
        let all = Running::default();
        let [first, second] = [(); 2].map(|()| Arc::new(StopToken::default()));
        all.cancel(call(7));
        let running = all.begin(call(7), &first);
        assert!(first.is_stopped());
        drop(running);
        let _running = all.begin(call(8), &second);
        assert!(!second.is_stopped());
        all.cancel(call(8));
        assert!(second.is_stopped());
        for id in 0..1000 {
            all.cancel(call(id));
        }
        assert_eq!(lock(&all.works).cancelled.len(), CANCELLED);
    }

    #[test]
    fn a_cancelled_call_that_goes_on_is_told_from_one_that_ends() {
        let all = Running::default();
        let stop = Arc::new(StopToken::default());
        let running = all.begin(call(7), &stop);
        assert!(all.cancel(call(7)));
        assert!(!all.cancel(call(7)), "it is watched already");
        assert!(!all.cancel(call(8)), "it does not run");
        assert!(!all.ends_within(call(7), Duration::from_millis(20)));
        std::thread::scope(|scope| {
            let ends = scope.spawn(|| all.ends_within(call(7), Duration::from_secs(120)));
            drop(running);
            assert!(ends.join().unwrap());
        });
        assert!(all.ends_within(call(7), Duration::ZERO));
    }

    #[test]
    fn a_cancelled_comparison_of_nodes_does_not_go_on_with_its_next_batch() {
        let all = Running::default();
        let [first, next, other] = [(); 3].map(|()| Arc::new(StopToken::default()));
        let running = all.begin(Work::Request(7), &first);
        all.cancel(Work::Request(7));
        assert!(first.is_stopped());
        drop(running);
        let _next = all.begin(Work::Request(7), &next);
        assert!(next.is_stopped());
        let _call = all.begin(call(7), &other);
        assert!(!other.is_stopped(), "a call of the same number");
    }
}
