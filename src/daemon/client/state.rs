//! What the daemon knows of one client. Its connection's two threads change it; the burying thread of its executor, and
//! whoever asks for status or stop, reads it. Nobody holds its lock while a file system or an executor works.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use super::node_tables::NodeTables;
use super::part::Part;
use super::unsettled::UnsettledCalls;
use crate::base::ids::{ClientId, GraphId, PartHandle, SegmentId};
use crate::base::limits;
use crate::base::process;
use crate::base::sync::lock;
use crate::daemon::executors::Executor;
use crate::daemon::ledger::{Account, Held, Ledgers};
use crate::dump;
use crate::link::transport::Transport;
use crate::observe::nodes::SubModel;
use crate::protocol::control::{Hello, Notice, RegisterGraph};
use crate::protocol::message::{ErrorCode, WireError};
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
    /// Bytes that the daemon keeps for it.
    pub memory: Arc<Account>,
    /// Segments of its.
    pub segments: Arc<Account>,
    /// Bytes of its segments.
    pub segment_bytes: Arc<Account>,
    /// Held while segments are shown to an executor: a lease and a new segment come one after the other.
    pub showing: Mutex<()>,
    state: Mutex<State>,
}

/// A registered graph.
#[derive(Debug)]
pub struct Known {
    /// As sent.
    pub graph: Arc<RegisterGraph>,
    /// Its texts.
    _held: Held,
}

/// Pieces of a part that are being run, one after the other: the executor's page of counters tells which.
#[derive(Clone, Debug)]
pub struct RunningNodes {
    /// What they are pieces of.
    pub whole: Arc<Part>,
    /// In order.
    pub pieces: Arc<[SubModel]>,
}

/// The changing part. Locked for moments, never during a call.
#[derive(Default)]
pub struct State {
    /// It has left: what a request of its still gets is given back.
    pub gone: bool,
    /// Data segments.
    pub segments: SegmentTable,
    /// What they count for, the lanes' too.
    pub segments_held: BTreeMap<SegmentId, [Held; 2]>,
    /// Memory of devices, which the executor alone maps.
    pub device_segments: BTreeMap<SegmentId, Held>,
    /// Lanes segment.
    pub lanes: Option<Arc<Lanes>>,
    /// Lanes that the leased executor serves.
    pub open_lanes: BTreeSet<u32>,
    /// Registered graphs.
    pub graphs: HashMap<GraphId, Known>,
    /// Parts of the lease.
    pub parts: BTreeMap<PartHandle, Arc<Part>>,
    /// The part that is being prepared.
    pub preparing: Option<Arc<Part>>,
    /// The call that is being observed.
    pub observing: Option<CallRecord>,
    /// The nodes that are being run.
    pub running_nodes: Option<RunningNodes>,
    /// Comparisons of nodes that go on.
    pub node_tables: NodeTables,
    /// Calls that may be looked at once more.
    pub unsettled: UnsettledCalls,
    /// The executor, alive or just lost.
    pub executor: Option<Arc<Executor>>,
    /// The open dump.
    pub dump: Option<Arc<dump::Run>>,
    /// Graphs that the open dump has: folder names, and the parts there.
    pub dumped: BTreeMap<GraphId, (String, BTreeSet<u32>)>,
}

impl Client {
    /// Its process, where that has a pid here.
    pub fn visible_pid(&self) -> Option<u32> {
        let here = process::pid_namespace();
        Some(self.hello.pid).filter(|_| here != 0 && self.hello.pid_namespace == here)
    }

