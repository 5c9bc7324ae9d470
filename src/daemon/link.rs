//! Requests to one executor from any thread, answered in any order.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::lock;
use crate::executor::link::{LinkError, LinkReceiver, LinkSender};
use crate::protocol::link::{LinkReply, LinkRequest};

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The executor is gone, or going.
    Lost,
    /// The time is over; the answer, should it come, is thrown away.
    Timeout,
    /// It was not sent: who asked may not ask any more.
    NotAllowed,
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

    /// Asks and waits, without limit when `timeout` is None. Errors: [`NoAnswer`].
    pub fn ask(
        &self,
        request: &LinkRequest,
        fd: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<LinkReply, NoAnswer> {
        self.ask_if(|| true, request, fd, timeout)
    }

    /// As [`Link::ask`], but sent only if `allowed` says so when its turn has come: what is sent before a `Reset` is
    /// ended by it, and nothing of the same client follows. Errors: [`NoAnswer`].
    pub fn ask_if(
        &self,
        allowed: impl FnOnce() -> bool,
        request: &LinkRequest,
        fd: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
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
        if let Err(why) = self.send_if(allowed, id, request, fd) {
            lock(&self.waiting).replies.remove(&id);
            return Err(why);
        }
        let Some(timeout) = timeout else { return reply.recv().map_err(|_| NoAnswer::Lost) };
        reply.recv_timeout(timeout).map_err(|error| {
            lock(&self.waiting).replies.remove(&id);
            match error {
                RecvTimeoutError::Timeout => NoAnswer::Timeout,
                RecvTimeoutError::Disconnected => NoAnswer::Lost,
            }
        })
    }

    fn send_if(
        &self,
        allowed: impl FnOnce() -> bool,
        id: u64,
        request: &LinkRequest,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), NoAnswer> {
        let mut sender = lock(&self.sender);
        if !allowed() {
            return Err(NoAnswer::NotAllowed);
        }
        sender.send(id, request, fd).map_err(|error| {
            tracing::debug!(%error, "link: send");
            NoAnswer::Lost
        })
    }

    /// Sends without waiting for an answer.
    pub fn tell(&self, request: &LinkRequest, fd: Option<BorrowedFd<'_>>) {
        // A link that is gone needs no word.
        let _ = lock(&self.sender).send(0, request, fd);
    }

    /// It has ended: every request is answered [`NoAnswer::Lost`].
    pub fn is_closed(&self) -> bool {
        lock(&self.waiting).closed
    }

    /// Hands replies to those who wait until the link ends, then wakes all that still wait. Errors: why it ended, when
    /// not by end of file.
    pub fn serve(&self, receiver: &mut LinkReceiver<LinkReply>) -> Result<(), LinkError> {
        let ended = loop {
            match receiver.recv() {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
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
