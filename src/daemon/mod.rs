//! The daemon: listens, gives each connection a thread, leases executors, and survives everything its clients and
//! executors do. The way of a request: [`listener`] → `connection` → `handler`.

mod client;
mod connection;
mod dumps;
mod errors;
mod executor;
mod handler;
mod identity;
mod leases;
mod ledger;
pub mod limits;
mod link;
pub mod listener;
mod nodes;
mod old_state;
pub mod paths;
pub mod peer;
mod places;
mod post_mortem;
pub mod process;
mod quarantine;
mod releases;
pub mod socket;
pub mod status;
mod transport;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use client::Client;
use leases::Pool;
use ledger::{Bounds, Ledger, Unit};
use places::Places;
use quarantine::Quarantine;
use status::{LastSteps, stamp};

use crate::ids::{ClientId, GraphId};
use crate::plans::{self, Plans};
use crate::protocol::control::Notice;
use crate::shm::Counter;

/// The lock, also after a thread that held it panicked: each critical section leaves its data whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], but given up once `wanted` says no; it is asked when another thread has the lock.
fn lock_while<T>(mutex: &Mutex<T>, wanted: impl Fn() -> bool) -> Option<MutexGuard<'_, T>> {
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
fn lock_by<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    lock_while(mutex, || Instant::now() < deadline)
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
    fn reason(self) -> &'static str {
        match self {
            Ended::Asked => "rust-ort stop",
            Ended::Signal => "the daemon was told to end by a signal",
            Ended::Idle => "no client came for the idle timeout",
            Ended::Replaced => "its program was replaced, and no client is connected",
        }
    }
}

/// What all clients hold.
pub struct Ledgers {
    memory: Arc<Ledger>,
    segments: Arc<Ledger>,
    segment_bytes: Arc<Ledger>,
}

impl Ledgers {
    /// Empty. `memory_bytes`: what may be kept for all clients together.
    fn new(memory_bytes: u64) -> Self {
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

/// Everything that connections share.
pub struct Daemon {
    socket: PathBuf,
    state_folder: PathBuf,
    log: PathBuf,
    idle_timeout: Duration,
    started: Instant,
    started_at: SystemTime,
    program: process::Program,
    pool: Arc<Pool>,
    quarantine: Quarantine,
    plans: Plans,
    ledgers: Ledgers,
    clients: Mutex<BTreeMap<ClientId, Arc<Client>>>,
    places: Arc<Places>,
    graphs: Mutex<BTreeSet<GraphId>>,
    last_steps: LastSteps,
    next: AtomicU64,
    exports: AtomicU64,
    plan_hits: AtomicU64,
    eager_nodes: AtomicU64,
    ended: Mutex<Option<Ended>>,
    /// One byte wakes the listener.
    wake: UnixStream,
}

impl Daemon {
    fn new(config: listener::Config, log: PathBuf, wake: UnixStream) -> Arc<Self> {
        Arc::new_cyclic(|daemon: &Weak<Daemon>| {
            let daemon = daemon.clone();
            let on_death: leases::OnDeath = Box::new(move |executor, client, cause| {
                let Some(daemon) = daemon.upgrade() else { return Vec::new() };
                let client = client.and_then(|client| lock(&daemon.clients).get(&client).cloned());
                client.map_or_else(Vec::new, |client| post_mortem::examine(&daemon, &client, executor, cause))
            });
            let launch = executor::Launch { log_folder: config.state_folder.join("log") };
            Self {
                pool: Arc::new(Pool::new(launch, config.idle_timeout, on_death)),
                plans: Plans::open(
                    &config.state_folder,
                    plans::Bounds { bytes: limits::PLAN_BYTES, files: limits::PLAN_FILES },
                    process::own_program(),
                ),
                ledgers: Ledgers::new(config.memory_bytes.unwrap_or_else(limits::all_kept_bytes)),
                socket: config.socket,
                state_folder: config.state_folder,
                log,
                idle_timeout: config.idle_timeout,
                started: Instant::now(),
                started_at: SystemTime::now(),
                program: process::Program::own(),
                quarantine: Quarantine::default(),
                clients: Mutex::default(),
                places: Places::new(),
                graphs: Mutex::default(),
                last_steps: LastSteps::default(),
                next: AtomicU64::new(1),
                exports: AtomicU64::new(0),
                plan_hits: AtomicU64::new(0),
                eager_nodes: AtomicU64::new(0),
                ended: Mutex::default(),
                wake,
            }
        })
    }

    /// A number that was not given before.
    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn clients(&self) -> Vec<Arc<Client>> {
        lock(&self.clients).values().cloned().collect()
    }

    /// Ends the daemon, soon. The first reason stays.
    fn end(&self, why: Ended) {
        lock(&self.ended).get_or_insert(why);
        // The listener looks by itself before long if this byte does not arrive.
        let _ = (&self.wake).write(&[0]);
    }

    /// Notes a graph; whether it was known.
    fn saw_graph(&self, graph: GraphId) -> bool {
        !lock(&self.graphs).insert(graph)
    }

    fn n_graphs(&self) -> usize {
        lock(&self.graphs).len()
    }

    fn count_export(&self) {
        self.exports.fetch_add(1, Ordering::Relaxed);
    }

    /// The plan of a graph, counted when there is one.
    fn plan(&self, graph: GraphId) -> Option<Bytes> {
        let plan = self.plans.get(graph);
        self.plan_hits.fetch_add(plan.is_some().into(), Ordering::Relaxed);
        plan
    }

    fn count_eager(&self, nodes: u32) {
        self.eager_nodes.fetch_add(nodes.into(), Ordering::Relaxed);
    }

    /// What the daemon counts beside its executors.
    fn own_counters(&self) -> [(&'static str, u64); 3] {
        let eager = Counter::NodesInEager.name();
        [("exports", &self.exports), ("plan_hits", &self.plan_hits), (eager, &self.eager_nodes)]
            .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }

    /// Ends every open dump once it is written, all within [`limits::STOP_DUMPS`]. Returns those that miss something, with
    /// how many files.
    fn end_dumps(&self) -> Vec<(PathBuf, usize)> {
        let deadline = Instant::now() + limits::STOP_DUMPS;
        let runs: Vec<_> = self.clients().iter().filter_map(|client| client.state().dump.clone()).collect();
        let ended = runs.iter().map(|run| {
            let left = run.end_within(deadline.saturating_duration_since(Instant::now()));
            (run.path().to_owned(), left.len())
        });
        ended.filter(|(_, n_missing)| *n_missing > 0).collect()
    }

    /// Tells every client that reads and ends its connection; writes open dumps to the end; ends every executor. The
    /// socket's file is gone by now and the lock is held: a client that does not read must not keep the next daemon out.
    fn shut_down(&self, why: Ended) {
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
