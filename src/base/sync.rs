//! Locks that hold whatever a thread did.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// The lock, also after a thread that held it panicked: each critical section leaves its data whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], together with others that read.
pub fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], alone.
pub fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_taken_after_its_holder_panicked() {
        let mutex = Mutex::new(7);
        let holder = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock(&mutex);
                panic!("on purpose");
            });
            holder.join()
        });
        assert!(holder.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 7);
        assert_eq!(lock_while(&mutex, || false).as_deref(), Some(&7));
    }

    #[test]
    fn a_lock_that_another_holds_is_given_up() {
        let mutex = Mutex::new(());
        let _held = lock(&mutex);
        let asks = std::cell::Cell::new(0);
        let wanted = || {
            asks.set(asks.get() + 1);
            asks.get() < 3
        };
        assert!(lock_while(&mutex, wanted).is_none());
        assert_eq!(asks.get(), 3);
        assert!(lock_by(&mutex, Instant::now()).is_none());
    }
}
