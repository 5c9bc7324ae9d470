//! Places for connections. Clients have [`limits::CONNECTIONS`] of them. A few more are for those that only ask or stop, as
//! `rust-ort status` and `stop` do: they are served whoever else is connected. A connection that has said nothing yet
//! takes a place, too, and keeps nobody out: where all are taken, the one that has been silent longest makes room for the
//! newest, and without one the oldest of those that only ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::base::sync::lock;
use crate::link::transport::Transport;
use crate::protocol::control::{Reply, Request};
use crate::protocol::message::{ErrorCode, WireError};
use crate::protocol::wire;

/// All places.
#[derive(Debug)]
pub struct Places(Mutex<Taken>);

#[derive(Debug)]
struct Taken {
    /// When the last connection went.
    since: Instant,
    /// Connections without a good `Hello` so far, the oldest first.
    silent: BTreeMap<u64, Arc<Transport>>,
    /// Those that came when all places of clients were taken, and only ask, the oldest first.
    asking: BTreeMap<u64, Arc<Transport>>,
    n_clients: usize,
    next: u64,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    is_client: bool,
}

impl Taken {
    fn n(&self) -> usize {
        self.silent.len() + self.asking.len() + self.n_clients
    }
}

impl Places {
    /// All free.
    pub fn new() -> Arc<Self> {
        let (silent, asking) = (BTreeMap::new(), BTreeMap::new());
        Arc::new(Self(Mutex::new(Taken { since: Instant::now(), silent, asking, n_clients: 0, next: 0 })))
    }

    /// A place for a connection that has said nothing yet; where none is free, that of the connection that has been
    /// silent longest, or that has only asked, which is told and ends.
    pub fn take(self: &Arc<Self>, transport: &Arc<Transport>) -> Place {
        let (place, ousted) = {
            let mut taken = lock(&self.0);
            let is_full = taken.n() >= limits::CONNECTIONS + limits::ASKING;
            // Clients have fewer places than there are, so one of these is there.
            let oldest = |taken: &mut Taken| taken.silent.pop_first().or_else(|| taken.asking.pop_first());
            let ousted = is_full.then(|| oldest(&mut taken)).flatten();
            let number = taken.next;
            taken.next += 1;
            taken.silent.insert(number, Arc::clone(transport));
            (Place { places: Arc::clone(self), number, is_client: false }, ousted)
        };
        if let Some((_, ousted)) = ousted {
            oust(&ousted);
        }
        place
    }

    /// For how long there has been no connection; None while there is one.
    pub fn empty_for(&self) -> Option<Duration> {
        let taken = lock(&self.0);
        (taken.n() == 0).then(|| taken.since.elapsed())
    }
}

impl Place {
    /// It has said who it is: a client as long as there is room for one, else one that only asks. False: another
    /// connection has the place already.
    pub fn greet(&mut self) -> bool {
        let mut taken = lock(&self.places.0);
        let Some(transport) = taken.silent.remove(&self.number) else { return false };
        if taken.n_clients < limits::CONNECTIONS {
            taken.n_clients += 1;
            self.is_client = true;
        } else {
            taken.asking.insert(self.number, transport);
        }
        true
    }

    /// Whether its connection may be served this: asking and stopping may be all, anything else clients alone, and whoever
    /// becomes one where there is room by now. Errors: Limit.
    pub fn admit(&mut self, request: &Request) -> Result<(), WireError> {
        if self.is_client || matches!(request, Request::GetStatus | Request::Stop { .. }) {
            return Ok(());
        }
        let mut taken = lock(&self.places.0);
        if taken.n_clients >= limits::CONNECTIONS {
            let why = format!(
                "{}: {} clients are connected already; end one, or ask for the status or the end alone",
                request.name(),
                limits::CONNECTIONS
            );
            return Err(WireError::client(ErrorCode::Limit, why));
        }
        // One that was ousted meanwhile ends, whatever it is served.
        if taken.asking.remove(&self.number).is_some() {
            taken.n_clients += 1;
            self.is_client = true;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0);
        taken.silent.remove(&self.number);
        taken.asking.remove(&self.number);
        taken.n_clients -= usize::from(self.is_client);
        taken.since = Instant::now();
    }
}

/// Tells a connection why it ends, as far as its socket takes it at once, and ends it.
fn oust(transport: &Transport) {
    let why = format!(
        "{} connections are open and this one has not said Hello, or only asked: a newer one has its place; say Hello at \
         once and leave when you have your answer",
        limits::CONNECTIONS + limits::ASKING
    );
    tracing::debug!("a silent connection, or one that only asks, made room for a newer one");
    if let Ok(frame) = wire::encode_reply(0, &Reply::Error(WireError::client(ErrorCode::Limit, why))) {
        // It may have left already.
        let _ = transport.send_by(&frame, None, Instant::now());
    }
    transport.shut_down();
}
