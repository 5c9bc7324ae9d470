//! One connection's threads: frames in, replies out, and everything returned at the end, however it comes.
//!
//! One thread reads and answers what is quick. What takes long goes to the other, one request at a time: so the end of a
//! client is seen, and a segment of its attached, while it waits for a run or for a session.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::base::footprint::Footprint;
use crate::base::limits;
use crate::base::process;
use crate::base::sync::lock;
use crate::daemon::client::Client;
use crate::daemon::errors::last_word;
use crate::daemon::ledger::Held;
use crate::daemon::places::Place;
use crate::daemon::requests::{self, Connected, takes_long};
use crate::daemon::shared::Daemon;
use crate::daemon::shared::Ended;
use crate::link::transport::{Counted, Head, Transport, TransportError};
use crate::protocol::control::{Hello, Reply, Request, Welcome};
use crate::protocol::frame::{FrameHeader, VERSION};
use crate::protocol::message::{ErrorCode, WireError};
use crate::protocol::wire;

/// Serves a connection until either side ends it, or, as long as it is silent, until its place is wanted.
pub fn serve(daemon: &Arc<Daemon>, transport: Arc<Transport>, mut place: Place) {
    let ended = greet(daemon, &transport, &mut place).and_then(|client| {
        let leaving = Leaving::new(daemon, client)?;
        read_requests(daemon, &leaving, &mut place)
    });
    let Err(error) = ended;
    match last_word(&error) {
        None => tracing::debug!(%error, "connection ended"),
        Some(word) => {
            tracing::warn!(%error, "connection refused");
            // The peer may be gone already.
            let _ = answer(&transport, 0, &Reply::Error(word));
        }
    }
    transport.shut_down();
}

/// A connection has no client without Hello, and ends with an error.
type Served<T> = Result<T, TransportError>;

/// Reads requests until one is a good `Hello`.
fn greet(daemon: &Arc<Daemon>, transport: &Arc<Transport>, place: &mut Place) -> Served<Arc<Client>> {
    let deadline = Instant::now() + limits::HANDSHAKE;
    loop {
        let check = |header: &_| FrameHeader::decode_request(header, limits::HELLO_BYTES);
        let frame = transport.receive(check, Some(deadline))?;
        if let Some(refused) = too_much_for_hello(&frame.body) {
            answer(transport, wire::request_id(&frame.body), &Reply::Error(refused))?;
            continue;
        }
        let (id, request) = wire::decode_request(frame.body);
        let refused: WireError = match request {
            Ok(Request::Hello(hello)) if hello.protocol == u32::from(VERSION) => {
                if !place.greet() {
                    return Err(TransportError::Closed);
                }
                return welcome(daemon, transport, id, hello);
            }
            Ok(Request::Hello(hello)) => {
                answer(transport, id, &Reply::Error(other_version(&hello)))?;
                return Err(TransportError::Closed);
            }
            Ok(other) => {
                WireError::client(ErrorCode::BadState, format!("{} before Hello; send Hello first", other.name()))
            }
            Err(error) => error.into(),
        };
        answer(transport, id, &Reply::Error(refused))?;
    }
}

/// Why a frame before `Hello` is not decoded: nothing is counted for who has not said who it is.
fn too_much_for_hello(body: &[u8]) -> Option<WireError> {
    let Footprint { n_elements, n_bytes, .. } = wire::footprint(body);
    (n_bytes > limits::SMALL_DECODED_BYTES).then(|| {
        let why = format!(
            "request before Hello: {n_elements} elements, which decode to {n_bytes} bytes: expected at most {}; send \
             Hello first",
            limits::SMALL_DECODED_BYTES
        );
        WireError::client(ErrorCode::Limit, why)
    })
}

fn other_version(hello: &Hello) -> WireError {
    WireError::client(
        ErrorCode::ProtocolVersion,
        format!(
            "protocol version: this daemon (rust-ort {}) speaks {VERSION}, the client (rust_ort {:?}) speaks {}; install \
             equal versions of the package and its daemon, then run `rust-ort stop`",
            env!("CARGO_PKG_VERSION"),
            hello.shim_version,
            hello.protocol
        ),
    )
}

