//! One executor process: started, asked, mourned.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::base::exit_status::{By, Ended, OomKills};
use crate::base::files::is_locked;
use crate::base::identity::Identity;
use crate::base::ids::{ClientId, ExecutorId};
use crate::base::limits;
use crate::base::process::{NO_TELEMETRY, no_thread, own_command, resident_bytes};
use crate::base::sync::lock;
use crate::confine::Confined;
use crate::daemon::executors::link::{Link, NoAnswer, Patience};
use crate::daemon::libraries::KnownLibraries;
use crate::daemon::logs;
use crate::daemon::paths;
use crate::link::message::{Hello, LinkReply, LinkRequest, SOURCES};
use crate::link::socket;
use crate::protocol::control::{self, LeaseSpec};
use crate::protocol::message::{CustomOpLibrary, ErrorCode, ErrorKind, WireError};
use crate::shm::CounterPage;

/// The program with libtorch in it, beside this one, unless this variable of the daemon's environment names another.
const TORCH_PROGRAM: &str = "rust-ort-torch";
const TORCH_PROGRAM_VARIABLE: &str = "RUST_ORT_TORCH_BINARY";

/// What is known of a dead executor.
#[derive(Clone, Debug)]
pub struct Obituary {
    /// Such as "killed from outside (signal 9, SIGKILL)".
    pub cause: String,
    /// One for each call or preparation that was going on.
    pub calls: Vec<WireError>,
}

/// How executors are started.
#[derive(Debug)]
pub struct Launch {
    /// Folder of their logs.
    pub log_folder: PathBuf,
    /// Folder of the code that they compile for devices.
    pub code_folder: PathBuf,
    /// Whether walls are put around them.
    pub confine: bool,
    /// Where the libraries that they load are remembered.
    pub libraries: Arc<KnownLibraries>,
}

/// Lines of a log that tell why an executor ended before it could say so itself.
const LAST_LINES: usize = 4;

/// What an executor holds. Who wants the same is served by a warm one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// As asked for, without libraries of custom operators: [`Holder::loaded`] tells those.
    pub spec: LeaseSpec,
    /// The library's file then: one that was built anew at the same path is another.
    pub library: Identity,
    /// The program that has libtorch, where that is asked for.
    pub torch_program: Option<TorchProgram>,
}

/// The program with libtorch in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchProgram {
    path: PathBuf,
    /// Folder of the libtorch that it is started with.
    folder: PathBuf,
    /// The files of both then.
    files: [Identity; 2],
}

/// What the thread of an executor owns of it.
pub struct Life {
    child: Child,
    oom_kills: OomKills,
    receiver: socket::LinkReceiver<LinkReply>,
}

impl Life {
    /// Serves the executor's link until it ends, waits for the process, killed when it does not end. Returns how it ended.
    pub fn until_death(mut self, executor: &Executor) -> Ended {
        let told = |reply| {
            // Anything else answers a request that needs no answer.
            if let LinkReply::GoesOn(work) = reply {
                executor.kill_since(&format!(
                    "{work}, which its client cancelled, went on for {} s: ONNX Runtime or a custom operator hangs",
                    limits::EXECUTOR_CANCEL.as_secs()
                ));
            }
        };
        if let Err(error) = executor.link.serve(&mut self.receiver, told) {
            tracing::warn!(executor = executor.id.0, %error, "link ended");
        }
        drop(self.receiver);
        Ended::of(wait(&mut self.child), self.oom_kills)
    }
}

/// One executor process.
#[derive(Debug)]
pub struct Executor {
    /// Its name.
    pub id: ExecutorId,
    /// Its process.
    pub pid: u32,
    /// What it was started with.
    pub terms: Terms,
    /// What it writes to.
    pub log: PathBuf,
    /// Such as "1.31.1".
    pub onnxruntime_version: String,
    /// What holds it.
    pub confined: Confined,
    /// What it counts.
    pub counters: CounterPage,
    /// Requests to it.
    pub link: Link,
    /// Who holds it.
    pub(super) lease: Mutex<Holder>,
    pidfd: OwnedFd,
    /// Why it was killed here.
    killed_since: OnceLock<String>,
    obituary: Mutex<Option<Obituary>>,
    buried: Condvar,
}

