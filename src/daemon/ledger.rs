//! What is held for clients, counted: each client has a bound, and so have all together. What holds something owns a
//! [`Held`]; its end gives back, whichever way it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::errors::client as client_error;
use crate::protocol::message::{ErrorCode, WireError};

/// What a ledger counts, for its errors.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Such as "bytes of models".
    pub name: &'static str,
    /// What to do when a bound is reached.
    pub advice: &'static str,
}

/// What all clients hold together.
#[derive(Debug)]
pub struct Ledger {
    unit: Unit,
    limit: u64,
    /// Of one client.
    account_limit: u64,
    held: AtomicU64,
}

/// What one client holds.
#[derive(Debug)]
pub struct Account {
    ledger: Arc<Ledger>,
    held: AtomicU64,
}

/// Something held; given back when dropped.
#[derive(Debug)]
pub struct Held {
    account: Arc<Account>,
    amount: u64,
}

impl Ledger {
    /// Empty. An account's limit above the limit of all means nothing more than that.
    pub fn new(unit: Unit, limit: u64, account_limit: u64) -> Arc<Self> {
        Arc::new(Self { unit, limit, account_limit: account_limit.min(limit), held: AtomicU64::new(0) })
    }

    /// A new client's.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { ledger: Arc::clone(self), held: AtomicU64::new(0) })
    }

    /// Held by all.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// What all may hold.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

impl Account {
    /// Held by this client.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts `amount` of `what`. Errors: Limit, of this client or of all; nothing is counted then.
    pub fn hold(self: &Arc<Self>, what: &str, amount: usize) -> Result<Held, WireError> {
        let (ledger, amount) = (&self.ledger, amount as u64);
        if !add(&self.held, amount, ledger.account_limit) {
            return Err(self.refuse(what, amount));
        }
        // From here on what is dropped gives back.
        let mut held = Held { account: Arc::clone(self), amount };
        if !add(&ledger.held, amount, ledger.limit) {
            held.amount = 0;
            sub(&self.held, amount);
            return Err(self.refuse(what, amount));
        }
        Ok(held)
    }

    fn refuse(&self, what: &str, amount: u64) -> WireError {
        let Ledger { unit, limit, account_limit, .. } = *self.ledger;
        let (own, all) = (self.held(), self.ledger.held());
        let why = format!(
            "{what}: {amount} {} more: this client holds {own} of at most {account_limit}, all clients hold {all} of at \
             most {limit}; {}",
            unit.name, unit.advice
        );
        client_error(ErrorCode::Limit, why)
    }
}

impl Held {
    /// One thing with `more` of the same account.
    pub fn add(&mut self, mut more: Held) {
        debug_assert!(Arc::ptr_eq(&self.account, &more.account), "one client's");
        self.amount += std::mem::take(&mut more.amount);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        sub(&self.account.held, self.amount);
        sub(&self.account.ledger.held, self.amount);
    }
}

/// Whether it fits below the limit; it is added then.
fn add(sum: &AtomicU64, amount: u64, limit: u64) -> bool {
    let fits = |held: u64| held.checked_add(amount).filter(|&sum| sum <= limit);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

fn sub(sum: &AtomicU64, amount: u64) {
    sum.fetch_sub(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit { name: "bytes", advice: "drop something" };

    #[test]
    fn what_is_dropped_is_given_back_to_the_client_and_to_all() {
        let ledger = Ledger::new(UNIT, 100, 60);
        let (one, two) = (ledger.account(), ledger.account());
        let (first, second) = (one.hold("a", 60).unwrap(), two.hold("b", 40).unwrap());
        assert_eq!((one.held(), two.held(), ledger.held()), (60, 40, 100));
        drop(first);
        assert_eq!((one.held(), two.held(), ledger.held()), (0, 40, 40));
        let mut both = one.hold("c", 10).unwrap();
        both.add(one.hold("c", 20).unwrap());
        assert_eq!(one.held(), 30);
        drop(both);
        assert_eq!((one.held(), ledger.held()), (0, 40));
        drop(second);
        assert_eq!(ledger.held(), 0);
    }

    #[test]
    fn both_bounds_refuse_and_count_nothing() {
        let ledger = Ledger::new(UNIT, 100, 60);
        let (one, two) = (ledger.account(), ledger.account());
        let _first = one.hold("a", 60).unwrap();
        for (account, amount, held) in [(&one, 1, 60), (&two, 41, 0), (&two, usize::MAX, 0)] {
            let error = account.hold("model", amount).unwrap_err();
            assert_eq!((error.code, account.held(), ledger.held()), (ErrorCode::Limit, held, 60));
            assert!(error.message.contains(&format!("model: {amount} bytes more")), "{error}");
            assert!(error.message.contains("60 of at most 100; drop something"), "{error}");
        }
        assert!(two.hold("b", 40).is_ok());
    }
}
