//! Ending the calls of a client that is gone, or one that nobody waits for.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::error::RuntimeError;
use crate::base::sync::lock;

/// A call that can be told to end, from any thread, also while it runs.
pub trait Terminate: Send + Sync {
    /// Its run now, and every later one, ends soon with an error.
    fn terminate(&self);
}

/// Ends every call bound under it. One a lease, and under that one a call; never reset.
#[derive(Default)]
pub struct StopToken {
    stopped: AtomicBool,
    calls: Mutex<Vec<Weak<dyn Terminate>>>,
}

thread_local! {
    /// What ends the sessions that this thread makes.
    static MAKING: RefCell<Option<Arc<StopToken>>> = const { RefCell::new(None) };
}

impl StopToken {
    /// Does something in which sessions are made, on this thread: what ends the token ends their making, too.
    pub fn over_making<T>(self: &Arc<Self>, makes: impl FnOnce() -> T) -> T {
        struct Before(Option<Arc<StopToken>>);
        impl Drop for Before {
            fn drop(&mut self) {
                MAKING.set(self.0.take());
            }
        }
        let _before = Before(MAKING.replace(Some(Arc::clone(self))));
        makes()
    }

    /// What ends the sessions that this thread makes, where something does.
    pub fn of_making() -> Option<Arc<Self>> {
        MAKING.with_borrow(Clone::clone)
    }

    /// One that ends with `parent`, or alone.
    pub fn under(parent: &Self) -> Arc<Self> {
        let own = Arc::new(Self::default());
        let weak: Weak<Self> = Arc::downgrade(&own);
        parent.register(weak);
        own
    }

    /// Ends the calls. Returns at once; a run looks between two nodes.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        for call in lock(&self.calls).iter().filter_map(Weak::upgrade) {
            call.terminate();
        }
    }

    /// `stop` was called.
    pub fn is_stopped(&self) -> bool {
        self.flag().load(Ordering::SeqCst)
    }

    /// Errors: Stopped where `stop` was called.
    pub fn check(&self) -> Result<(), RuntimeError> {
        if self.is_stopped() { Err(RuntimeError::Stopped) } else { Ok(()) }
    }

    /// The flag itself, for those who sleep.
    pub fn flag(&self) -> &AtomicBool {
        &self.stopped
    }

    /// Adds a call.
    pub fn register(&self, call: Weak<dyn Terminate>) {
        let mut calls = lock(&self.calls);
        if calls.len() == calls.capacity() {
            // Instead of growing: most calls of the past are gone.
            calls.retain(|call| call.strong_count() > 0);
        }
        calls.push(call);
        if self.is_stopped() {
            calls.iter().filter_map(Weak::upgrade).for_each(|call| call.terminate());
        }
    }
}

impl Terminate for StopToken {
    fn terminate(&self) {
        self.stop();
    }
}
