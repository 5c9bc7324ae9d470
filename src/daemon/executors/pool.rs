//! Who holds which executor: started when asked for, leased by one client at a time, kept warm, buried when they die.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::base::exit_status::Ended;
use crate::base::identity::Identity;
use crate::base::ids::{ClientId, ExecutorId};
use crate::base::limits;
use crate::base::process::{machine_bytes, no_thread};
use crate::base::sync::lock;
use crate::cuda::InUse;
use crate::daemon::executors::process::{Executor, Launch, Obituary, Terms, TorchProgram};
use crate::link::message::{LinkReply, LinkRequest};
use crate::protocol::control::LeaseSpec;
use crate::protocol::message::{CustomOpLibrary, ErrorCode, WireError};
use crate::shm::Counter;

/// Called once when an executor died, with its client if it had one; returns an error for each call that was running.
pub type OnDeath = Box<dyn Fn(&Arc<Executor>, Option<ClientId>, Ended) -> Vec<WireError> + Send + Sync>;

/// How long an executor is kept without a client.
#[derive(Clone, Copy, Debug)]
pub struct IdleTimes {
    /// One that computes on the CPU.
    pub timeout: Duration,
    /// One that holds memory of a device.
    pub on_device: Duration,
}

/// Every executor of the daemon.
pub struct Pool {
    launch: Launch,
    idle: IdleTimes,
    idle_bytes: u64,
    next_id: AtomicU64,
    executors: Mutex<BTreeMap<ExecutorId, Arc<Executor>>>,
    /// Counters of executors that are gone.
    past: Mutex<BTreeMap<&'static str, u64>>,
    on_death: OnDeath,
}

/// The file at a library's path. Errors: RuntimeMissing.
fn library(path: &Path) -> Result<Identity, WireError> {
    let facts = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    facts.map(|facts| Identity::of(&facts)).ok_or_else(|| {
        let path = path.display();
        let why = format!("onnxruntime library {path}: no such file; install onnxruntime or correct the path");
        WireError::client(ErrorCode::RuntimeMissing, why)
    })
}

impl Pool {
    /// An empty pool.
    pub fn new(launch: Launch, idle: IdleTimes, on_death: OnDeath) -> Self {
        Self {
            launch,
            idle,
            idle_bytes: limits::IDLE_BYTES.min(machine_bytes() / 4),
            next_id: AtomicU64::new(1),
            executors: Mutex::default(),
            past: Mutex::default(),
            on_death,
        }
    }

    /// An executor for `client`, and whether it is warm. Errors: Limit, RuntimeMissing, Internal.
    pub fn lease(self: &Arc<Self>, spec: &LeaseSpec, client: ClientId) -> Result<(Arc<Executor>, bool), WireError> {
        if spec.threads > limits::THREADS {
            let why = format!("threads: expected at most {}, got {}", limits::THREADS, spec.threads);
            return Err(WireError::client(ErrorCode::BadOption, why));
        }
        let torch_program = spec.libtorch.as_deref().map(TorchProgram::find).transpose()?;
        let (mut spec, library) = (spec.clone(), library(&spec.onnxruntime_library)?);
        let named = std::mem::take(&mut spec.custom_op_libraries);
        let terms = Terms { spec, library, torch_program };
        self.dismiss_outdated(&terms);
        if let Some(executor) = self.take_warm(&terms, &named, client) {
            return Ok((executor, true));
        }
        if lock(&self.executors).len() >= limits::EXECUTORS {
            let why = format!("{} executors run already; end a client or run `rust-ort stop`", limits::EXECUTORS);
            return Err(WireError::client(ErrorCode::Limit, why));
        }
        Ok((self.start(terms, client)?, false))
    }

    /// One that has loaded none but the named libraries: code of another client's would run in this client's process.
    fn take_warm(&self, terms: &Terms, named: &[CustomOpLibrary], client: ClientId) -> Option<Arc<Executor>> {
        let executors = lock(&self.executors);
        executors.values().find_map(|executor| {
            let mut lease = lock(&executor.lease);
            let is_free = lease.client.is_none() && !lease.dismissed && !executor.is_buried();
            let fits = executor.terms == *terms && lease.loaded.iter().all(|library| named.contains(library));
            (is_free && fits).then(|| {
                lease.client = Some(client);
                Arc::clone(executor)
            })
        })
    }

    /// The executor's own thread starts it, serves its link and buries it.
    fn start(self: &Arc<Self>, terms: Terms, client: ClientId) -> Result<Arc<Executor>, WireError> {
        let id = ExecutorId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (ready_to, ready) = mpsc::sync_channel(1);
        let pool = Arc::clone(self);
        std::thread::Builder::new()
            .name(format!("executor-{}", id.0))
            .spawn(move || pool.live(id, terms, client, &ready_to))
            .map_err(|error| WireError::fault(ErrorCode::Limit, format!("executor: {}", no_thread(&error))))?;
        ready.recv().map_err(|error| {
            WireError::fault(ErrorCode::Internal, format!("executor: its thread ended: {error}; run again"))
        })?
    }

    fn live(
        self: &Arc<Self>,
        id: ExecutorId,
        terms: Terms,
        client: ClientId,
        ready: &mpsc::SyncSender<Result<Arc<Executor>, WireError>>,
    ) {
        let (executor, life) = match Executor::start(&self.launch, id, terms, client) {
            Ok(started) => started,
            Err(error) => {
                // Whoever asked waits for one word.
                let _ = ready.send(Err(error));
                return;
            }
        };
        self.launch.libraries.remember_soon(&executor.terms.spec.onnxruntime_library);
        let executor = Arc::new(executor);
        lock(&self.executors).insert(id, Arc::clone(&executor));
        tracing::info!(executor = id.0, pid = executor.pid, version = executor.onnxruntime_version, "executor started");
        let _ = ready.send(Ok(Arc::clone(&executor)));
        self.bury(&executor, life.until_death(&executor));
    }