/// An executor's lease.
#[derive(Debug)]
pub struct Holder {
    /// The holder.
    pub client: Option<ClientId>,
    /// The holder has left: what is its is being ended, and it may ask for nothing more.
    pub ending: bool,
    /// Meaningful without a holder.
    pub idle_since: Instant,
    /// We end it, so its death is no loss.
    pub dismissed: bool,
    /// Libraries of custom operators that it was to load, for this holder or one before: a process unloads none.
    pub loaded: BTreeSet<CustomOpLibrary>,
}

impl Executor {
    /// Starts a process that has its runtime loaded, leased to `client`. PR_SET_PDEATHSIG is bound to the calling
    /// thread, which must live as long as the executor. Errors: RuntimeMissing, Internal.
    pub fn start(launch: &Launch, id: ExecutorId, terms: Terms, client: ClientId) -> Result<(Self, Life), WireError> {
        let internal = |error: std::io::Error| {
            let why = format!("executor: {error}; see `rust-ort doctor`");
            WireError::fault(ErrorCode::Internal, why)
        };
        let counters = CounterPage::create().map_err(std::io::Error::other).map_err(internal)?;
        let torch_program = terms.torch_program.as_ref();
        let mut command = torch_program.map_or_else(own_command, |program| Command::new(&program.path));
        let torch_folder = torch_program.iter().map(|program| &program.folder);
        let given = take_environment(&mut command, terms.spec.environment.as_ref());
        look_in(&mut command, torch_folder.chain(&terms.spec.library_folders), given);
        // Not the daemon's: devices are named by their UUIDs, but of MIG's a process sees only one that is asked for.
        match &terms.spec.cuda_visible_devices {
            Some(devices) => command.env("CUDA_VISIBLE_DEVICES", devices),
            None => command.env_remove("CUDA_VISIBLE_DEVICES"),
        };
        // With it, torch's attention by cuDNN takes another layout of logsumexp for granted than it tells.
        command.env_remove("TORCH_CUDNN_SDPA_AVOID_RECOMPILE");
        command.env(NO_TELEMETRY.0, NO_TELEMETRY.1);
        let oom_kills = OomKills::now();
        let started = launch.spawn(id, command);
        let (mut child, stream, log) = started.map_err(|error| match torch_program {
            Some(program) => refused(&program.path, &error.to_string()),
            None => internal(error),
        })?;
        let Ends { sender, mut receiver, timeouts, pidfd } = connect(&child, stream).map_err(|error| {
            let _ = end(&mut child);
            internal(error)
        })?;
        let lease = Holder {
            client: Some(client),
            ending: false,
            idle_since: Instant::now(),
            dismissed: false,
            loaded: BTreeSet::new(),
        };
        let mut executor = Self {
            id,
            pid: child.id(),
            terms,
            log,
            onnxruntime_version: String::new(),
            confined: Confined::not("it is not known yet"),
            counters,
            link: Link::new(sender),
            lease: Mutex::new(lease),
            pidfd,
            killed_since: OnceLock::new(),
            obituary: Mutex::new(None),
            buried: Condvar::new(),
        };
        match greet(launch, &executor, &mut receiver, || {
            format!("executor {}{}", Ended::of(end(&mut child), oom_kills), last_lines(&executor.log))
        }) {
            Ok((version, confined)) => (executor.onnxruntime_version, executor.confined) = (version, confined),
            Err(mut error) => {
                let _ = end(&mut child);
                error.log = executor.log.display().to_string();
                return Err(error);
            }
        }
        if let Err(error) = timeouts.set_read_timeout(None) {
            tracing::warn!(%error, "link timeout");
        }
        Ok((executor, Life { child, oom_kills, receiver }))
    }

    /// The post-mortem is done: wakes all who wait for it.
    pub fn bury(&self, obituary: Obituary) {
        *lock(&self.obituary) = Some(obituary);
        self.buried.notify_all();
    }

    /// The client that holds it.
    pub fn leased_to(&self) -> Option<ClientId> {
        lock(&self.lease).client
    }

    /// Notes that it is about to load these.
    pub fn loads(&self, libraries: &[CustomOpLibrary]) {
        lock(&self.lease).loaded.extend(libraries.iter().cloned());
    }

    /// It is leased to `client`, which has not left.
    fn serves(&self, client: ClientId) -> bool {
        let lease = lock(&self.lease);
        lease.client == Some(client) && !lease.ending
    }

    /// Asks for its client and waits for as long as the executor lives. Errors: the executor's own, ExecutorLost with
    /// what the post-mortem found, or BadState when the client has left.
    pub fn ask(&self, client: ClientId, request: &LinkRequest) -> Result<LinkReply, WireError> {
        self.ask_with(client, request, None)
    }

