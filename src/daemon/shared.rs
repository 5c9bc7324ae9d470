//! What a daemon's connections share.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::client::Client;
use super::dumps::Dumps;
use super::executors::{IdleTimes, Launch, OnDeath, Pool, PostMortem};
use super::last_steps::LastSteps;
use super::ledger::Ledgers;
use super::libraries::KnownLibraries;
use super::places::Places;
use super::plans::{self, Plans};
use crate::base::ids::{ClientId, GraphId};
use crate::base::sync::lock;
use crate::base::{limits, process};
use crate::protocol::control::Notice;
use crate::shm::Counter;

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the socket; its rules are those of [`claim`](super::socket::claim).
    pub socket: PathBuf,
    /// Folder of logs, quarantine and plans.
    pub state_folder: PathBuf,
    /// Ends the daemon when it had no connection for so long, and an executor that had no client.
    pub idle_timeout: Duration,
    /// Ends an executor that had no client for so long and holds memory of a device; not later than `idle_timeout`.
    pub idle_on_device: Duration,
    /// What may be kept for all clients together; None: [`limits::all_kept_bytes`].
    pub memory_bytes: Option<u64>,
    /// Puts walls around executors.
    pub confine: bool,
    /// Takes off CPUs, niceness and soft limits of whoever started it: a client, not somebody who chose them.
    pub leaves_starter: bool,
}

/// Why the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a `Stop` request.
    Asked,
    /// By SIGTERM or SIGINT.
    Signal,
    /// No client came for the idle timeout.
    Idle,
    /// An upgrade put another program in its place, and its last client has left.
    Replaced,
}

impl Ended {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Ended::Asked => "rust-ort stop",
            Ended::Signal => "the daemon was told to end by a signal",
            Ended::Idle => "no client came for the idle timeout",
            Ended::Replaced => "its program was replaced, and no client is connected",
        }
    }
}

/// Connections after `Hello`.
pub type Clients = Mutex<BTreeMap<ClientId, Arc<Client>>>;

/// What is done when an executor died: its client's calls are looked at.
fn on_death(clients: &Arc<Clients>, post_mortem: &Arc<PostMortem>) -> OnDeath {
    let (clients, post_mortem) = (Arc::clone(clients), Arc::clone(post_mortem));
    Box::new(move |executor, client, ended| {
        let client = client.and_then(|client| lock(&clients).get(&client).cloned());
        client.map_or_else(Vec::new, |client| post_mortem.examine(&client, executor, ended))
    })
}

/// Everything that connections share.
pub struct Daemon {
    pub(super) socket: PathBuf,
    pub(super) log: PathBuf,
    pub(super) idle: IdleTimes,
    pub(super) started: Instant,
    pub(super) started_at: SystemTime,
    pub(super) program: process::Program,
    pub(super) pool: Arc<Pool>,
    pub(super) post_mortem: Arc<PostMortem>,
    pub(super) plans: Plans,
    pub(super) libraries: Arc<KnownLibraries>,
    pub(super) ledgers: Ledgers,
    pub(super) clients: Arc<Clients>,
    pub(super) dumps: Dumps,
    pub(super) places: Arc<Places>,
    pub(super) last_steps: LastSteps,
    next_client: AtomicU64,
    pub(super) exports: AtomicU64,
    pub(super) plan_hits: AtomicU64,
    pub(super) eager_nodes: AtomicU64,
    pub(super) ended: Mutex<Option<Ended>>,
    /// One byte wakes the listener.
    pub(super) wake: UnixStream,
}

