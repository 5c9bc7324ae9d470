//! The sockets of the private link between daemon and executor; the messages are [`super::message`]'s.

use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::message::{self, BadLinkMessage};
use crate::shm::fds;

/// Why the link is of no further use.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("link: {0}")]
    Io(#[from] io::Error),
    /// See [`BadLinkMessage`].
    #[error(transparent)]
    Message(#[from] BadLinkMessage),
}

/// Sending half. One thread at a time.
#[derive(Debug)]
pub struct LinkSender<T> {
    stream: UnixStream,
    _message: PhantomData<fn(T)>,
}

/// Receiving half.
#[derive(Debug)]
pub struct LinkReceiver<T> {
    stream: UnixStream,
    _message: PhantomData<fn() -> T>,
}

/// A message as received.
#[derive(Debug)]
pub struct Received<T> {
    /// Of the request.
    pub id: u64,
    /// The body.
    pub body: T,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

/// The two halves of one end of the link: the daemon's is `<LinkRequest, LinkReply>`, the executor's the reverse.
pub fn split<S: Serialize, R: DeserializeOwned>(stream: UnixStream) -> io::Result<(LinkSender<S>, LinkReceiver<R>)> {
    let sender = LinkSender { stream: stream.try_clone()?, _message: PhantomData };
    Ok((sender, LinkReceiver { stream, _message: PhantomData }))
}

impl<T: Serialize> LinkSender<T> {
    /// Sends one message whole; blocks while the socket is full. Errors: [`LinkError`].
    pub fn send(&mut self, id: u64, body: &T, fd: Option<BorrowedFd<'_>>) -> Result<(), LinkError> {
        Ok(self.send_encoded(&message::encode(id, body)?, fd, None)?)
    }

    /// Sends an encoded message whole, by `deadline`. Errors: the socket's; TimedOut, and the link is of no further use:
    /// a part may be out.
    pub fn send_encoded(
        &mut self,
        message: &[u8],
        fd: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> io::Result<()> {
        fds::send(&self.stream, message, fd.as_slice(), deadline)
    }
}

impl<T: DeserializeOwned> LinkReceiver<T> {
    /// The next message; None at end of file between messages. Errors: [`LinkError`].
    pub fn recv(&mut self) -> Result<Option<Received<T>>, LinkError> {
        let mut header = [0; message::HEADER_LEN];
        let (got, mut fds) = fds::recv(&self.stream, &mut header, 1)?;
        if got == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut header[got..])?;
        let mut bytes = vec![0; message::body_len(header)?];
        self.stream.read_exact(&mut bytes)?;
        let (id, body) = message::decode(&bytes)?;
        Ok(Some(Received { id, body, fd: fds.pop() }))
    }
}
