//! What the daemon knows of one client. The connection's thread changes it; the burying thread of its executor reads it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::leases::Executor;
use super::lock;
use super::transport::Transport;
use crate::dump;
use crate::ids::{ClientId, GraphId, PartHandle};
use crate::protocol::control::{Hello, Notice, PreparePart, RegisterGraph};
use crate::protocol::message::ValueSpec;
use crate::protocol::wire;
use crate::shm::{Lanes, SegmentTable};
use crate::tensor::CallRecord;

/// A client after `Hello`.
pub struct Client {
    /// Its name.
    pub id: ClientId,
    /// Who it says it is.
    pub hello: Hello,
    /// When it came.
    pub since: SystemTime,
    /// What it may be told unasked.
    pub transport: Arc<Transport>,
    state: Mutex<State>,
}

/// A prepared part, kept so that a crash can be written down.
#[derive(Debug)]
pub struct Part {
    /// As sent.
    pub spec: PreparePart,
    /// Of the model, in its order; empty while it is being prepared.
    pub inputs: Vec<ValueSpec>,
    /// As inputs.
    pub outputs: Vec<ValueSpec>,
}

/// The changing part. Locked for moments, never during a call.
#[derive(Default)]
pub struct State {
    /// Data segments.
    pub segments: SegmentTable,
    /// Lanes segment.
    pub lanes: Option<Arc<Lanes>>,
    /// Lanes that the leased executor serves.
    pub open_lanes: BTreeSet<u32>,
    /// Registered graphs.
    pub graphs: HashMap<GraphId, Arc<RegisterGraph>>,
    /// Parts of the lease.
    pub parts: BTreeMap<PartHandle, Arc<Part>>,
    /// The part that is being prepared.
    pub preparing: Option<Arc<Part>>,
    /// The call that is being observed.
    pub observing: Option<CallRecord>,
    /// Bytes of models and texts kept here.
    pub kept_bytes: usize,
    /// The executor, alive or just lost.
    pub executor: Option<Arc<Executor>>,
    /// The open dump.
    pub dump: Option<Arc<dump::Run>>,
    /// Graphs that the open dump has: folder names, and the parts there.
    pub dumped: BTreeMap<GraphId, (String, BTreeSet<u32>)>,
}

impl Client {
    /// A client that has nothing yet.
    pub fn new(id: ClientId, hello: Hello, transport: Arc<Transport>) -> Self {
        Self { id, hello, since: SystemTime::now(), transport, state: Mutex::default() }
    }

    /// Its state, for a moment.
    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sends a notice; a client that is gone misses nothing.
    pub fn notify(&self, notice: &Notice) {
        let sent = wire::encode_notice(notice).map_err(std::io::Error::other);
        if let Err(error) = sent.and_then(|frame| self.transport.send(&frame, None)) {
            tracing::debug!(client = self.id.0, %error, "notice not sent");
            self.transport.shut_down();
        }
    }
}

impl State {
    /// Its end would be felt.
    pub fn holds_something(&self) -> bool {
        self.executor.is_some() || self.lanes.is_some() || self.dump.is_some() || !self.graphs.is_empty()
    }

    /// What a request that ended in a panic may have left marked as going on is over.
    pub fn nothing_runs(&mut self) {
        (self.preparing, self.observing) = (None, None);
    }

    /// Forgets what went with the executor.
    pub fn end_lease(&mut self) {
        self.executor = None;
        self.open_lanes.clear();
        let parts = std::mem::take(&mut self.parts);
        self.kept_bytes -= parts.values().map(|part| part.kept_bytes()).sum::<usize>();
    }
}
