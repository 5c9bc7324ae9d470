//! Waiting for a word in shared memory to change.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

/// How long a side polls before it sleeps. A call that is answered within it costs no system call on either side.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// The same of an executor whose client hands calls over without waiting: between two of them it makes its next call, which
/// takes longer than what answers one.
pub(super) const LONG_SPIN: Duration = Duration::from_micros(200);
/// Rounds of polling after which each further one gives the core away.
const ROUNDS_BEFORE_YIELD: u32 = 2000;
/// The first sleep: a peer without fences may have missed the waiting flag, but no store stays invisible this long.
const FIRST_SLEEP: Duration = Duration::from_millis(1);

/// Cores that this process may run on; 0: not looked at yet, or they have changed.
static CORES: AtomicUsize = AtomicUsize::new(0);

/// The process may run on other cores from now on.
pub fn cores_changed() {
    CORES.store(0, Ordering::Relaxed);
}

fn cores() -> usize {
    match CORES.load(Ordering::Relaxed) {
        0 => {
            let found = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            CORES.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

/// With one core, polling keeps the other side from running.
fn polling_pays() -> bool {
    cores() > 1
}

/// Client, its other threads, and the executor's pool have cores beside one that polls.
pub(super) fn has_spare_cores() -> bool {
    cores() > 4
}

/// A word the peer writes, and the flag that tells the peer to wake us.
pub(super) struct Doorbell<'a> {
    pub(super) word: &'a AtomicU32,
    pub(super) waiting: &'a AtomicU32,
}

impl Doorbell<'_> {
    /// Waits until the word is not `seen`: polls for `span`, then sleeps, in turns of `turn` where given. Between sleeps it
    /// asks `give_up`. Returns the new value, None when it gave up.
    pub(super) fn wait(
        &self,
        seen: u32,
        span: Duration,
        turn: Option<Duration>,
        mut give_up: impl FnMut() -> bool,
    ) -> Option<u32> {
        if let Some(value) = self.poll(seen, span) {
            return Some(value);
        }
        self.waiting.store(1, Ordering::SeqCst);
        let mut timeout = Some(FIRST_SLEEP);
        let changed = loop {
            let value = self.word.load(Ordering::SeqCst);
            if value != seen {
                break Some(value);
            }
            if give_up() {
                break None;
            }
            sleep(self.word, seen, timeout);
            timeout = turn;
        };
        self.waiting.store(0, Ordering::Relaxed);
        changed
    }

    /// Polls for at most `span` whether the word is not `seen`. Its value then.
    pub(super) fn poll(&self, seen: u32, span: Duration) -> Option<u32> {
        let look = || Some(self.word.load(Ordering::Acquire)).filter(|&value| value != seen);
        if !polling_pays() {
            return look();
        }
        let start = Instant::now();
        let mut rounds = 0_u32;
        loop {
            if let Some(value) = look() {
                return Some(value);
            }
            rounds += 1;
            if rounds > ROUNDS_BEFORE_YIELD {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if rounds.is_multiple_of(32) && start.elapsed() > span {
                return look();
            }
        }
    }

    /// Publishes `value` and wakes the peer if it sleeps.
    pub(super) fn ring(&self, value: u32) {
        self.word.store(value, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            wake(self.word);
        }
    }
}

/// Wakes whoever sleeps on the word.
pub(super) fn wake(word: &AtomicU32) {
    // It fails for bad addresses only.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

fn sleep(word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    // Timeouts, signals and a changed word all end in another look.
    let _ = futex::wait(word, futex::Flags::empty(), seen, timeout.as_ref());
}
