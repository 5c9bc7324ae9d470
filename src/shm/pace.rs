//! How long an executor polls for a lane's next call.

use std::time::Duration;

use super::wait::{LONG_SPIN, SPIN, has_spare_cores};

/// A lane's span of polling. Waking a thread that sleeps takes longer than a small graph's run, so that the span follows
/// the client: as long as its calls come within [`LONG_SPIN`] of the answer before, they are polled for that long.
#[derive(Debug, Default)]
pub(super) struct Pace {
    is_quick: bool,
    expects_more: bool,
}

impl Pace {
    /// Time to poll before sleep.
    pub(super) fn span(&self) -> Duration {
        if self.is_quick || self.expects_more { LONG_SPIN } else { SPIN }
    }

    /// Takes the time that the call that is there now was waited for.
    pub(super) fn waited(&mut self, time: Duration) {
        self.is_quick = time <= LONG_SPIN;
    }

    /// Polls long from now on, where cores are spare: the client hands its calls over without waiting.
    pub(super) fn expect_more(&mut self) {
        self.expects_more = has_spare_cores();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_follows_the_client() {
        let mut pace = Pace::default();
        assert_eq!(pace.span(), SPIN);
        pace.waited(LONG_SPIN);
        assert_eq!(pace.span(), LONG_SPIN);
        pace.waited(LONG_SPIN + Duration::from_micros(1));
        assert_eq!(pace.span(), SPIN);
    }
}