    /// A client that has nothing yet.
    pub fn new(id: ClientId, hello: Hello, transport: Arc<Transport>, ledgers: &Ledgers) -> Self {
        Self {
            id,
            hello,
            since: SystemTime::now(),
            transport,
            memory: ledgers.memory.account(),
            segments: ledgers.segments.account(),
            segment_bytes: ledgers.segment_bytes.account(),
            showing: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Its state, for a moment.
    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Errors: BadState when it has left: nobody waits for what is computed.
    pub fn is_there(&self) -> Result<(), WireError> {
        if self.state().gone {
            return Err(WireError::client(ErrorCode::BadState, format!("client {} has left", self.id.0)));
        }
        Ok(())
    }

    /// Forgets everything of a client that has left, so that nothing waits for the request that may still be served; but
    /// for its dump, which stays where a daemon that ends finds it. Returns what to give back, and to end without a lock.
    pub fn leave(&self) -> State {
        let mut state = self.state();
        let gone = State { gone: true, dump: state.dump.clone(), ..State::default() };
        std::mem::replace(&mut *state, gone)
    }

    /// Sends a notice; a client that is gone misses nothing.
    pub fn notify(&self, notice: &Notice) {
        self.notify_by(notice, Instant::now() + limits::SEND);
    }

    /// As [`Client::notify`], by `deadline`; a client that has not taken it by then is disconnected.
    pub fn notify_by(&self, notice: &Notice, deadline: Instant) {
        let sent = wire::encode_notice(notice).map_err(std::io::Error::other);
        if let Err(error) = sent.and_then(|frame| self.transport.send_by(&frame, None, deadline)) {
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
        (self.preparing, self.observing, self.running_nodes) = (None, None, None);
    }

    /// A segment of any kind has this id.
    pub fn has_segment(&self, id: SegmentId) -> bool {
        self.lanes.as_ref().is_some_and(|lanes| lanes.segment().id() == id)
            || self.device_segments.contains_key(&id)
            || self.segments.iter().any(|segment| segment.id() == id)
    }

    /// Forgets what went with the executor.
    pub fn end_lease(&mut self) {
        self.executor = None;
        self.device_segments.clear();
        self.open_lanes.clear();
        self.node_tables = NodeTables::default();
        self.parts.clear();
    }

    /// Makes a graph known; `held` counts its texts. One that is compiled again goes by its newest name. Returns what
    /// was known before, for [`State::unregister`]. Errors: Limit.
    pub fn register(&mut self, graph: RegisterGraph, held: Held) -> Result<Option<Known>, WireError> {
        if !self.graphs.contains_key(&graph.graph) && self.graphs.len() >= limits::GRAPHS {
            let why = format!(
                "{} graphs are registered already; drop compiled functions (torch._dynamo.reset())",
                limits::GRAPHS
            );
            return Err(WireError::client(ErrorCode::Limit, why));
        }
        Ok(self.graphs.insert(graph.graph, Known { graph: Arc::new(graph), _held: held }))
    }

    /// As it was before.
    pub fn unregister(&mut self, graph: GraphId, before: Option<Known>) {
        match before {
            Some(before) => self.graphs.insert(graph, before),
            None => self.graphs.remove(&graph),
        };
    }

    /// A registered graph. Errors: UnknownGraph.
    pub fn known(&self, graph: GraphId) -> Result<&Arc<RegisterGraph>, WireError> {
        self.graphs.get(&graph).map(|known| &known.graph).ok_or_else(|| {
            WireError::client(
                ErrorCode::UnknownGraph,
                format!("graph {graph}: not registered; send RegisterGraph first"),
            )
        })
    }

    /// The part that a request names. Errors: UnknownGraph when it is none, or another graph's.
    pub fn part(&self, handle: PartHandle, named: (GraphId, u32)) -> Result<Arc<Part>, WireError> {
        let unknown = |why: String| WireError::client(ErrorCode::UnknownGraph, format!("handle {}: {why}", handle.0));
        let part =
            self.parts.get(&handle).ok_or_else(|| unknown("not of this lease; send PreparePart first".into()))?;
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        if (graph, index) != named {
            let expected = format!("stands for graph {} part {index}", graph.short());
            return Err(unknown(format!("{expected}, got graph {} part {}", named.0.short(), named.1)));
        }
        Ok(Arc::clone(part))
    }

    /// Parts of a graph.
    pub fn parts_of(&self, graph: GraphId) -> Vec<Arc<Part>> {
        self.parts.values().filter(|part| part.spec.part.graph == graph).cloned().collect()
    }
}

impl RegisterGraph {
    /// Bytes that the daemon keeps of it.
    pub fn kept_bytes(&self) -> usize {
        [&self.name, &self.dynamo_text, &self.joint_text, &self.fx_text, &self.parts_json]
            .map(String::capacity)
            .iter()
            .sum()
    }

    /// As a dump writes it down.
    pub fn record(&self) -> dump::GraphRecord<'_> {
        dump::GraphRecord {
            graph: self.graph,
            name: &self.name,
            direction: self.direction.name(),
            dynamo_text: &self.dynamo_text,
            joint_text: &self.joint_text,
            fx_text: &self.fx_text,
            parts_json: &self.parts_json,
        }
    }
}
