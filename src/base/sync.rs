//! Locks that hold whatever a thread did.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The lock, also after a thread that held it panicked: each critical section leaves its data whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], but given up once `wanted` says no; it is asked when another thread has the lock.
pub fn lock_while<T>(mutex: &Mutex<T>, wanted: impl Fn() -> bool) -> Option<MutexGuard<'_, T>> {
    let mut pause = Duration::from_micros(50);
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if !wanted() => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
        }
        pause = (2 * pause).min(Duration::from_millis(5));
    }
}

/// As [`lock`], but given up at `deadline`.
pub fn lock_by<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    lock_while(mutex, || Instant::now() < deadline)
}
