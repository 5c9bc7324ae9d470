//! Executor processes: started when asked for, leased by one client at a time, kept warm, buried when they die.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::link::{Link, NoAnswer};
use super::process::{describe, machine_bytes, resident_bytes};
use super::{limits, lock};
use crate::executor::link as sockets;
use crate::ids::{ClientId, ExecutorId};
use crate::protocol::control::LeaseSpec;
use crate::protocol::link::{LinkReply, LinkRequest};
use crate::protocol::message::{ErrorCode, ErrorKind, WireError};
use crate::shm::{Counter, CounterPage};

/// What is known of a dead executor.
#[derive(Clone, Debug)]
pub struct Obituary {
    /// Such as "killed by signal 9".
    pub cause: String,
    /// One for each call or preparation that was going on.
    pub calls: Vec<WireError>,
}

/// Called once when an executor died, with its client if it had one; returns an error for each call that was running.
pub type OnDeath = Box<dyn Fn(&Arc<Executor>, Option<ClientId>, &str) -> Vec<WireError> + Send + Sync>;

/// One executor process.
#[derive(Debug)]
pub struct Executor {
    /// Its name.
    pub id: ExecutorId,
    /// Its process.
    pub pid: u32,
    /// What it was started with.
    pub spec: LeaseSpec,
    /// What it writes to.
    pub log: PathBuf,
    /// Such as "1.31.1".
    pub onnxruntime_version: String,
    /// What it counts.
    pub counters: CounterPage,
    /// Requests to it.
    pub link: Link,
    pidfd: OwnedFd,
    lease: Mutex<Lease>,
    obituary: Mutex<Option<Obituary>>,
    buried: Condvar,
}

#[derive(Debug)]
struct Lease {
    client: Option<ClientId>,
    n_clients: u64,
    idle_since: Instant,
    /// We end it, so its death is no loss.
    dismissed: bool,
}

impl Executor {
    /// The client that holds it.
    pub fn leased_to(&self) -> Option<ClientId> {
        lock(&self.lease).client
    }

    /// Asks and waits. Errors: the executor's own, or ExecutorLost with what the post-mortem found.
    pub fn ask(&self, request: &LinkRequest, fd: Option<std::os::fd::BorrowedFd<'_>>) -> Result<LinkReply, WireError> {
        match self.link.ask(request, fd, None) {
            Ok(LinkReply::Failed(mut error)) => {
                if error.log.is_empty() {
                    error.log = self.log.display().to_string();
                }
                Err(error)
            }
            Ok(reply) => Ok(reply),
            Err(NoAnswer::Lost | NoAnswer::Timeout) => Err(self.lost()),
        }
    }

    /// It is dead and its post-mortem is done.
    pub fn is_buried(&self) -> bool {
        lock(&self.obituary).is_some()
    }

    /// It is dead or dying: its link has ended.
    pub fn is_gone(&self) -> bool {
        self.link.is_closed()
    }

    /// Waits for the post-mortem. The error for a call that was not running in the end.
    pub fn lost(&self) -> WireError {
        let obituary = lock(&self.obituary);
        let (obituary, _) = self
            .buried
            .wait_timeout_while(obituary, limits::POST_MORTEM, |obituary| obituary.is_none())
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let cause = obituary.as_ref().map_or("not yet known", |obituary| obituary.cause.as_str());
        let mut error = WireError::new(
            ErrorKind::Fault,
            ErrorCode::ExecutorLost,
            format!("executor {} (pid {}) died: {cause}; run again, a new one starts by itself", self.id.0, self.pid),
        );
        if let Some(running) = obituary.as_ref().and_then(|obituary| obituary.calls.first()) {
            error = running.clone();
        }
        error.log = self.log.display().to_string();
        error
    }

    fn kill(&self) {
        // Fails only when it is dead; a pidfd never names another process.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Resident bytes, 0 when it is gone.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid)
    }
}

/// Every executor of the daemon.
pub struct Pool {
    program: PathBuf,
    log_folder: PathBuf,
    idle_timeout: Duration,
    idle_bytes: u64,
    next_id: AtomicU64,
    executors: Mutex<BTreeMap<ExecutorId, Arc<Executor>>>,
    /// Counters of executors that are gone.
    past: Mutex<BTreeMap<&'static str, u64>>,
    on_death: OnDeath,
}

