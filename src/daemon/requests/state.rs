//! The states of a connection in which requests are served. Before `Hello` there is no client, and `connection` takes
//! nothing else; `Hello` makes it [`Connected`]; `LeaseExecutor` makes it [`Leased`]; with an open dump it is
//! [`Dumping`], leased or not. A request's function takes the state that it is legal in.

use std::cell::Cell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::daemon::client::Client;
use crate::daemon::executors::Executor;
use crate::daemon::ledger::Held;
use crate::daemon::shared::Daemon;
use crate::dump;
use crate::link::message::{LinkReply, LinkRequest};
use crate::protocol::control::Reply;
use crate::protocol::message::{ErrorCode, WireError};

/// What a request is answered; an error is what the client is told, and nothing has changed then.
pub type Answer = Result<Reply, WireError>;

/// A client that has said `Hello` and asks for something.
pub struct Connected<'a> {
    /// Everything shared.
    pub daemon: &'a Daemon,
    /// Who asks.
    pub client: &'a Client,
    /// The request's id.
    pub id: u64,
    /// Its name.
    pub asked: &'static str,
    /// Of the request, as it came.
    pub len_bytes: usize,
    /// What the request, its own bytes and decoded, counts for, until its answer; who keeps them takes it.
    pub body: Cell<Option<Held>>,
}

/// A client that holds an executor, alive or just lost. Handles and open lanes belong to the lease and go with it.
pub struct Leased<'a> {
    /// The rest of it.
    pub at: &'a Connected<'a>,
    /// What it holds.
    pub executor: Arc<Executor>,
}

/// A client with an open dump.
pub struct Dumping<'a> {
    /// The rest of it.
    pub at: &'a Connected<'a>,
    /// The dump.
    pub run: Arc<dump::Run>,
}

impl<'a> Connected<'a> {
    /// Errors: BadState without a lease.
    pub fn leased(&'a self) -> Result<Leased<'a>, WireError> {
        let executor = self.client.state().executor.clone();
        let executor = executor.ok_or_else(|| self.bad_state("no executor; send LeaseExecutor first"))?;
        Ok(Leased { at: self, executor })
    }

    /// None without an open dump.
    pub fn dumping(&'a self) -> Option<Dumping<'a>> {
        let run = self.client.state().dump.clone()?;
        Some(Dumping { at: self, run })
    }

    /// As [`Connected::dumping`], for a request that needs it, `field` of it (".dump") or all ("").
    /// Errors: BadState without an open dump.
    pub fn must_dump(&'a self, field: &str) -> Result<Dumping<'a>, WireError> {
        self.dumping().ok_or_else(|| {
            let why = format!("{}{field}: no dump is open; send OpenDump first", self.asked);
            WireError::client(ErrorCode::BadState, why)
        })
    }

    /// The error of a request that is not legal now.
    pub fn bad_state(&self, why: &str) -> WireError {
        WireError::client(ErrorCode::BadState, format!("{}: {why}", self.asked))
    }

    /// Counts bytes that are kept of a request, in the place of the request's own. Errors: Limit.
    pub fn hold(&self, what: fmt::Arguments<'_>, len_bytes: usize) -> Result<Held, WireError> {
        drop(self.body.take());
        self.client.memory.hold(&what.to_string(), len_bytes)
    }

    /// Asks the client's executor what it answers at once, `what` in words, while the client is there.
    pub fn ask_quickly(
        &self,
        executor: &Executor,
        (what, request): (&str, &LinkRequest),
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<LinkReply, WireError> {
        executor.ask_quickly(self.client.id, (what, request), fd, &|| !self.client.transport.peer_left())
    }
}

impl Leased<'_> {
    /// Asks the executor, for as long as it takes: on the thread of what takes long.
    pub fn ask(&self, request: &LinkRequest) -> Result<LinkReply, WireError> {
        self.executor.ask(self.at.client.id, request)
    }
}

/// An answer of the executor that is none to `request`.
pub fn unexpected(request: &str, reply: &LinkReply) -> WireError {
    WireError::fault(ErrorCode::Internal, format!("the executor answered {request} with {reply:?}"))
}
