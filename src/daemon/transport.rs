//! One connection's bytes: whole frames in, whole frames out. Knows nothing of what they mean.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use interprocess::local_socket::Stream;
use interprocess::local_socket::traits::Stream as _;
use thiserror::Error;

use super::{limits, lock};
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
    /// Errors: the socket's.
    pub fn new(stream: Stream) -> io::Result<Self> {
        stream.set_send_timeout(Some(limits::SEND))?;
        Ok(Self { stream, sending: Mutex::new(()) })
    }

    /// Uid of the peer, as the kernel knows it.
    pub fn peer_uid(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(self.as_fd())?.uid.as_raw())
    }

    /// Sends one frame whole, never inside another. Errors: the socket's; a timed-out frame is half sent, so the caller
    /// ends the connection.
    pub fn send(&self, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let _alone = lock(&self.sending);
        let sent = fds::send(self.as_fd(), frame, fd.as_slice())?;
        (&self.stream).write_all(&frame[sent..])
    }

    /// The next frame. `check` reads the header (which kinds, which length); `deadline` ends the wait. Errors: see
    /// [`TransportError`].
    pub fn receive(
        &self,
        check: impl Fn(&[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError>,
        deadline: Option<Instant>,
    ) -> Result<Frame, TransportError> {
        let head = self.receive_head(check, deadline)?;
        let body = self.receive_body(&head, deadline)?;
        Ok(Frame { header: head.header, body })
    }

    /// As [`Transport::receive`], without the body: [`Transport::receive_body`] or [`Transport::skip_body`] comes next.
    pub fn receive_head(
        &self,
        check: impl Fn(&[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError>,
        deadline: Option<Instant>,
    ) -> Result<Head, TransportError> {
        let mut header = [0; HEADER_LEN];
        self.wait_until(deadline)?;
        let (got, mut fds) = match fds::recv(self.as_fd(), &mut header, 1) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(TransportError::Descriptors(error)),
            Err(error) => return Err(self.timed(error)),
            Ok((0, _)) => return Err(TransportError::Closed),
            Ok(received) => received,
        };
        self.read_exact(&mut header[got..], deadline)?;
        Ok(Head { header: check(&header)?, fd: fds.pop() })
    }

    /// The body that follows a head. Errors: see [`TransportError`].
    pub fn receive_body(&self, head: &Head, deadline: Option<Instant>) -> Result<Bytes, TransportError> {
        Ok(Bytes::from(self.read_body(head.header.body_bytes as usize, deadline)?))
    }

    /// Reads a body and keeps its start alone. Errors: see [`TransportError`].
    pub fn skip_body(&self, head: &Head) -> Result<Vec<u8>, TransportError> {
        let mut left = head.header.body_bytes as usize;
        let mut step = vec![0; left.min(limits::BODY_STEP_BYTES)];
        let mut start = Vec::new();
        while left > 0 {
            let len = left.min(step.len());
            self.read_exact(&mut step[..len], None)?;
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

    fn read_body(&self, len: usize, deadline: Option<Instant>) -> Result<Vec<u8>, TransportError> {
        let mut body = Vec::new();
        while body.len() < len {
            let start = body.len();
            body.resize(len.min(start + limits::BODY_STEP_BYTES.max(start)), 0);
            self.read_exact(&mut body[start..], deadline)?;
        }
        Ok(body)
    }

    fn read_exact(&self, mut buf: &mut [u8], deadline: Option<Instant>) -> Result<(), TransportError> {
        while !buf.is_empty() {
            self.wait_until(deadline)?;
            match (&self.stream).read(buf) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(got) => buf = &mut buf[got..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.timed(error)),
            }
        }
        Ok(())
    }

    /// Bounds the next read. Every read waits for what is left, so that a peer that drips bytes gains nothing.
    fn wait_until(&self, deadline: Option<Instant>) -> Result<(), TransportError> {
        let left = match deadline {
            None => None,
            Some(deadline) => match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Err(TransportError::Handshake),
                left => Some(left.max(Duration::from_millis(1))),
            },
        };
        Ok(self.stream.set_recv_timeout(left)?)
    }

    fn timed(&self, error: io::Error) -> TransportError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => TransportError::Handshake,
            _ => TransportError::Io(error),
        }
    }
}