impl Pool {
    /// An empty pool that starts executors as `<program> executor`, with logs in `log_folder`.
    pub fn new(program: PathBuf, log_folder: PathBuf, idle_timeout: Duration, on_death: OnDeath) -> Self {
        Self {
            program,
            log_folder,
            idle_timeout,
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
            return Err(WireError::new(ErrorKind::Client, ErrorCode::BadOption, why));
        }
        if !spec.onnxruntime_library.is_file() {
            let library = spec.onnxruntime_library.display();
            let why = format!("onnxruntime library {library}: no such file; install onnxruntime or correct the path");
            return Err(WireError::new(ErrorKind::Client, ErrorCode::RuntimeMissing, why));
        }
        if let Some(executor) = self.take_warm(spec, client) {
            return Ok((executor, true));
        }
        if lock(&self.executors).len() >= limits::EXECUTORS {
            let why = format!("{} executors run already; end a client or run `rust-ort stop`", limits::EXECUTORS);
            return Err(WireError::new(ErrorKind::Client, ErrorCode::Limit, why));
        }
        Ok((self.start(spec, client)?, false))
    }

    fn take_warm(&self, spec: &LeaseSpec, client: ClientId) -> Option<Arc<Executor>> {
        let executors = lock(&self.executors);
        executors.values().find_map(|executor| {
            let mut lease = lock(&executor.lease);
            let fits = executor.spec == *spec && lease.client.is_none() && !lease.dismissed && !executor.is_buried();
            fits.then(|| {
                lease.client = Some(client);
                lease.n_clients += 1;
                Arc::clone(executor)
            })
        })
    }

    /// The executor's own thread spawns it, reads its link and buries it: PR_SET_PDEATHSIG is bound to the thread that
    /// spawned, so that thread must live as long as the executor.
    fn start(self: &Arc<Self>, spec: &LeaseSpec, client: ClientId) -> Result<Arc<Executor>, WireError> {
        let internal = |what: &str, error: &dyn std::fmt::Display| {
            WireError::new(ErrorKind::Fault, ErrorCode::Internal, format!("executor: {what}: {error}"))
        };
        let id = ExecutorId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (ready_to, ready) = mpsc::sync_channel(1);
        let (pool, spec) = (Arc::clone(self), spec.clone());
        std::thread::Builder::new()
            .name(format!("executor-{}", id.0))
            .spawn(move || pool.live(id, spec, client, &ready_to))
            .map_err(|error| internal("no thread", &error))?;
        ready.recv().map_err(|error| internal("its thread ended", &error))?
    }

