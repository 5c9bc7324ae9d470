//! What the daemon knows of one client. The connection's thread changes it; the burying thread of its executor reads it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use super::errors::{client as client_error, fault};
use super::executor::Executor;
use super::nodes::NodeTables;
use super::transport::Transport;
use super::{limits, lock};
use crate::dump;
use crate::ids::{ClientId, GraphId, PartHandle};
use crate::nodes::PartNodes;
use crate::protocol::control::{Hello, Notice, PreparePart, RegisterGraph};
use crate::protocol::message::{ErrorCode, ValueSpec, WireError};
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
    /// Its model, read when its nodes are first asked for.
    nodes: OnceLock<Result<PartNodes, String>>,
}

/// Nodes of a part that are being run.
#[derive(Clone, Debug)]
pub struct RunningNodes {
    /// The node, or the first and the last of several.
    pub node: String,
    /// Their model, as a part of their own.
    pub part: Arc<Part>,
    /// The call.
    pub record: CallRecord,
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
    /// The nodes that are being run, as a part of their own: name, part, call.
    pub running_nodes: Option<RunningNodes>,
    /// Comparisons of nodes that go on.
    pub node_tables: NodeTables,
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
        (self.preparing, self.observing, self.running_nodes) = (None, None, None);
    }

    /// Forgets what went with the executor.
    pub fn end_lease(&mut self) {
        self.executor = None;
        self.open_lanes.clear();
        self.node_tables = NodeTables::default();
        let parts = std::mem::take(&mut self.parts);
        self.kept_bytes -= parts.values().map(|part| part.kept_bytes()).sum::<usize>();
    }

    /// Makes a graph known. One that is compiled again goes by its newest name. Errors: Limit.
    pub(super) fn register(&mut self, graph: RegisterGraph) -> Result<(), WireError> {
        let old = self.graphs.get(&graph.graph);
        if old.is_some_and(|old| old.name == graph.name) {
            return Ok(());
        }
        if old.is_none() && self.graphs.len() >= limits::GRAPHS {
            let why = format!("{} graphs are registered already; connect anew", limits::GRAPHS);
            return Err(client_error(ErrorCode::Limit, why));
        }
        let freed = old.map_or(0, |old| old.kept_bytes());
        self.kept_bytes -= freed;
        self.keep(graph.kept_bytes()).inspect_err(|_| self.kept_bytes += freed)?;
        self.graphs.insert(graph.graph, Arc::new(graph));
        Ok(())
    }

    /// A registered graph. Errors: UnknownGraph.
    pub(super) fn known(&self, graph: GraphId) -> Result<&Arc<RegisterGraph>, WireError> {
        self.graphs.get(&graph).ok_or_else(|| {
            client_error(ErrorCode::UnknownGraph, format!("graph {graph}: not registered; send RegisterGraph first"))
        })
    }

    /// The part that a request names. Errors: UnknownGraph when it is none, or another graph's.
    pub(super) fn part(&self, handle: PartHandle, named: (GraphId, u32)) -> Result<Arc<Part>, WireError> {
        let unknown = |why: String| client_error(ErrorCode::UnknownGraph, format!("handle {}: {why}", handle.0));
        let part =
            self.parts.get(&handle).ok_or_else(|| unknown("not of this lease; send PreparePart first".into()))?;
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        if (graph, index) != named {
            let expected = format!("stands for graph {} part {index}", graph.short());
            return Err(unknown(format!("{expected}, got graph {} part {}", named.0.short(), named.1)));
        }
        Ok(Arc::clone(part))
    }

    /// Counts bytes that the daemon keeps. Errors: Limit above [`limits::KEPT_BYTES`].
    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), WireError> {
        if self.kept_bytes + bytes > limits::KEPT_BYTES {
            let why = format!("models and texts of this client: expected at most {} bytes in all", limits::KEPT_BYTES);
            return Err(client_error(ErrorCode::Limit, why));
        }
        self.kept_bytes += bytes;
        Ok(())
    }

    /// The folder of a graph in the open dump, written when it is not there. A dump may be opened after the graph was
    /// registered.
    pub(super) fn dump_graph(&mut self, id: GraphId) -> Result<String, WireError> {
        if let Some((folder, _)) = self.dumped.get(&id) {
            return Ok(folder.clone());
        }
        let graph = Arc::clone(self.known(id)?);
        let run = self.dump.clone().ok_or_else(|| fault(ErrorCode::Internal, "no dump is open"))?;
        let folder = run.graph(&graph.record())?;
        self.dumped.insert(id, (folder.clone(), Default::default()));
        Ok(folder)
    }

    /// The folder of the part's graph in the open dump; part and graph are written when they are not there. Errors: Dump.
    pub(super) fn dump_part(&mut self, part: &Part) -> Result<DumpedPart, WireError> {
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        let folder = self.dump_graph(graph)?;
        let new = self.dumped.get_mut(&graph).is_some_and(|(_, parts)| parts.insert(index));
        if let Some(run) = self.dump.clone().filter(|_| new) {
            run.part(&folder, index, &part.spec.part.model, &part.spec.provenance_json)?;
        }
        Ok(DumpedPart { name: folder, new })
    }
}

/// Where a part is in the open dump.
pub(super) struct DumpedPart {
    /// The graph's folder.
    pub(super) name: String,
    /// It was written just now.
    pub(super) new: bool,
}

impl Part {
    /// A part and its model's values.
    pub(super) fn new(spec: PreparePart, inputs: Vec<ValueSpec>, outputs: Vec<ValueSpec>) -> Self {
        Self { spec, inputs, outputs, nodes: OnceLock::new() }
    }

    /// Its model, to be cut into nodes. Errors: BadModel.
    pub(super) fn nodes(&self) -> Result<&PartNodes, WireError> {
        let PreparePart { part, provenance_json } = &self.spec;
        let read = || PartNodes::read(&part.model, &part.named_values, provenance_json);
        let nodes = self.nodes.get_or_init(|| read().map_err(|error| error.to_string()));
        nodes.as_ref().map_err(|why| client_error(ErrorCode::BadModel, format!("model: {why}")))
    }

    /// Bytes that the daemon keeps of it.
    pub(super) fn kept_bytes(&self) -> usize {
        self.spec.part.model.len() + self.spec.provenance_json.len()
    }
}

impl RegisterGraph {
    /// Bytes that the daemon keeps of it.
    pub(super) fn kept_bytes(&self) -> usize {
        self.dynamo_text.len() + self.joint_text.len() + self.fx_text.len() + self.parts_json.len()
    }

    /// As a dump writes it down.
    pub(super) fn record(&self) -> dump::GraphRecord<'_> {
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
