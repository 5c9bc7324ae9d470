//! Serving: a thread a connection until the daemon ends.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use interprocess::local_socket::traits::Listener as _;
use interprocess::local_socket::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::base::log;
use crate::base::process;
use crate::base::sync::lock;
use crate::daemon::connection;
use crate::daemon::logs;
use crate::daemon::old_state;
use crate::daemon::paths;
use crate::daemon::shared::Ended;
use crate::daemon::shared::{Config, Daemon};
use crate::daemon::socket::{self, Bound, Claim, SocketError};
use crate::link::transport::{Transport, TransportError};
use crate::protocol::control::Reply;
use crate::protocol::message::{ErrorCode, WireError};
use crate::protocol::wire;

/// Why no daemon runs.
#[derive(Debug, Error)]
pub enum ServeError {
    /// See [`SocketError`].
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Nothing can be written there.
    #[error("state folder: {path}: {error}; set RUST_ORT_STATE_DIR to a folder that can be written")]
    State {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
    /// The system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        error: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |error| ServeError::Io { what, error }
}

/// How `serve` went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It served until then.
    Until(Ended),
    /// Another daemon serves this socket.
    Elsewhere {
        /// Its process.
        pid: u32,
    },
}

/// Serves until told to end. Errors: [`ServeError`]; the socket is gone then.
pub fn serve(config: Config) -> Result<Served, ServeError> {
    let lock = match socket::claim(&config.socket)? {
        Claim::Ours(lock) => lock,
        Claim::Elsewhere { pid } => return Ok(Served::Elsewhere { pid }),
    };
    let log = start_log(&config.state_folder)?;
    process::raise_descriptor_limit();
    process::be_private();
    if config.leaves_starter {
        process::leave_starter();
    }
    old_state::remove(&config.state_folder);
    let (wake, woken) = UnixStream::pair().map_err(failed("wake pipe"))?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let wake = wake.try_clone().map_err(failed("wake pipe"))?;
        // A signal says 1, a request says 0.
        signal_hook::low_level::pipe::register(signal, wake).map_err(failed("signal handler"))?;
    }
    let reserve = Reserve::new().map_err(failed("descriptor in reserve"))?;
    let mut bound = socket::bind(&config.socket, lock)?;
    let daemon = Daemon::new(config, log, wake);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %daemon.socket.display(), "serving");
    let ended = accept(&daemon, &mut bound, &woken, reserve);
    tracing::info!(reason = ended.reason(), "ending");
    let _held = bound.close();
    daemon.shut_down(ended);
    Ok(Served::Until(ended))
}

fn start_log(state_folder: &Path) -> Result<PathBuf, ServeError> {
    let folder = state_folder.join("log");
    let state = |path: &Path| {
        let path = path.to_owned();
        move |error| ServeError::State { path, error }
    };
    paths::make_private(&folder).map_err(state(&folder))?;
    let (path, file) = logs::open_own(&folder).map_err(state(&folder))?;
    log::start(file); // a second daemon of one program, as tests may have, goes on with the first one's
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a thread panicked")));
    Ok(path)
}

/// Until the daemon ends: new connections, signals, and every so often the idle ones.
fn accept(daemon: &Arc<Daemon>, bound: &mut Bound, woken: &UnixStream, mut reserve: Reserve) -> Ended {
    // An executor that is to end at once does so when it is given back.
    let shortest = if daemon.idle.on_device.is_zero() { daemon.idle.timeout } else { daemon.idle.on_device };
    let turn = (shortest / 8).clamp(Duration::from_millis(20), Duration::from_secs(5));
    let turn = Timespec::try_from(turn).expect("at most 5 s");
    loop {
        // Who cannot find the socket's file starts a daemon, which waits for this one's lock in vain.
        bound.restore();
        let listener = &bound.listener;
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
            take_connections(daemon, listener, &mut reserve);
        }
        daemon.pool.dismiss_surplus();
        logs::trim(&daemon.log);
        daemon.pool.list().iter().for_each(|executor| logs::trim(&executor.log));
        let Some(empty_for) = daemon.places.empty_for() else { continue };
        if empty_for >= daemon.idle.timeout {
            return *lock(&daemon.ended).get_or_insert(Ended::Idle);
        }
        if daemon.program.is_replaced() {
            return *lock(&daemon.ended).get_or_insert(Ended::Replaced);
        }
    }
}

fn take_connections(daemon: &Arc<Daemon>, listener: &Listener, reserve: &mut Reserve) {
    loop {
        match listener.accept() {
            Ok(stream) => {
                reserve.refills = true;
                if let Err(error) = take(daemon, stream) {
                    tracing::warn!(%error, "connection not served");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                reserve.note(&error);
                if !reserve.turn_away(listener, &error) {
                    // The next turn tries again.
                    std::thread::sleep(Duration::from_millis(20));
                    return;
                }
            }
        }
    }
}

/// A descriptor that is given up to tell whoever connects that there are no others. Without it a connection that cannot
/// be taken stays in the queue, unanswered, and wakes the listener again and again.
struct Reserve {
    file: Option<File>,
    /// Connections are taken: the next failure is a new one, to be logged.
    refills: bool,
}

impl Reserve {
    fn new() -> io::Result<Self> {
        Ok(Self { file: Some(Self::open()?), refills: true })
    }

    fn open() -> io::Result<File> {
        File::open("/dev/null")
    }

    /// Logs the first of a row of failures.
    fn note(&mut self, error: &io::Error) {
        if std::mem::take(&mut self.refills) {
            tracing::warn!(%error, limit = process::descriptor_limit(), "connections are refused: out of descriptors?");
        }
    }

    /// Takes one connection in the reserve's place and refuses it. Whether there was one.
    fn turn_away(&mut self, listener: &Listener, error: &io::Error) -> bool {
        self.file = None;
        let refused = listener.accept().and_then(|stream| {
            let limit = process::descriptor_limit();
            let why = format!(
                "the daemon cannot take another connection: {error}; of descriptors it may have {limit} (ulimit -n): \
                 close a connection, or raise the limit and run `rust-ort stop`"
            );
            refuse(&Transport::new(stream), WireError::client(ErrorCode::Limit, why))
        });
        self.file = Self::open().ok();
        refused.is_ok()
    }
}

/// Says why, and ends the connection.
fn refuse(transport: &Transport, error: WireError) -> io::Result<()> {
    let frame = wire::encode_reply(0, &Reply::Error(error)).map_err(io::Error::other)?;
    // Fits every socket's buffer: does not block.
    transport.send(&frame, None)?;
    transport.shut_down();
    Ok(())
}

fn take(daemon: &Arc<Daemon>, stream: Stream) -> io::Result<()> {
    let transport = Transport::new(stream);
    let (peer, own) = (transport.peer_uid()?, rustix::process::getuid().as_raw());
    if peer != own {
        let why = format!("uid {peer}: this daemon serves uid {own} only; start one of your own");
        return refuse(&transport, WireError::client(ErrorCode::Permission, why));
    }
    let transport = Arc::new(transport);
    let place = daemon.places.take(&transport);
    let (daemon, served) = (Arc::clone(daemon), Arc::clone(&transport));
    let connection = std::thread::Builder::new().name("connection".to_owned());
    if let Err(error) = connection.spawn(move || connection::serve(&daemon, served, place)) {
        let word = WireError::fault(ErrorCode::Limit, TransportError::NoThread(error).to_string());
        tracing::warn!(error = %word, "connection not served");
        return refuse(&transport, word);
    }
    Ok(())
}
