//! Requests to one executor from any thread, answered in any order.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::base::sync::{lock, lock_by, lock_while};
use crate::link::message::{self, LinkReply, LinkRequest, UNASKED};
use crate::link::socket::{LinkError, LinkReceiver, LinkSender};

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The executor is gone, or going.
    Lost,
    /// The time is over; the answer, should it come, is thrown away.
    Timeout,
    /// Who asked may not ask, or does not wait, any more.
    NotAllowed,
}

/// How long who asks waits: for its turn to send, for room in the socket and for the answer, all together.
pub struct Patience<'a> {
    /// None: as long as the executor lives.
    pub deadline: Option<Instant>,
    /// Looked at while waiting for the turn and for the answer: nobody wants it any more when it says no.
    pub wanted: &'a dyn Fn() -> bool,
}

impl Patience<'_> {
    /// Between two looks at whether the answer is wanted.
    const TURN: Duration = Duration::from_millis(100);

    /// Without end: for what runs as long as it takes. Who kills the executor ends the wait.
    pub const ENDLESS: Patience<'static> = Patience { deadline: None, wanted: &|| true };

    /// Why to wait no more.
    fn ended(&self) -> Option<NoAnswer> {
        match self.deadline {
            None => None,
            Some(deadline) if Instant::now() >= deadline => Some(NoAnswer::Timeout),
            Some(_) => (!(self.wanted)()).then_some(NoAnswer::NotAllowed),
        }
    }

    fn wait(&self, reply: &mpsc::Receiver<LinkReply>) -> Result<LinkReply, NoAnswer> {
        let Some(deadline) = self.deadline else { return reply.recv().map_err(|_| NoAnswer::Lost) };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match reply.recv_timeout(left.min(Self::TURN)) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Lost),
                Err(RecvTimeoutError::Timeout) => self.ended().map_or(Ok(()), Err)?,
            }
        }
    }
}

fn encode(id: u64, request: &LinkRequest) -> Result<Vec<u8>, NoAnswer> {
    message::encode(id, request).map_err(|error| {
        tracing::debug!(%error, "link: encode");
        NoAnswer::Lost
    })
}

/// The daemon's end of a link.
#[derive(Debug)]
pub struct Link {
    sender: Mutex<LinkSender<LinkRequest>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next_id: u64,
    /// None once the link has ended.
    closed: bool,
    replies: HashMap<u64, mpsc::Sender<LinkReply>>,
}

impl Link {
    /// Over the sending half; the receiving half is for [`Link::serve`].
    pub fn new(sender: LinkSender<LinkRequest>) -> Self {
        Self { sender: Mutex::new(sender), waiting: Mutex::default() }
    }

    /// Asks and waits for at most `timeout`. Errors: [`NoAnswer`].
    pub fn ask(&self, request: &LinkRequest, timeout: Duration) -> Result<LinkReply, NoAnswer> {
        let patience = Patience { deadline: Some(Instant::now() + timeout), wanted: &|| true };
        self.ask_if(|| true, request, None, &patience)
    }

    /// Asks and waits, but sends only if `allowed` says so when its turn has come: what is sent before a `Reset` is ended
    /// by it, and nothing of the same client follows. Errors: [`NoAnswer`].
    pub fn ask_if(
        &self,
        allowed: impl FnOnce() -> bool,
        request: &LinkRequest,
        fd: Option<BorrowedFd<'_>>,
        patience: &Patience<'_>,
    ) -> Result<LinkReply, NoAnswer> {
        let (reply_to, reply) = mpsc::channel();
        let id = {
            let mut waiting = lock(&self.waiting);
            if waiting.closed {
                return Err(NoAnswer::Lost);
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.replies.insert(id, reply_to);
            id
        };
        // Not under the lock: a model takes its time.
        let message = encode(id, request);
        let sent = message.and_then(|message| self.send_if(allowed, &message, fd, patience));
        let answer = sent.and_then(|()| patience.wait(&reply));
        if answer.is_err() {
            lock(&self.waiting).replies.remove(&id);
        }
        answer
    }

    fn send_if(
        &self,
        allowed: impl FnOnce() -> bool,
        message: &[u8],
        fd: Option<BorrowedFd<'_>>,
        patience: &Patience<'_>,
    ) -> Result<(), NoAnswer> {
        let mut sender = lock_while(&self.sender, || patience.ended().is_none())
            .ok_or_else(|| patience.ended().unwrap_or(NoAnswer::Timeout))?;
        if !allowed() {
            return Err(NoAnswer::NotAllowed);
        }
        sender.send_encoded(message, fd, patience.deadline).map_err(|error| {
            tracing::debug!(%error, "link: send");
            if error.kind() == ErrorKind::TimedOut { NoAnswer::Timeout } else { NoAnswer::Lost }
        })
    }

    /// Sends without waiting for an answer, by `deadline`; one that is past means: now or not at all. Whether all of it
    /// is out: if not, the link is of no further use.
    #[must_use]
    pub fn tell(&self, request: &LinkRequest, fd: Option<BorrowedFd<'_>>, deadline: Instant) -> bool {
        let Ok(message) = encode(UNASKED, request) else { return false };
        lock_by(&self.sender, deadline)
            .is_some_and(|mut sender| sender.send_encoded(&message, fd, Some(deadline)).is_ok())
    }

    /// It has ended: every request is answered [`NoAnswer::Lost`].
    pub fn is_closed(&self) -> bool {
        lock(&self.waiting).closed
    }

    /// Hands replies to those who wait, and what nobody asked for to `told`, until the link ends, then wakes all that still
    /// wait. Errors: why it ended, when not by end of file.
    pub fn serve(&self, receiver: &mut LinkReceiver<LinkReply>, told: impl Fn(LinkReply)) -> Result<(), LinkError> {
        let ended = loop {
            match receiver.recv() {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
                Ok(Some(received)) if received.id == UNASKED => told(received.body),
                Ok(Some(received)) => {
                    if let Some(reply_to) = lock(&self.waiting).replies.remove(&received.id) {
                        // The asker may have given up.
                        let _ = reply_to.send(received.body);
                    }
                }
            }
        };
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        waiting.replies.clear();
        ended
    }
}