    /// As [`Executor::ask`], of a request that carries a descriptor.
    pub fn ask_with(
        &self,
        client: ClientId,
        request: &LinkRequest,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<LinkReply, WireError> {
        self.answer(self.link.ask_if(|| self.serves(client), request, fd, &Patience::ENDLESS), client)
    }

    /// As [`Executor::ask`], of what a sound executor answers at once, `what` in words: one that has not within
    /// [`limits::EXECUTOR_ANSWER`] is killed, so that whatever waits for it ends. `wanted` is looked at meanwhile: BadState
    /// when it says no.
    pub fn ask_quickly(
        &self,
        client: ClientId,
        (what, request): (&str, &LinkRequest),
        fd: Option<BorrowedFd<'_>>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<LinkReply, WireError> {
        let patience = Patience { deadline: Some(Instant::now() + limits::EXECUTOR_ANSWER), wanted };
        let reply = self.link.ask_if(|| self.serves(client), request, fd, &patience);
        if reply == Err(NoAnswer::Timeout) {
            self.kill_since(&format!("it did not answer {what} within {} s", limits::EXECUTOR_ANSWER.as_secs()));
        }
        self.answer(reply, client)
    }

    fn answer(&self, reply: Result<LinkReply, NoAnswer>, client: ClientId) -> Result<LinkReply, WireError> {
        match reply {
            Ok(LinkReply::Failed(mut error)) => {
                if error.log.is_empty() {
                    error.log = self.log.display().to_string();
                }
                Err(error)
            }
            Ok(reply) => Ok(reply),
            Err(NoAnswer::Lost | NoAnswer::Timeout) => Err(self.lost()),
            Err(NoAnswer::NotAllowed) => {
                let why = format!("client {} has left; its executor works for it no more", client.0);
                Err(WireError::client(ErrorCode::BadState, why))
            }
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

    /// Ends it at once, when it lives, and has its death told so: "killed since …".
    fn kill_since(&self, why: &str) {
        tracing::error!(executor = self.id.0, pid = self.pid, why, "executor killed");
        let _ = self.killed_since.set(why.to_owned()); // the first reason stands
        self.kill();
    }

    /// Why it ended so, in words.
    pub fn cause(&self, ended: Ended) -> String {
        let here = self.killed_since.get().filter(|_| ended.by() == By::Other);
        here.map_or_else(|| ended.cause(), |why| format!("killed since {why}"))
    }

    /// Ends it at once, when it lives.
    pub fn kill(&self) {
        // Fails only when it is dead; a pidfd never names another process.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Resident bytes, 0 when it is gone.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid)
    }
}

impl Launch {
    /// The process, our end of its link, its log.
    fn spawn(&self, id: ExecutorId, mut command: Command) -> std::io::Result<(Child, UnixStream, PathBuf)> {
        let (stream, theirs) = UnixStream::pair()?;
        let stem = format!("executor-{}-{}", std::process::id(), id.0);
        // A clean-up may have removed it since the daemon started.
        paths::make_private(&self.log_folder).map_err(|error| logs::at(&self.log_folder, &error))?;
        // Its lock goes with the standard output that the child is given.
        let (start_log, output) = logs::open(&self.log_folder, &stem, "starting")?;
        output.set_len(0)?;
        let child = command
            .arg("executor")
            // The link is its standard input: the one way to hand a descriptor to a child without unsafe code.
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock => std::io::Error::other(no_thread(&error)),
                _ => logs::at(Path::new(command.get_program()), &error),
            })?;
        let log = self.log_folder.join(format!("executor-{}.log", child.id()));
        let is_free = !is_locked(&log);
        let log = if is_free && std::fs::rename(&start_log, &log).is_ok() { log } else { start_log };
        Ok((child, stream, log))
    }
}

impl TorchProgram {
    /// The one beside this program, or the one that the environment names, for a libtorch. Errors: RuntimeMissing.
    pub fn find(libtorch: &Path) -> Result<Self, WireError> {
        let folder = libtorch.display();
        let Ok(library) = Identity::at(&libtorch.join("libtorch_cpu.so")) else {
            let why = format!("libtorch {folder}: no libtorch_cpu.so is there; name the lib folder of a torch");
            return Err(WireError::client(ErrorCode::RuntimeMissing, why));
        };
        let beside = || Some(std::env::current_exe().ok()?.parent()?.join(TORCH_PROGRAM));
        let named = std::env::var_os(TORCH_PROGRAM_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = named.or_else(beside).unwrap_or_else(|| TORCH_PROGRAM.into());
        match std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file) {
            Some(facts) => Ok(Self { path, folder: libtorch.to_owned(), files: [Identity::of(&facts), library] }),
            None => Err(refused(&path, "no such file")),
        }
    }
}

/// Gives a process the client's variables in the place of the daemon's. Returns its LD_LIBRARY_PATH.
fn take_environment(command: &mut Command, of_client: Option<&BTreeMap<String, String>>) -> Option<OsString> {
    let Some(given) = of_client else { return std::env::var_os("LD_LIBRARY_PATH") };
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(control::of_client)) {
        command.env_remove(name);
    }
    command.envs(given);
    given.get("LD_LIBRARY_PATH").map(OsString::from)
}

