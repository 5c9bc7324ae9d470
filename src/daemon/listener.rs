//! The socket: one daemon a path, whoever starts how many; then a thread a connection until the daemon ends.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interprocess::local_socket::traits::Listener as _;
use interprocess::local_socket::{
    GenericFilePath, Listener, ListenerNonblockingMode, ListenerOptions, Stream, ToFsName as _,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use super::errors::client as client_error;
use super::old_state;
use super::paths::{self, PathError};
use super::peer::Peer;
use super::transport::Transport;
use super::{Daemon, Ended, connection, limits, lock};
use crate::protocol::control::Reply;
use crate::protocol::message::ErrorCode;
use crate::protocol::wire;

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the socket; its folder's rules are those of [`paths::prepare_socket_folder`].
    pub socket: PathBuf,
    /// Folder of logs, quarantine and plans.
    pub state_folder: PathBuf,
    /// Ends the daemon when it had no connection for so long, and an executor that had no client.
    pub idle_timeout: Duration,
}

/// Why no daemon runs.
#[derive(Debug, Error)]
pub enum ServeError {
    /// See [`PathError`].
    #[error(transparent)]
    Path(#[from] PathError),
    /// A daemon holds the lock but does not answer.
    #[error("{lock}: another daemon holds it but does not answer on its socket; see its log, or end it")]
    Mute {
        /// The lock file.
        lock: PathBuf,
    },
    /// The system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        error: io::Error,
    },
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> ServeError {
    move |error| ServeError::Io { what: what.to_string(), error }
}

/// How `serve` went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It served until then.
    Until(Ended),
    /// Another daemon serves this socket.
    Elsewhere,
}

/// Serves until told to end. Errors: [`ServeError`]; the socket is gone then.
pub fn serve(config: Config) -> Result<Served, ServeError> {
    paths::prepare_socket_folder(&config.socket)?;
    let Some(_held) = take_lock(&config.socket)? else { return Ok(Served::Elsewhere) };
    let log = start_log(&config.state_folder)?;
    old_state::remove(&config.state_folder);
    let (wake, woken) = UnixStream::pair().map_err(failed("wake pipe"))?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let wake = wake.try_clone().map_err(failed("wake pipe"))?;
        // A signal says 1, a request says 0.
        signal_hook::low_level::pipe::register(signal, wake).map_err(failed("signal handler"))?;
    }
    let program = std::env::current_exe().map_err(failed("path of this program"))?;
    let socket = config.socket.clone();
    let listener = bind(&socket).map_err(failed(socket.display()))?;
    let daemon = Daemon::new(config, log, program, wake);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "serving");
    let ended = accept(&daemon, &listener, &woken);
    tracing::info!(reason = ended.reason(), "ending");
    drop(listener);
    // Gone before the lock is, so that no newer daemon's socket is removed.
    let _ = std::fs::remove_file(&socket);
    daemon.shut_down(ended);
    Ok(Served::Until(ended))
}

/// Whether a daemon of this socket lives: it holds its lock until its process has ended.
pub fn is_held(socket: &Path) -> bool {
    File::open(lock_path(socket)).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

fn lock_path(socket: &Path) -> PathBuf {
    socket.with_extension("lock")
}

/// The lock beside the socket, held as long as the file is open; None when a daemon that holds it answers.
fn take_lock(socket: &Path) -> Result<Option<File>, ServeError> {
    let path = lock_path(socket);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed(path.display()))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Peer::connect(socket, "rust-ort serve").is_ok() {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err(ServeError::Mute { lock: path });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some(file))
}

/// A socket file that is there under our lock is left from a daemon that was killed.
fn bind(socket: &Path) -> io::Result<Listener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    ListenerOptions::new()
        .name(socket.to_fs_name::<GenericFilePath>()?)
        .reclaim_name(false)
        .nonblocking(ListenerNonblockingMode::Accept)
        .create_sync()
}