fn welcome(daemon: &Daemon, transport: &Arc<Transport>, request_id: u64, hello: Hello) -> Served<Arc<Client>> {
    let id = daemon.next_client();
    tracing::info!(client = id.0, pid = hello.pid, program = hello.program, "client");
    let client = Arc::new(Client::new(id, hello, Arc::clone(transport), &daemon.ledgers));
    let reply = Welcome {
        protocol: VERSION.into(),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        client: id,
        daemon_pid: std::process::id(),
        log: daemon.log.display().to_string(),
        pid_namespace: process::pid_namespace(),
    };
    answer(transport, request_id, &Reply::Welcome(reply))?;
    lock(&daemon.clients).insert(id, Arc::clone(&client));
    Ok(client)
}

/// A request on its way to its answer.
struct Pending {
    id: u64,
    request: Request,
    len_bytes: usize,
    fd: Option<OwnedFd>,
    /// What its bytes, and what they decoded to, count for.
    body: Option<Held>,
}

fn read_requests(daemon: &Daemon, leaving: &Leaving<'_>, place: &mut Place) -> Served<std::convert::Infallible> {
    let client = &leaving.client;
    loop {
        let head =
            client.transport.receive_head(|header| FrameHeader::decode_request(header, limits::BODY_BYTES), None)?;
        let Some(Body { id, request, held: body }) = read(client, &head)? else { continue };
        match request.and_then(|request| place.admit(&request).map(|()| request)) {
            Err(error) => refuse(client, id, error)?,
            Ok(request) => {
                tracing::debug!(client = client.id.0, request = request.name(), id, "request");
                let len_bytes = head.header.body_bytes as usize;
                let pending = Pending { id, fd: head.fd, body, request, len_bytes };
                if takes_long(&pending.request) {
                    leaving.queue(pending)?
                } else {
                    answer_one(daemon, client, pending)?
                }
            }
        }
    }
}

/// A request as it came.
struct Body {
    id: u64,
    request: Result<Request, WireError>,
    held: Option<Held>,
}

/// A request with its id; None when there is no room for it, which the client was told.
fn read(client: &Client, head: &Head) -> Served<Option<Body>> {
    let len_bytes = head.header.body_bytes;
    let mut held: Option<Held> = None;
    let hold = |len_bytes: usize| client.memory.hold("request", len_bytes);
    let received = client.transport.receive_body(head, |step_bytes| {
        if len_bytes <= limits::SMALL_BODY_BYTES {
            return Ok(());
        }
        match &mut held {
            Some(held) => held.add(hold(step_bytes)?),
            None => {
                // Refused at once where there is no room for all of it now. What is announced alone holds nothing.
                drop(hold(len_bytes as usize)?);
                held = Some(hold(step_bytes)?);
            }
        }
        Ok(())
    })?;
    let body = match received {
        Counted::Whole(body) => body,
        Counted::Refused { start, why } => {
            drop(held);
            refuse(client, wire::request_id(&start), why)?;
            return Ok(None);
        }
    };
    match hold_decoded(client, &body) {
        Err(why) => {
            drop(held);
            refuse(client, wire::request_id(&body), why)?;
            return Ok(None);
        }
        Ok(None) => {}
        Ok(Some(decoded)) => match &mut held {
            Some(held) => held.add(decoded),
            None => held = Some(decoded),
        },
    }
    let (id, request) = wire::decode_request(body);
    Ok(Some(Body { id, request: request.map_err(WireError::from), held }))
}

/// Counts what a request decodes to, before it is decoded: a few bytes of it may be an element of hundreds. None: so
/// little that it is not counted. Errors: Limit.
fn hold_decoded(client: &Client, body: &[u8]) -> Result<Option<Held>, WireError> {
    let Footprint { n_elements, n_bytes, .. } = wire::footprint(body);
    if body.len() <= limits::SMALL_BODY_BYTES as usize && n_bytes <= limits::SMALL_DECODED_BYTES {
        return Ok(None);
    }
    let what = format!("request of {} bytes, decoded: {n_elements} elements", body.len());
    client.memory.hold(&what, n_bytes).map(Some)
}

fn refuse(client: &Client, id: u64, error: WireError) -> Served<()> {
    tracing::debug!(client = client.id.0, id, code = ?error.code, %error, "refused");
    answer(&client.transport, id, &Reply::Error(error))
}

