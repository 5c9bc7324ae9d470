//! What is held for clients, counted: each client has a bound, and so have all together. What holds something owns a
//! [`Held`]; its end gives back, whichever way it comes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::limits;
use crate::base::sync::lock;
use crate::protocol::message::{ErrorCode, WireError};

/// What a ledger counts, for its errors.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Such as "bytes of models".
    pub name: &'static str,
    /// What to do when a bound is reached.
    pub advice: &'static str,
}

/// How much may be held.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// By all clients together.
    pub all: u64,
    /// By one client; above `all` it means nothing more than that.
    pub client: u64,
    /// By a client whatever the others hold: `all` keeps it free for each that may connect.
    pub share: u64,
}

/// What all clients hold together.
#[derive(Debug)]
pub struct Ledger {
    unit: Unit,
    bounds: Bounds,
    sums: Mutex<Sums>,
}

/// Changed together with what an account holds.
#[derive(Debug, Default)]
struct Sums {
    /// By all clients.
    held: u64,
    /// Of that, above the clients' shares.
    common: u64,
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
    /// Empty.
    pub fn new(unit: Unit, bounds: Bounds) -> Arc<Self> {
        let bounds = Bounds { client: bounds.client.min(bounds.all), ..bounds };
        Arc::new(Self { unit, bounds, sums: Mutex::default() })
    }

    /// A new client's.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { ledger: Arc::clone(self), held: AtomicU64::new(0) })
    }

    /// Held by all.
    pub fn held(&self) -> u64 {
        lock(&self.sums).held
    }

    /// What all may hold.
    pub fn limit(&self) -> u64 {
        self.bounds.all
    }

    /// What all may hold above their shares.
    fn common_limit(&self) -> u64 {
        self.bounds.all.saturating_sub(self.bounds.share.saturating_mul(limits::CONNECTIONS as u64))
    }

    /// What a client that holds `held` takes of what is common.
    fn above_share(&self, held: u64) -> u64 {
        held.saturating_sub(self.bounds.share)
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
        if self.add(amount) {
            return Ok(Held { account: Arc::clone(self), amount });
        }
        let Ledger { unit, bounds, .. } = ledger.as_ref();
        let share = match bounds.share {
            0 => String::new(),
            share => format!(" ({share} each whatever the others hold, {} in common)", ledger.common_limit()),
        };
        let why = format!(
            "{what}: {amount} {} more: this client holds {} of at most {}, all clients hold {} of at most {}{share}; {}",
            unit.name,
            self.held(),
            bounds.client,
            ledger.held(),
            bounds.all,
            unit.advice
        );
        Err(WireError::client(ErrorCode::Limit, why))
    }

    /// Whether it fits; it is counted then.
    fn add(&self, amount: u64) -> bool {
        let ledger = &self.ledger;
        let mut sums = lock(&ledger.sums);
        let own = self.held();
        let (Some(held), Some(all)) = (own.checked_add(amount), sums.held.checked_add(amount)) else { return false };
        let common = sums.common + (ledger.above_share(held) - ledger.above_share(own));
        if held > ledger.bounds.client || all > ledger.bounds.all || common > ledger.common_limit() {
            return false;
        }
        *sums = Sums { held: all, common };
        self.held.store(held, Ordering::Relaxed);
        true
    }

    fn sub(&self, amount: u64) {
        let ledger = &self.ledger;
        let mut sums = lock(&ledger.sums);
        let own = self.held();
        let held = own - amount;
        sums.held -= amount;
        sums.common -= ledger.above_share(own) - ledger.above_share(held);
        self.held.store(held, Ordering::Relaxed);
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
        self.account.sub(self.amount);
    }
}

/// What all clients hold.
pub struct Ledgers {
    pub memory: Arc<Ledger>,
    pub segments: Arc<Ledger>,
    pub segment_bytes: Arc<Ledger>,
}

impl Ledgers {
    /// Empty. `memory_bytes`: what may be kept for all clients together.
    pub fn new(memory_bytes: u64) -> Self {
        let unit = |name, advice| Unit { name, advice };
        let bytes = "drop compiled functions (torch._dynamo.reset()), close a dump, end a client, or start the daemon with \
                     a larger RUST_ORT_MEMORY_MB";
        let segments =
            "end a client (`rust-ort status` shows what each shares); each keeps the segments it has allocated";
        let kept = Bounds { all: memory_bytes, client: limits::KEPT_BYTES, share: 0 };
        let n_segments =
            Bounds { all: limits::ALL_SEGMENTS, client: limits::SEGMENTS, share: limits::SHARE_OF_SEGMENTS };
        let segment_bytes = Bounds {
            all: limits::ALL_SEGMENT_BYTES,
            client: limits::CLIENT_SEGMENT_BYTES,
            share: limits::SHARE_OF_SEGMENT_BYTES,
        };
        Self {
            memory: Ledger::new(unit("bytes", bytes), kept),
            segments: Ledger::new(unit("segments", segments), n_segments),
            segment_bytes: Ledger::new(unit("bytes of segments", segments), segment_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit { name: "bytes", advice: "drop something" };
    const BOUNDS: Bounds = Bounds { all: 100, client: 60, share: 0 };

    #[test]
    fn what_is_dropped_is_given_back_to_the_client_and_to_all() {
        let ledger = Ledger::new(UNIT, BOUNDS);
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
        let ledger = Ledger::new(UNIT, BOUNDS);
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

    #[test]
    fn what_is_common_goes_to_who_comes_first_and_a_share_stays_for_each() {
        let clients = limits::CONNECTIONS as u64;
        let ledger = Ledger::new(UNIT, Bounds { all: 10 * clients + 100, client: 70, share: 10 });
        let (one, two, three) = (ledger.account(), ledger.account(), ledger.account());
        let _most = one.hold("a", 70).unwrap();
        let second = two.hold("b", 50).unwrap();
        for (account, amount) in [(&one, 1), (&two, 1), (&three, 11)] {
            let error = account.hold("c", amount).unwrap_err();
            assert!(error.message.contains("(10 each whatever the others hold, 100 in common)"), "{error}");
        }
        let share = three.hold("c", 10).unwrap();
        assert!(three.hold("c", 1).is_err());
        drop(second);
        let more = three.hold("c", 40).unwrap();
        assert!(two.hold("b", 11).is_err() && two.hold("b", 10).is_ok());
        drop((share, more));
        assert_eq!((three.held(), ledger.held()), (0, 70));
        assert!(two.hold("b", 50).is_ok(), "all that is common is back");
    }
}