fn start_log(state_folder: &Path) -> Result<PathBuf, ServeError> {
    let folder = state_folder.join("log");
    paths::make_private(&folder).map_err(failed(folder.display()))?;
    let path = folder.join(format!("daemon-{}.log", std::process::id()));
    let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(failed(path.display()))?;
    let filter = std::env::var("RUST_ORT_LOG").ok().and_then(|filter| EnvFilter::try_new(filter).ok());
    let log = tracing_subscriber::fmt()
        .with_writer(file)
        .with_ansi(false)
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new("info")));
    // Set already only when a program runs two daemons, as tests may.
    let _ = log.try_init();
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
    Ok(path)
}

/// Until the daemon ends: new connections, signals, and every so often the idle ones.
fn accept(daemon: &Arc<Daemon>, listener: &Listener, woken: &UnixStream) -> Ended {
    let turn = (daemon.idle_timeout / 8).clamp(Duration::from_millis(20), Duration::from_secs(5));
    let turn = Timespec::try_from(turn).expect("at most 5 s");
    loop {
        let Listener::UdSocket(socket) = listener;
        let mut events = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        if let Err(error) = poll(&mut events, Some(&turn)) {
            tracing::debug!(%error, "poll");
        }
        let (connecting, told) = (!events[0].revents().is_empty(), !events[1].revents().is_empty());
        if told {
            // A request's byte comes after its reason was set; without a reason it was a signal.
            let _ = (&*woken).read(&mut [0; 16]);
            return *lock(&daemon.ended).get_or_insert(Ended::Signal);
        }
        if connecting {
            take_connections(daemon, listener);
        }
        daemon.pool.dismiss_surplus();
        let (n, since) = *lock(&daemon.connections);
        if n == 0 && since.elapsed() >= daemon.idle_timeout {
            return *lock(&daemon.ended).get_or_insert(Ended::Idle);
        }
    }
}

fn take_connections(daemon: &Arc<Daemon>, listener: &Listener) {
    loop {
        match listener.accept() {
            Ok(stream) => {
                if let Err(error) = take(daemon, stream) {
                    tracing::warn!(%error, "connection not served");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // Out of descriptors, most likely: the next turn tries again.
                tracing::warn!(%error, "accept");
                std::thread::sleep(Duration::from_millis(20));
                return;
            }
        }
    }
}

fn take(daemon: &Arc<Daemon>, stream: Stream) -> io::Result<()> {
    let transport = Transport::new(stream)?;
    let (peer, own) = (transport.peer_uid()?, rustix::process::getuid().as_raw());
    let refused = if peer != own {
        let why = format!("uid {peer}: this daemon serves uid {own} only; start one of your own");
        Some(client_error(ErrorCode::Permission, why))
    } else {
        None
    };
    let counted = Counted::new(daemon);
    let refused = refused.or_else(|| {
        let why = || format!("{} connections are open already; close one", limits::CONNECTIONS);
        counted.is_none().then(|| client_error(ErrorCode::Limit, why()))
    });
    if let Some(error) = refused {
        let frame = wire::encode_reply(0, &Reply::Error(error)).map_err(io::Error::other)?;
        // Fits every socket's buffer: does not block.
        transport.send(&frame, None)?;
        transport.shut_down();
        return Ok(());
    }
    let daemon = Arc::clone(daemon);
    std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
        let _counted = counted;
        connection::serve(&daemon, Arc::new(transport));
    })?;
    Ok(())
}

/// A place among the connections.
struct Counted(Arc<Daemon>);

impl Counted {
    fn new(daemon: &Arc<Daemon>) -> Option<Self> {
        let mut connections = lock(&daemon.connections);
        let free = connections.0 < limits::CONNECTIONS;
        free.then(|| {
            connections.0 += 1;
            Self(Arc::clone(daemon))
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut connections = lock(&self.0.connections);
        *connections = (connections.0 - 1, Instant::now());
    }
}
