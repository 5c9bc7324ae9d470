//! One connection's bytes: whole frames in, whole frames out. Knows nothing of what they mean.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use interprocess::local_socket::Stream;
use interprocess::local_socket::traits::Stream as _;
use thiserror::Error;

use crate::base::limits;
use crate::base::process::no_thread;
use crate::base::sync::lock_by;
use crate::link::peer::peer_uid;
use crate::protocol::frame::{FrameError, FrameHeader, HEADER_LEN};
use crate::shm::fds;

/// Why a connection ends.
#[derive(Debug, Error)]
pub enum TransportError {
    /// The peer left between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The header is wrong: there is no next frame one could trust.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Too many descriptors.
    #[error("frame descriptors: {0}; send one, with AttachSegment only")]
    Descriptors(io::Error),
    /// `Hello` did not come in time.
    #[error("no complete Hello within {} s of connecting", limits::HANDSHAKE.as_secs())]
    Handshake,
    /// A body stopped in the middle.
    #[error("no byte of a request's body for {} s; send a request whole once its header is sent", limits::BODY_STALL.as_secs())]
    Stalled,
    /// The system gives no thread.
    #[error("the connection is not served: {}", no_thread(.0))]
    NoThread(io::Error),
    /// The socket failed, or the peer left inside a frame.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
}

/// A connection. One thread reads; any thread sends.
#[derive(Debug)]
pub struct Transport {
    stream: Stream,
    sending: Mutex<()>,
}

/// A frame as received.
#[derive(Debug)]
pub struct Frame {
    /// Checked.
    pub header: FrameHeader,
    /// Protobuf.
    pub body: Bytes,
}

/// A body that was counted as it came.
#[derive(Debug)]
pub enum Counted<E> {
    /// All of it.
    Whole(Bytes),
    /// There was no room for all of it; it was read and thrown away.
    Refused {
        /// Its first bytes.
        start: Vec<u8>,
        /// As whoever counts said.
        why: E,
    },
}

/// How long a read waits.
#[derive(Clone, Copy)]
enum Wait {
    /// As long as the connection lives.
    Ever,
    /// Whatever comes before.
    Until(Instant),
    /// For each byte anew.
    Progress,
}

impl From<Option<Instant>> for Wait {
    fn from(deadline: Option<Instant>) -> Self {
        deadline.map_or(Self::Ever, Self::Until)
    }
}

/// A frame of which the body is still to come.
#[derive(Debug)]
pub struct Head {
    /// Checked.
    pub header: FrameHeader,
    /// The descriptor that came with its first byte.
    pub fd: Option<OwnedFd>,
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let Stream::UdSocket(stream) = &self.stream;
        stream.as_fd()
    }
}

impl Transport {
    /// Over a connected socket.
    pub fn new(stream: Stream) -> Self {
        Self { stream, sending: Mutex::new(()) }
    }

    /// Uid of the peer, as the kernel knows it.
    pub fn peer_uid(&self) -> io::Result<u32> {
        peer_uid(self.as_fd())
    }

    /// Sends one frame whole, never inside another, within [`limits::SEND`]. Errors: the socket's; a timed-out frame is
    /// half sent, so the caller ends the connection.
    pub fn send(&self, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_by(frame, fd, Instant::now() + limits::SEND)
    }

    /// As [`Transport::send`], by `deadline`, which bounds the wait for another thread's frame, too. One that is past
    /// means: now or not at all.
    pub fn send_by(&self, frame: &[u8], fd: Option<BorrowedFd<'_>>, deadline: Instant) -> io::Result<()> {
        let _alone = lock_by(&self.sending, deadline).ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?;
        fds::send(self.as_fd(), frame, fd.as_slice(), Some(deadline))
    }

    /// The peer has closed its side, or we have: nobody waits for an answer.
    pub fn peer_left(&self) -> bool {
        fds::peer_left(self.as_fd())
    }