fn answer_one(daemon: &Daemon, client: &Client, pending: Pending) -> Served<()> {
    let Pending { id, request, len_bytes, fd, body } = pending;
    let (stops, long) = (matches!(request, Request::Stop { .. }), takes_long(&request));
    let at = Connected { daemon, client, id, asked: request.name(), len_bytes, body: Cell::new(body) };
    let reply = answer_or_panic(|| requests::answer(&at, request, fd));
    let reply = reply.unwrap_or_else(|error| {
        if long && error.code == ErrorCode::Internal {
            client.state().nothing_runs();
        }
        tracing::debug!(client = client.id.0, id, code = ?error.code, %error, "refused");
        Reply::Error(error)
    });
    let sent = answer(&client.transport, id, &reply);
    // It ends also where a dump is told to be incomplete: that is all that could be done.
    if stops && (reply == Reply::Done || matches!(&reply, Reply::Error(error) if error.code == ErrorCode::Dump)) {
        daemon.end(Ended::Asked);
    }
    sent
}

/// What takes long, until the client leaves.
fn serve_queue(daemon: &Daemon, client: &Client, queue: &Receiver<Box<Pending>>) {
    for pending in queue {
        if client.is_there().is_err() {
            return;
        }
        if let Err(error) = answer_one(daemon, client, *pending) {
            tracing::debug!(client = client.id.0, %error, "reply not sent");
            // The reading thread wakes up and ends the connection.
            client.transport.shut_down();
            return;
        }
    }
}

/// The request's answer. A panic costs the request alone: Internal.
fn answer_or_panic(handle: impl FnOnce() -> Result<Reply, WireError>) -> Result<Reply, WireError> {
    catch_unwind(AssertUnwindSafe(handle)).unwrap_or_else(|_| {
        let message = "the daemon panicked in this request; run again, and please report it with the daemon's log";
        Err(WireError::fault(ErrorCode::Internal, message))
    })
}

fn answer(transport: &Transport, request_id: u64, reply: &Reply) -> Served<()> {
    let frame = wire::encode_reply(request_id, reply).or_else(|error| {
        wire::encode_reply(request_id, &Reply::Error(WireError::fault(ErrorCode::Limit, error.to_string())))
    })?;
    Ok(transport.send(&frame, None)?)
}

/// A client and the thread that serves its long requests; returns what it held, also when a thread panics.
struct Leaving<'a> {
    daemon: &'a Arc<Daemon>,
    client: Arc<Client>,
    /// None when it is leaving.
    queue: Option<SyncSender<Box<Pending>>>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Leaving<'a> {
    fn new(daemon: &'a Arc<Daemon>, client: Arc<Client>) -> Served<Self> {
        let (queue, queued) = sync_channel(limits::WAITING_REQUESTS);
        let mut leaving = Self { daemon, client, queue: Some(queue), thread: None };
        let (daemon, client) = (Arc::clone(leaving.daemon), Arc::clone(&leaving.client));
        let thread = std::thread::Builder::new().name("requests".to_owned());
        let started = thread.spawn(move || serve_queue(&daemon, &client, &queued));
        leaving.thread = Some(started.map_err(TransportError::NoThread)?);
        Ok(leaving)
    }

    fn queue(&self, pending: Pending) -> Served<()> {
        match self.queue.as_ref().map(|queue| queue.try_send(Box::new(pending))) {
            Some(Err(TrySendError::Full(pending))) => {
                let why = format!(
                    "{}: {} requests of this client wait already; wait for their answers",
                    pending.request.name(),
                    limits::WAITING_REQUESTS
                );
                refuse(&self.client, pending.id, WireError::client(ErrorCode::Limit, why))
            }
            Some(Ok(())) => Ok(()),
            // Its thread ended, since nothing can be sent.
            Some(Err(TrySendError::Disconnected(_))) | None => Err(TransportError::Closed),
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let client = &self.client;
        let held = client.leave();
        if let Some(executor) = held.executor.as_ref().filter(|executor| !executor.is_gone()) {
            // Ends the run that the other thread may wait for, too.
            self.daemon.pool.give_back(executor);
            if !executor.is_gone() {
                let parts = held.parts.values().map(|part| &part.spec.part);
                parts.for_each(|part| self.daemon.post_mortem.quarantine.survived(part.graph, part.part));
            }
        }
        drop(held);
        drop(self.queue.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(client = client.id.0, "the thread of its requests panicked");
        }
        requests::dumps::leave(self.daemon, client);
        lock(&self.daemon.clients).remove(&client.id);
        tracing::info!(client = client.id.0, "client left");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_answer_of_its_request() {
        let error = answer_or_panic(|| panic!("in a request")).unwrap_err();
        assert!(error.code == ErrorCode::Internal && error.message.contains("report"), "{error:?}");
        assert_eq!(answer_or_panic(|| Ok(Reply::Done)), Ok(Reply::Done));
    }
}
