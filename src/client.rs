//! The other end of a connection, for the command line and for tests.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use interprocess::local_socket::traits::Stream as _;
use interprocess::local_socket::{GenericFilePath, Stream, ToFsName as _};
use thiserror::Error;

use crate::base::limits;
use crate::base::process;
use crate::link::transport::{Transport, TransportError};
use crate::protocol::control::{Hello, Notice, Reply, Request, Welcome};
use crate::protocol::frame::{FrameError, FrameHeader, FrameKind};
use crate::protocol::message::WireError;
use crate::protocol::wire::{self, DecodeError};

/// Why the daemon could not be asked.
#[derive(Debug, Error)]
pub enum PeerError {
    /// Nobody listens.
    #[error("no daemon answers on {socket}: {error}; start one with `rust-ort serve --background`")]
    Absent {
        /// Its path.
        socket: String,
        /// Why.
        error: io::Error,
    },
    /// Somebody listens and says nothing.
    #[error("{socket} is open but nobody answers within {} s; end the process that holds it", limits::HANDSHAKE.as_secs())]
    Mute {
        /// Its path.
        socket: String,
    },
    /// It is somebody else's.
    #[error(
        "socket {socket}: who listens there runs as uid {peer}, expected {own}: it is not yours; set RUST_ORT_SOCKET"
    )]
    Stranger {
        /// Its path.
        socket: String,
        /// Of who listens.
        peer: u32,
        /// Of this process.
        own: u32,
    },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// The answer is of another kind than the question.
    #[error("the daemon answered {0} with something else; install equal versions and run `rust-ort stop`")]
    Unexpected(&'static str),
    /// The connection broke, or its frames did.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// See [`FrameError`].
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// See [`DecodeError`].
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// See [`io::Error`].
    #[error("daemon: {0}")]
    Io(#[from] io::Error),
}

/// A client's end.
#[derive(Debug)]
pub struct Peer {
    transport: Transport,
    next_id: u64,
    /// Notices that came while waiting for replies, oldest first.
    pub notices: Vec<Notice>,
}

impl Peer {
    /// Connects without a word. Errors: [`PeerError::Absent`], [`PeerError::Stranger`].
    pub fn connect_raw(socket: &Path) -> Result<Self, PeerError> {
        let absent = |error| PeerError::Absent { socket: socket.display().to_string(), error };
        let stream = socket.to_fs_name::<GenericFilePath>().and_then(Stream::connect).map_err(absent)?;
        let transport = Transport::new(stream);
        is_own(socket, transport.peer_uid()?, rustix::process::getuid().as_raw())?;
        Ok(Self { transport, next_id: 1, notices: Vec::new() })
    }

    /// Connects and says who we are. Errors: [`PeerError`].
    pub fn connect(socket: &Path, program: &str) -> Result<(Self, Welcome), PeerError> {
        let mut peer = Self::connect_raw(socket)?;
        let hello = Hello {
            protocol: crate::protocol::frame::VERSION.into(),
            shim_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            pid_namespace: process::pid_namespace(),
            cpus: process::cpus(),
            program: program.to_owned(),
            ..Hello::default()
        };
        let deadline = Some(Instant::now() + limits::HANDSHAKE);
        match peer.ask_until(&Request::Hello(hello), None, deadline) {
            Ok(Reply::Welcome(welcome)) => Ok((peer, welcome)),
            Ok(_) => Err(PeerError::Unexpected("Hello")),
            Err(PeerError::Transport(TransportError::Handshake)) => {
                Err(PeerError::Mute { socket: socket.display().to_string() })
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request and waits for its reply. Errors: [`PeerError::Refused`] when the reply is one.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, PeerError> {
        self.ask_with(request, None)
    }

    /// As [`Peer::ask`], with a descriptor.
    pub fn ask_with(&mut self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<Reply, PeerError> {
        self.ask_until(request, fd, None)
    }

    fn ask_until(
        &mut self,
        request: &Request,
        fd: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<Reply, PeerError> {
        let id = self.next_id;
        self.next_id += 1;
        match self.transport.send(&wire::encode_request(id, request)?, fd) {
            Ok(()) => self.reply(id, request.name(), deadline),
            // A daemon that refuses a connection says why before it is asked, and closes: its word waits here.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                match self.reply(id, request.name(), deadline) {
                    Err(PeerError::Refused(word)) => Err(word.into()),
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn reply(&mut self, id: u64, asked: &'static str, deadline: Option<Instant>) -> Result<Reply, PeerError> {
        loop {
            match self.receive(deadline)? {
                Answer::Notice(notice) => self.notices.push(notice),
                Answer::Reply(got, Reply::Error(error)) if got == id || got == 0 => return Err(error.into()),
                Answer::Reply(got, reply) if got == id => return Ok(reply),
                Answer::Reply(..) => return Err(PeerError::Unexpected(asked)),
            }
        }
    }

    /// The next reply or notice; None when none came in time. Errors: [`PeerError`].
    pub fn next_answer(&mut self, timeout: Duration) -> Result<Option<Answer>, PeerError> {
        match self.receive(Some(Instant::now() + timeout)) {
            Err(PeerError::Transport(TransportError::Handshake)) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Bytes as they are: for tests that misbehave. Errors: the socket's.
    pub fn send_raw(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.transport.send(bytes, fd)
    }

    fn receive(&self, deadline: Option<Instant>) -> Result<Answer, PeerError> {
        let frame = self.transport.receive(FrameHeader::decode_answer, deadline)?;
        if frame.header.kind == FrameKind::Notice {
            return Ok(Answer::Notice(wire::decode_notice(frame.body)?));
        }
        let (id, reply) = wire::decode_reply(frame.body)?;
        Ok(Answer::Reply(id, reply))
    }
}

/// Errors: whoever listens on the socket is of another user.
fn is_own(socket: &Path, peer: u32, own: u32) -> Result<(), PeerError> {
    match peer == own {
        true => Ok(()),
        false => Err(PeerError::Stranger { socket: socket.display().to_string(), peer, own }),
    }
}

/// What the daemon sends.
#[derive(Debug)]
pub enum Answer {
    /// To the request with this id.
    Reply(u64, Reply),
    /// Unasked.
    Notice(Notice),
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn who_listens_is_of_this_user() {
        let socket = Path::new("/run/v1.sock");
        assert!(is_own(socket, 1000, 1000).is_ok());
        for (peer, own) in [(1000, 0), (0, 1000), (u32::MAX, 1000)] {
            let told = is_own(socket, peer, own).unwrap_err().to_string();
            assert!(told.contains(&format!("uid {peer}, expected {own}")), "{told}");
        }
    }

    #[test]
    fn a_socket_of_another_user_is_not_spoken_to() {
        if !rustix::process::getuid().is_root() {
            eprintln!("skipped: only root can listen as somebody else");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v1.sock");
        let bind = || {
            let nobody = rustix::process::Uid::from_raw(65534);
            let listener = UnixListener::bind(&path).unwrap();
            // Who listens is who calls `listen`, again.
            rustix::thread::set_thread_uid(nobody).unwrap();
            rustix::net::listen(&listener, 1).unwrap();
            listener
        };
        // The thread alone is somebody else.
        let listener = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
        let told = Peer::connect(&path, "test").unwrap_err();
        assert!(matches!(told, PeerError::Stranger { peer: 65534, own: 0, .. }), "{told}");
        drop(listener);
    }
}