    fn live(
        self: &Arc<Self>,
        id: ExecutorId,
        spec: LeaseSpec,
        client: ClientId,
        ready: &mpsc::SyncSender<Result<Arc<Executor>, WireError>>,
    ) {
        let spawned = match self.spawn(id) {
            Ok(spawned) => spawned,
            Err(error) => {
                let why = format!("executor: {error}; see `rust-ort doctor`");
                let _ = ready.send(Err(WireError::new(ErrorKind::Fault, ErrorCode::Internal, why)));
                return;
            }
        };
        let Spawned { mut child, stream, counters, log } = spawned;
        let pid = child.id();
        let (link, mut receiver, timeouts, pidfd) = match connect(&child, stream) {
            Ok(connected) => connected,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                let _ = ready.send(Err(WireError::new(ErrorKind::Fault, ErrorCode::Internal, error.to_string())));
                return;
            }
        };
        let lease = Lease { client: Some(client), n_clients: 1, idle_since: Instant::now(), dismissed: false };
        let mut executor = Executor {
            id,
            pid,
            spec,
            log,
            onnxruntime_version: String::new(),
            counters,
            link,
            pidfd,
            lease: Mutex::new(lease),
            obituary: Mutex::new(None),
            buried: Condvar::new(),
        };
        match greet(&executor, &mut receiver) {
            Ok(version) => executor.onnxruntime_version = version,
            Err(mut error) => {
                let _ = child.kill();
                let ended = child.wait().map_or_else(|error| error.to_string(), describe);
                error.message = format!("{} (executor {ended})", error.message);
                error.log = executor.log.display().to_string();
                let _ = ready.send(Err(error));
                return;
            }
        }
        if let Err(error) = timeouts.set_read_timeout(None) {
            tracing::warn!(%error, "link timeout");
        }
        let executor = Arc::new(executor);
        lock(&self.executors).insert(id, Arc::clone(&executor));
        tracing::info!(executor = id.0, pid, version = executor.onnxruntime_version, "executor started");
        let _ = ready.send(Ok(Arc::clone(&executor)));
        if let Err(error) = executor.link.serve(&mut receiver) {
            tracing::warn!(executor = id.0, %error, "link ended");
        }
        drop(receiver);
        self.bury(&executor, &mut child);
    }

    fn spawn(&self, id: ExecutorId) -> std::io::Result<Spawned> {
        let (stream, theirs) = UnixStream::pair()?;
        let counters = CounterPage::create().map_err(std::io::Error::other)?;
        let start_log = self.log_folder.join(format!("executor-{}-{}.starting", std::process::id(), id.0));
        let output = File::create(&start_log)?;
        let child = Command::new(&self.program)
            .arg("executor")
            // The link is its standard input: the one way to hand a descriptor to a child without unsafe code.
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let log = self.log_folder.join(format!("executor-{}.log", child.id()));
        let log = if std::fs::rename(&start_log, &log).is_ok() { log } else { start_log };
        Ok(Spawned { child, stream, counters, log })
    }

    /// Waits for the process, keeps its counters, lets the daemon look at what was running, wakes all who wait.
    fn bury(&self, executor: &Arc<Executor>, child: &mut Child) {
        let ended = wait(child);
        let cause = ended.map_or_else(|error| error.to_string(), describe);
        lock(&self.executors).remove(&executor.id);
        {
            let mut past = lock(&self.past);
            for (name, value) in executor.counters.snapshot() {
                if name != Counter::SessionsLive.name() {
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
            (self.on_death)(executor, client, &cause)
        };
        *lock(&executor.obituary) = Some(Obituary { cause, calls });
        executor.buried.notify_all();
    }

    /// Takes an executor back from a client that left: warm when it ends the client's calls in time, else killed.
    pub fn give_back(&self, executor: &Arc<Executor>) {
        let reset = executor.link.ask(&LinkRequest::Reset, None, Some(limits::EXECUTOR_RESET));
        let warm = matches!(reset, Ok(LinkReply::Done));
        {
            let mut lease = lock(&executor.lease);
            lease.client = None;
            lease.idle_since = Instant::now();
            lease.dismissed |= !warm;
        }
        if !warm {
            tracing::warn!(executor = executor.id.0, ?reset, "executor did not let go of its client: killed");
            executor.kill();
        }
        self.dismiss_surplus();
    }

    /// Ends idle executors: those over the time, over the number, over the memory; the longest idle first.
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
            if n >= limits::IDLE_EXECUTORS || bytes > self.idle_bytes || since.elapsed() >= self.idle_timeout {
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
        executor.link.tell(&LinkRequest::Exit, None);
    }

    /// Ends every executor, waiting a little, then killing.
    pub fn shut_down(&self) {
        let executors: Vec<_> = lock(&self.executors).values().cloned().collect();
        for executor in &executors {
            lock(&executor.lease).dismissed = true;
            executor.link.tell(&LinkRequest::Exit, None);
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        while !lock(&self.executors).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        for executor in &executors {
            executor.kill();
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

type Connected = (Link, sockets::LinkReceiver<LinkReply>, UnixStream, OwnedFd);

/// The link, a handle to set its timeout by, and the process as a descriptor.
fn connect(child: &Child, stream: UnixStream) -> std::io::Result<Connected> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("pid out of range"))?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    stream.set_read_timeout(Some(limits::EXECUTOR_START))?;
    let timeouts = stream.try_clone()?;
    let (sender, receiver) = sockets::split(stream)?;
    Ok((Link::new(sender), receiver, timeouts, pidfd))
}

struct Spawned {
    child: Child,
    stream: UnixStream,
    counters: CounterPage,
    log: PathBuf,
}

/// Loads the runtime; the receiver is not yet served, so the one answer is read here. Errors: RuntimeMissing.
fn greet(executor: &Executor, receiver: &mut sockets::LinkReceiver<LinkReply>) -> Result<String, WireError> {
    let LeaseSpec { onnxruntime_library, threads, allow_spinning } = executor.spec.clone();
    let library = onnxruntime_library.display().to_string();
    let missing = |why: String| {
        let message = format!("onnxruntime library {library}: {why}; install onnxruntime or correct the path");
        WireError::new(ErrorKind::Client, ErrorCode::RuntimeMissing, message)
    };
    let hello = LinkRequest::Hello { library: onnxruntime_library, threads, allow_spinning };
    executor.link.tell(&hello, Some(executor.counters.fd()));
    match receiver.recv() {
        Ok(Some(received)) => match received.body {
            LinkReply::Ready { onnxruntime_version } => Ok(onnxruntime_version),
            LinkReply::Failed(error) => Err(error),
            other => Err(missing(format!("the executor answered {other:?}"))),
        },
        Ok(None) => Err(missing("the executor ended while loading it".to_owned())),
        Err(error) => Err(missing(error.to_string())),
    }
}

/// The link has ended, so the process is about to: killed when it is not.
fn wait(child: &mut Child) -> std::io::Result<ExitStatus> {
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()
}
