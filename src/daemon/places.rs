//! Places for connections. One that says nothing keeps nobody out: where all are taken, the one that has been silent
//! longest makes room for the newest, so that `rust-ort status` and `stop` are served whoever else connects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::base::sync::lock;
use crate::link::transport::Transport;
use crate::protocol::control::Reply;
use crate::protocol::message::{ErrorCode, WireError};
use crate::protocol::wire;

/// All places.
#[derive(Debug)]
pub struct Places(Mutex<Taken>);

#[derive(Debug)]
struct Taken {
    n: usize,
    /// When the last connection went.
    since: Instant,
    /// Connections without a good `Hello` so far, the oldest first.
    silent: BTreeMap<u64, Arc<Transport>>,
    next: u64,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    greeted: bool,
}

impl Places {
    /// All free.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Taken { n: 0, since: Instant::now(), silent: BTreeMap::new(), next: 0 })))
    }

    /// A place for a connection that has said nothing yet; where none is free, that of the connection that has been
    /// silent longest, which is told and ends. None: all are taken by clients.
    pub fn take(self: &Arc<Self>, transport: &Arc<Transport>) -> Option<Place> {
        let (place, ousted) = {
            let mut taken = lock(&self.0);
            let ousted = if taken.n < limits::CONNECTIONS {
                taken.n += 1;
                None
            } else {
                Some(taken.silent.pop_first()?.1)
            };
            let number = taken.next;
            taken.next += 1;
            taken.silent.insert(number, Arc::clone(transport));
            (Place { places: Arc::clone(self), number, greeted: false }, ousted)
        };
        if let Some(ousted) = ousted {
            oust(&ousted);
        }
        Some(place)
    }

    /// For how long there has been no connection; None while there is one.
    pub fn empty_for(&self) -> Option<Duration> {
        let taken = lock(&self.0);
        (taken.n == 0).then(|| taken.since.elapsed())
    }
}

impl Place {
    /// It has said who it is and keeps its place. False: another connection has the place already.
    pub fn greet(&mut self) -> bool {
        self.greeted = lock(&self.places.0).silent.remove(&self.number).is_some();
        self.greeted
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0);
        // Of one that was ousted the place has another holder.
        if taken.silent.remove(&self.number).is_some() || self.greeted {
            taken.n -= 1;
            taken.since = Instant::now();
        }
    }
}

/// Tells a connection why it ends, as far as its socket takes it at once, and ends it.
fn oust(transport: &Transport) {
    let why = format!(
        "{} connections are open and this one has not said Hello: a newer one has its place; say Hello at once",
        limits::CONNECTIONS
    );
    tracing::debug!("a silent connection made room for a newer one");
    if let Ok(frame) = wire::encode_reply(0, &Reply::Error(WireError::client(ErrorCode::Limit, why))) {
        // It may have left already.
        let _ = transport.send_by(&frame, None, Instant::now());
    }
    transport.shut_down();
}
