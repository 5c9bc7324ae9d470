//! Who may use the driver while a graph is captured.
//!
//! ONNX Runtime captures in the mode that ends a capture when any thread of the process allocates, frees, opens or closes
//! memory, or touches the stream (cudaStreamCaptureModeGlobal). So whoever uses a device is beside others, and a run that may
//! capture is alone; it never waits to be, and nobody who is beside others waits a second time.

use std::sync::{Condvar, Mutex};

use crate::base::sync::lock;

static USE: Turns = Turns::new();

/// How many use a device now; one that is alone.
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    beside: usize,
    alone: bool,
}

/// Somebody uses a device, and no graph is captured, while this lives.
pub struct Beside(&'static Turns);

/// Nobody else of this process uses a device while this lives: a graph may be captured. Whoever holds it calls nothing of
/// this room but `Stream::end_capture`.
pub struct Alone(&'static Turns);

/// A place beside others: waits while a graph is captured. A thread may have several.
pub fn beside_captures() -> Beside {
    USE.beside()
}

/// To be alone, at once or not now.
pub fn alone() -> Option<Alone> {
    USE.alone()
}

impl Turns {
    const fn new() -> Self {
        Self { state: Mutex::new(State { beside: 0, alone: false }), changed: Condvar::new() }
    }

    fn beside(&'static self) -> Beside {
        let waited = self.changed.wait_while(lock(&self.state), |state| state.alone);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).beside += 1;
        Beside(self)
    }

    fn alone(&'static self) -> Option<Alone> {
        let mut state = lock(&self.state);
        if state.alone || state.beside > 0 {
            return None;
        }
        state.alone = true;
        Some(Alone(self))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        lock(&self.0.state).beside -= 1;
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        lock(&self.0.state).alone = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_is_alone_or_any_number_beside_each_other() {
        static TURNS: Turns = Turns::new();
        let (one, two) = (TURNS.beside(), TURNS.beside());
        assert!(TURNS.alone().is_none());
        drop(one);
        assert!(TURNS.alone().is_none());
        drop(two);
        let alone = TURNS.alone().unwrap();
        assert!(TURNS.alone().is_none());
        drop(alone);
        assert!(TURNS.alone().is_some());
    }

    #[test]
    fn who_comes_while_one_is_alone_waits_for_its_end() {
        static TURNS: Turns = Turns::new();
        let ended = AtomicBool::new(false);
        let alone = TURNS.alone().unwrap();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let _first = TURNS.beside();
                        let _second = TURNS.beside();
                        ended.load(Ordering::SeqCst)
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(30));
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            ended.store(true, Ordering::SeqCst);
            drop(alone);
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
        });
        assert!(TURNS.alone().is_some());
    }

    #[test]
    fn who_is_beside_others_and_asks_again_never_waits_for_one_who_wants_to_be_alone() {
        static TURNS: Turns = Turns::new();
        let _first = TURNS.beside();
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| (0..1000).all(|_| TURNS.alone().is_none()));
            for _ in 0..1000 {
                drop(TURNS.beside());
            }
            assert!(refused.join().unwrap());
        });
    }
}