impl Daemon {
    pub(super) fn new(config: Config, log: PathBuf, wake: UnixStream) -> Arc<Self> {
        let clients: Arc<Clients> = Arc::default();
        let post_mortem = Arc::new(PostMortem::new(config.state_folder.clone()));
        let folder = |name: &str| config.state_folder.join(name);
        let libraries = Arc::new(KnownLibraries::below(&config.state_folder));
        let launch = Launch {
            log_folder: folder("log"),
            code_folder: folder("code"),
            confine: config.confine,
            libraries: Arc::clone(&libraries),
        };
        let plans = Plans::open(
            &config.state_folder,
            plans::Bounds { bytes: limits::PLAN_BYTES, files: limits::PLAN_FILES },
            process::own_program(),
        );
        let idle =
            IdleTimes { timeout: config.idle_timeout, on_device: config.idle_on_device.min(config.idle_timeout) };
        Arc::new(Self {
            pool: Arc::new(Pool::new(launch, idle, on_death(&clients, &post_mortem))),
            plans,
            libraries,
            ledgers: Ledgers::new(config.memory_bytes.unwrap_or_else(limits::all_kept_bytes)),
            socket: config.socket,
            log,
            idle,
            started: Instant::now(),
            started_at: SystemTime::now(),
            program: process::Program::own(),
            post_mortem,
            clients,
            dumps: Dumps::default(),
            places: Places::new(),
            last_steps: LastSteps::default(),
            next_client: AtomicU64::new(1),
            exports: AtomicU64::new(0),
            plan_hits: AtomicU64::new(0),
            eager_nodes: AtomicU64::new(0),
            ended: Mutex::default(),
            wake,
        })
    }

    /// A name that was not given before.
    pub(super) fn next_client(&self) -> ClientId {
        ClientId(self.next_client.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn clients(&self) -> Vec<Arc<Client>> {
        lock(&self.clients).values().cloned().collect()
    }

    /// Ends the daemon, soon. The first reason stays.
    pub(super) fn end(&self, why: Ended) {
        lock(&self.ended).get_or_insert(why);
        // The listener looks by itself before long if this byte does not arrive.
        let _ = (&self.wake).write(&[0]);
    }

    /// Whether a client has this graph.
    pub(super) fn has_graph(&self, graph: GraphId) -> bool {
        self.clients().iter().any(|client| client.state().graphs.contains_key(&graph))
    }

    /// Graphs that clients have, each counted once: nothing stays of one that nobody has.
    pub(super) fn n_graphs(&self) -> usize {
        let mut graphs = BTreeSet::new();
        self.clients().iter().for_each(|client| graphs.extend(client.state().graphs.keys().copied()));
        graphs.len()
    }

    pub(super) fn count_export(&self) {
        self.exports.fetch_add(1, Ordering::Relaxed);
    }

    /// The plan of a graph, counted when there is one.
    pub(super) fn plan(&self, graph: GraphId) -> Option<Bytes> {
        let plan = self.plans.get(graph);
        self.plan_hits.fetch_add(plan.is_some().into(), Ordering::Relaxed);
        plan
    }

    pub(super) fn count_eager(&self, nodes: u32) {
        self.eager_nodes.fetch_add(nodes.into(), Ordering::Relaxed);
    }

    /// What the daemon counts beside its executors.
    pub(super) fn own_counters(&self) -> [(&'static str, u64); 3] {
        let eager = Counter::NodesInEager.name();
        [("exports", &self.exports), ("plan_hits", &self.plan_hits), (eager, &self.eager_nodes)]
            .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }

    /// Ends every open dump once it is written, all within [`limits::STOP_DUMPS`]. Returns those that miss something, with
    /// which files.
    pub(super) fn end_dumps(&self) -> Vec<(PathBuf, Vec<PathBuf>)> {
        let deadline = Instant::now() + limits::STOP_DUMPS;
        let runs: Vec<_> = self.clients().iter().filter_map(|client| client.state().dump.clone()).collect();
        let ended = runs.iter().map(|run| {
            let left = run.end_within(deadline.saturating_duration_since(Instant::now()));
            (run.path().to_owned(), left)
        });
        ended.filter(|(_, missing)| !missing.is_empty()).collect()
    }

    /// Tells every client that reads and ends its connection; writes open dumps to the end; ends every executor. The
    /// socket's file is gone by now and the lock is held: a client that does not read must not keep the next daemon out.
    pub(super) fn shut_down(&self, why: Ended) {
        let notice = Notice::ShuttingDown { reason: why.reason().to_owned() };
        let deadline = Instant::now() + limits::LAST_NOTICE;
        for client in self.clients() {
            client.notify_by(&notice, deadline);
            client.transport.shut_down();
        }
        self.end_dumps();
        self.pool.shut_down();
    }
}