    /// Keeps its counters, lets the daemon look at what was running, wakes all who wait.
    fn bury(&self, executor: &Arc<Executor>, ended: Ended) {
        let cause = executor.cause(ended);
        lock(&self.executors).remove(&executor.id);
        {
            let mut past = lock(&self.past);
            for (name, value) in executor.counters.snapshot() {
                if ![Counter::SessionsLive.name(), Counter::FrozenBytes.name()].contains(&name) {
                    *past.entry(name).or_default() += value;
                }
            }
        }
        let (client, dismissed) = {
            let lease = lock(&executor.lease);
            (lease.client, lease.dismissed)
        };
        let calls = if dismissed {
            tracing::info!(executor = executor.id.0, cause, "executor ended");
            Vec::new()
        } else {
            tracing::error!(executor = executor.id.0, pid = executor.pid, cause, "executor lost");
            (self.on_death)(executor, client, ended)
        };
        executor.bury(Obituary { cause, calls });
    }

    /// Takes an executor back from a client that left: warm when it ends the client's calls in time, else killed.
    /// Whoever still waits for an answer to one of them gets it.
    pub fn give_back(&self, executor: &Arc<Executor>) {
        lock(&executor.lease).ending = true;
        let reset = executor.link.ask(&LinkRequest::Reset, limits::EXECUTOR_RESET);
        let warm = matches!(reset, Ok(LinkReply::Done));
        {
            let mut lease = lock(&executor.lease);
            lease.client = None;
            lease.ending = false;
            lease.idle_since = Instant::now();
            lease.dismissed |= !warm;
        }
        if !warm {
            tracing::warn!(executor = executor.id.0, ?reset, "executor did not let go of its client: killed");
            executor.kill();
        }
        self.dismiss_surplus();
    }

    /// Ends idle executors: those over the time, which is shorter for who holds memory of a device, over the number, over
    /// the memory; the longest idle first.
    pub fn dismiss_surplus(&self) {
        let mut idle: Vec<(Instant, Arc<Executor>)> = lock(&self.executors)
            .values()
            .filter_map(|executor| {
                let lease = lock(&executor.lease);
                (lease.client.is_none() && !lease.dismissed).then(|| (lease.idle_since, Arc::clone(executor)))
            })
            .collect();
        idle.sort_by_key(|(since, executor)| (std::cmp::Reverse(*since), executor.id));
        let mut bytes = 0;
        for (n, (since, executor)) in idle.into_iter().enumerate() {
            bytes += executor.resident_bytes();
            let at_most = match executor.counters.device_memory() {
                InUse::Nothing => self.idle.timeout,
                InUse::Bytes(_) | InUse::Unknown => self.idle.on_device,
            };
            if n >= limits::IDLE_EXECUTORS || bytes > self.idle_bytes || since.elapsed() >= at_most {
                self.dismiss(&executor);
            }
        }
    }

    /// Ends idle executors whose library or program is no longer the file that they loaded.
    fn dismiss_outdated(&self, now: &Terms) {
        for executor in self.list() {
            let Terms { spec, library, torch_program } = &executor.terms;
            let other_library = spec.onnxruntime_library == now.spec.onnxruntime_library && *library != now.library;
            let other_program = spec.libtorch == now.spec.libtorch && *torch_program != now.torch_program;
            if other_library || other_program {
                self.dismiss(&executor);
            }
        }
    }

    fn dismiss(&self, executor: &Executor) {
        {
            let mut lease = lock(&executor.lease);
            if lease.client.is_some() {
                return;
            }
            lease.dismissed = true;
        }
        Self::tell_to_end(executor);
    }

    /// Without waiting: one that takes no word, as a stopped process, is killed.
    fn tell_to_end(executor: &Executor) {
        if !executor.link.tell(&LinkRequest::Exit, None, Instant::now()) {
            executor.kill();
        }
    }

    /// Ends every executor, waiting a little, then killing.
    pub fn shut_down(&self) {
        let executors: Vec<_> = lock(&self.executors).values().cloned().collect();
        for executor in &executors {
            lock(&executor.lease).dismissed = true;
            Self::tell_to_end(executor);
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        while !lock(&self.executors).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for executor in &executors {
            executor.kill();
        }
    }

    /// Has those that hold memory of devices look how much, for [`limits::EXECUTOR_COUNT`] at most.
    pub fn count_device_memory(&self) {
        let deadline = Instant::now() + limits::EXECUTOR_COUNT;
        for executor in self.list() {
            let left = deadline.saturating_duration_since(Instant::now());
            if executor.counters.device_memory() != InUse::Nothing && !left.is_zero() {
                // Without an answer what it said last stands.
                let _ = executor.link.ask(&LinkRequest::CountDeviceMemory, left);
            }
        }
    }

    /// Living executors, by name.
    pub fn list(&self) -> Vec<Arc<Executor>> {
        lock(&self.executors).values().cloned().collect()
    }

    /// Counters of all executors, the dead included.
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut sum = lock(&self.past).clone();
        for executor in self.list() {
            for (name, value) in executor.counters.snapshot() {
                *sum.entry(name).or_default() += value;
            }
        }
        sum
    }
}