/// Has a process look for libraries in these folders first.
fn look_in<'a>(command: &mut Command, folders: impl Iterator<Item = &'a PathBuf>, given: Option<OsString>) {
    let given = given.filter(|given| !given.is_empty());
    let all: Vec<PathBuf> = folders.cloned().chain(given.iter().flat_map(std::env::split_paths)).collect();
    // No colon is in their names: they came as a list of such.
    if let Ok(path) = std::env::join_paths(all).map_err(|error| tracing::warn!(%error, "library folders"))
        && !path.is_empty()
    {
        command.env("LD_LIBRARY_PATH", path);
    }
}

fn refused(program: &Path, why: &str) -> WireError {
    let program = program.display();
    let message = format!(
        "executor with libtorch: {program}: {why}; run `make build-torch`, or install rust-ort with \
         RUST_ORT_BUILD_TORCH=1, or name it in {TORCH_PROGRAM_VARIABLE} and run `rust-ort stop`"
    );
    WireError::client(ErrorCode::RuntimeMissing, message)
}

/// The end of a log, in one line; empty when there is nothing in it.
fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
    if last.is_empty() { last } else { format!("; its log ends: {last}") }
}

/// Kills it; how it ended.
fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    // Fails only when it is dead.
    let _ = child.kill();
    child.wait()
}

struct Ends {
    sender: socket::LinkSender<LinkRequest>,
    receiver: socket::LinkReceiver<LinkReply>,
    /// The same socket, to set its timeout by.
    timeouts: UnixStream,
    /// Never names another process.
    pidfd: OwnedFd,
}

fn connect(child: &Child, stream: UnixStream) -> std::io::Result<Ends> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::other("pid out of range"))?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    stream.set_read_timeout(Some(limits::EXECUTOR_START))?;
    let timeouts = stream.try_clone()?;
    let (sender, receiver) = socket::split(stream)?;
    Ok(Ends { sender, receiver, timeouts, pidfd })
}

/// Loads the runtime; the receiver is not yet served, so the one answer is read here. `ended`: ends it and tells how, for
/// one that does not say itself why it cannot. Errors: RuntimeMissing.
fn greet(
    launch: &Launch,
    executor: &Executor,
    receiver: &mut socket::LinkReceiver<LinkReply>,
    ended: impl FnOnce() -> String,
) -> Result<(String, Confined), WireError> {
    let LeaseSpec { onnxruntime_library, threads, allow_spinning, niceness, libtorch, .. } =
        executor.terms.spec.clone();
    let library = onnxruntime_library.display().to_string();
    let missing = |why: String| {
        let message = match &libtorch {
            None => format!("onnxruntime library {library}: {why}; install onnxruntime or correct the path"),
            Some(folder) => format!(
                "executor with onnxruntime library {library} and libtorch {}: {why}; rust-ort-torch runs with the torch \
                 that it was built for: run `make build-torch` again where that is another",
                folder.display()
            ),
        };
        WireError::client(ErrorCode::RuntimeMissing, format!("{message} ({})", ended()))
    };
    let hello = LinkRequest::Hello(Hello {
        sources: SOURCES.to_owned(),
        library: onnxruntime_library,
        threads,
        allow_spinning,
        niceness,
        libtorch: libtorch.is_some(),
        code: launch.code_folder.clone(),
        confine: launch.confine,
    });
    if !executor.link.tell(&hello, Some(executor.counters.fd()), Instant::now() + limits::EXECUTOR_START) {
        return Err(missing("the executor ended before it was asked to load it".to_owned()));
    }
    match receiver.recv() {
        Ok(Some(received)) => match received.body {
            LinkReply::Ready { onnxruntime_version, confined } => Ok((onnxruntime_version, confined)),
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