    /// The next frame. `check` reads the header (which kinds, which length); `deadline` ends the wait. Errors: see
    /// [`TransportError`].
    pub fn receive(
        &self,
        check: impl Fn(&[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError>,
        deadline: Option<Instant>,
    ) -> Result<Frame, TransportError> {
        let head = self.receive_head(check, deadline)?;
        let body = self.read_body(head.header.body_bytes as usize, deadline.into())?;
        Ok(Frame { header: head.header, body })
    }

    /// As [`Transport::receive`], without the body: [`Transport::receive_body`] comes next.
    pub fn receive_head(
        &self,
        check: impl Fn(&[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError>,
        deadline: Option<Instant>,
    ) -> Result<Head, TransportError> {
        let (mut header, wait) = ([0; HEADER_LEN], Wait::from(deadline));
        self.bound(wait)?;
        let (got, mut fds) = match fds::recv(self.as_fd(), &mut header, 1) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(TransportError::Descriptors(error)),
            Err(error) => return Err(wait.failed(error)),
            Ok((0, _)) => return Err(TransportError::Closed),
            Ok(received) => received,
        };
        self.read_exact(&mut header[got..], wait)?;
        Ok(Head { header: check(&header)?, fd: fds.pop() })
    }

    /// The body that follows a head. `count` is asked before each step is read, for the bytes of the step: so memory, and
    /// what is counted, follow the bytes that came, not those announced. Errors: see [`TransportError`]; Stalled when none
    /// comes for [`limits::BODY_STALL`].
    pub fn receive_body<E>(
        &self,
        head: &Head,
        mut count: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Counted<E>, TransportError> {
        let len = head.header.body_bytes as usize;
        let mut body = Vec::new();
        while body.len() < len {
            if let Err(why) = count(next_step(&body, len)) {
                return Ok(Counted::Refused { start: self.skip(body, len)?, why });
            }
            self.read_step(&mut body, len, Wait::Progress)?;
        }
        Ok(Counted::Whole(Bytes::from(body)))
    }

    /// Reads the rest of a body of which `read` came, and keeps its start alone.
    fn skip(&self, read: Vec<u8>, len: usize) -> Result<Vec<u8>, TransportError> {
        let (mut left, mut start) = (len - read.len(), read[..read.len().min(16)].to_vec());
        drop(read);
        let mut step = vec![0; left.min(limits::BODY_STEP_BYTES)];
        while left > 0 {
            let len = left.min(step.len());
            self.read_exact(&mut step[..len], Wait::Progress)?;
            if start.is_empty() {
                start.extend_from_slice(&step[..len.min(16)]);
            }
            left -= len;
        }
        Ok(start)
    }

    /// Ends the connection for both sides; the reading thread wakes up.
    pub fn shut_down(&self) {
        // Fails only when the peer was faster.
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Both);
    }

    fn read_body(&self, len: usize, wait: Wait) -> Result<Bytes, TransportError> {
        let mut body = Vec::new();
        while body.len() < len {
            self.read_step(&mut body, len, wait)?;
        }
        Ok(Bytes::from(body))
    }

    fn read_step(&self, body: &mut Vec<u8>, len: usize, wait: Wait) -> Result<(), TransportError> {
        let start = body.len();
        body.resize(start + next_step(body, len), 0);
        self.read_exact(&mut body[start..], wait)
    }

    fn read_exact(&self, mut buf: &mut [u8], wait: Wait) -> Result<(), TransportError> {
        while !buf.is_empty() {
            self.bound(wait)?;
            match (&self.stream).read(buf) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(got) => buf = &mut buf[got..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(wait.failed(error)),
            }
        }
        Ok(())
    }

    /// Bounds the next read. With a deadline every read waits for what is left, so that a peer that drips bytes gains
    /// nothing.
    fn bound(&self, wait: Wait) -> Result<(), TransportError> {
        let left = match wait {
            Wait::Ever => None,
            Wait::Progress => Some(limits::BODY_STALL),
            Wait::Until(deadline) => match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Err(TransportError::Handshake),
                left => Some(left.max(Duration::from_millis(1))),
            },
        };
        Ok(self.stream.set_recv_timeout(left)?)
    }
}

impl Wait {
    fn failed(self, error: io::Error) -> TransportError {
        match (error.kind(), self) {
            (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, Wait::Progress) => TransportError::Stalled,
            (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _) => TransportError::Handshake,
            _ => TransportError::Io(error),
        }
    }
}

/// Bytes to read next of a body of `len`.
fn next_step(body: &[u8], len: usize) -> usize {
    (len - body.len()).min(limits::BODY_STEP_BYTES.max(body.len()))
}
