//! Counters that the executor writes and the daemon reads, also after the executor's death.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::segment::{BadSegment, Segment};
use crate::base::ids::SegmentId;
use crate::cuda::InUse;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What an executor counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// Every counter, in the page's order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];

            /// Name in `rust-ort status`.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name),* }
            }
        }
    };
}

counters! {
    /// Calls answered with a result.
    Runs = "runs",
    /// FX compute nodes that ran on ONNX Runtime.
    NodesOnOrt = "nodes_on_ort",
    /// FX compute nodes that ran in eager beside them.
    NodesInEager = "nodes_in_eager",
    /// Sessions made.
    SessionsBuilt = "sessions_built",
    /// Sessions found warm.
    SessionHits = "session_hits",
    /// Sessions in the cache now.
    SessionsLive = "sessions_live",
    /// Sessions made of pieces of parts, to compare their nodes.
    PiecesBuilt = "pieces_built",
    /// Nanoseconds inside the runtime.
    RunNs = "run_ns",
    /// Of the runs, those that came over the link to be observed.
    ObservedRuns = "observed_runs",
    /// Calls answered with an error.
    Errors = "errors",
    /// Bytes of parameters that are constants of sessions, each content once; what the runtime makes of them comes on top.
    FrozenBytes = "frozen_bytes",
    /// Bytes of tensors on the host of calls on a device: what went there, or came from there, through the host.
    HostBytes = "host_bytes",
}

/// A page of counters. The daemon creates it, the executor maps it.
#[derive(Debug)]
pub struct CounterPage {
    segment: Segment,
}

impl CounterPage {
    const LEN_BYTES: u64 = 4096;
    const ID: SegmentId = SegmentId(0);
    /// Of what the process holds of devices' memory: no counter, for it may be unknown.
    const IN_USE_AT: u64 = Self::LEN_BYTES - 8;
    /// Which piece of a request is being run.
    const PIECE_AT: u64 = Self::LEN_BYTES - 16;
    const UNKNOWN: u64 = u64::MAX;

    /// All zero. Errors: the kernel's.
    pub fn create() -> Result<Self, BadSegment> {
        Ok(Self { segment: Segment::create(Self::ID, "rust-ort-counters", Self::LEN_BYTES)? })
    }

    /// The page that another process created. Errors: as of [`Segment::map`].
    pub fn map(fd: OwnedFd) -> Result<Self, BadSegment> {
        Ok(Self { segment: Segment::map(Self::ID, fd, Self::LEN_BYTES)? })
    }

    /// Its memfd, to be handed to the other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Adds to a counter; wraps.
    pub fn add(&self, counter: Counter, n: u64) {
        self.cell(counter).fetch_add(n, Ordering::Relaxed);
    }

    /// Sets a counter.
    pub fn set(&self, counter: Counter, value: u64) {
        self.cell(counter).store(value, Ordering::Relaxed);
    }

    /// Its value now.
    pub fn get(&self, counter: Counter) -> u64 {
        self.cell(counter).load(Ordering::Relaxed)
    }

    /// Names and values, in the page's order.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        Counter::ALL.iter().map(|&counter| (counter.name(), self.get(counter))).collect()
    }

    /// Says which piece of a request is being run.
    pub fn set_piece(&self, index: usize) {
        self.segment.word64(Self::PIECE_AT).store(index as u64, Ordering::Relaxed);
    }

    /// What was said last.
    pub fn piece(&self) -> usize {
        usize::try_from(self.segment.word64(Self::PIECE_AT).load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Says what the process holds of the memory of devices.
    pub fn set_device_memory(&self, in_use: InUse) {
        let told = match in_use {
            InUse::Nothing => 0,
            // A context of which nothing is told is not none.
            InUse::Bytes(bytes) => bytes.clamp(1, Self::UNKNOWN - 1),
            InUse::Unknown => Self::UNKNOWN,
        };
        self.segment.word64(Self::IN_USE_AT).store(told, Ordering::Relaxed);
    }

    /// What the process said last.
    pub fn device_memory(&self) -> InUse {
        match self.segment.word64(Self::IN_USE_AT).load(Ordering::Relaxed) {
            0 => InUse::Nothing,
            Self::UNKNOWN => InUse::Unknown,
            bytes => InUse::Bytes(bytes),
        }
    }

    fn cell(&self, counter: Counter) -> &AtomicU64 {
        self.segment.word64(counter as u64 * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_one_count() {
        let daemon = CounterPage::create().unwrap();
        let executor = CounterPage::map(daemon.fd().try_clone_to_owned().unwrap()).unwrap();
        for (n, &counter) in Counter::ALL.iter().enumerate() {
            executor.add(counter, n as u64 + 1);
        }
        executor.add(Counter::Runs, 10);
        let values: Vec<u64> = daemon.snapshot().into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, [11, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        executor.set_piece(7);
        assert_eq!(daemon.piece(), 7);
    }

    #[test]
    fn memory_of_devices_may_be_none_some_or_unknown() {
        let daemon = CounterPage::create().unwrap();
        assert_eq!(daemon.device_memory(), InUse::Nothing);
        let executor = CounterPage::map(daemon.fd().try_clone_to_owned().unwrap()).unwrap();
        for in_use in [InUse::Bytes(1), InUse::Bytes(80 << 30), InUse::Unknown, InUse::Nothing] {
            executor.set_device_memory(in_use);
            assert_eq!(daemon.device_memory(), in_use);
        }
        executor.set_device_memory(InUse::Bytes(0));
        assert_eq!(daemon.device_memory(), InUse::Bytes(1), "it has a context");
        assert!(daemon.snapshot().iter().all(|(_, value)| *value == 0), "it is no counter");
    }
}
