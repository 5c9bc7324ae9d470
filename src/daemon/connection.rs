//! One connection's thread: frames in, replies out, and everything returned at the end, however it comes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::Client;
use super::errors::{client as client_error, fault};
use super::handler::Handler;
use super::transport::{Transport, TransportError};
use super::{Daemon, Ended, limits, lock};
use crate::ids::ClientId;
use crate::protocol::control::{Hello, Reply, Request, Welcome};
use crate::protocol::frame::{FrameHeader, VERSION};
use crate::protocol::message::{ErrorCode, WireError};
use crate::protocol::wire;

/// Serves a connection until either side ends it.
pub fn serve(daemon: &Arc<Daemon>, transport: Arc<Transport>) {
    let ended = greet(daemon, &transport).and_then(|client| {
        let leaving = Leaving { daemon, client };
        requests(daemon, &leaving.client)
    });
    let Err(error) = ended;
    match error.last_word() {
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
fn greet(daemon: &Arc<Daemon>, transport: &Arc<Transport>) -> Served<Arc<Client>> {
    let deadline = Instant::now() + limits::HANDSHAKE;
    loop {
        let check = |header: &_| FrameHeader::decode_request(header, limits::HELLO_BYTES);
        let frame = transport.receive(check, Some(deadline))?;
        let (id, request) = wire::decode_request(frame.body);
        let refused: WireError = match request {
            Ok(Request::Hello(hello)) if hello.protocol == u32::from(VERSION) => {
                return welcome(daemon, transport, id, hello);
            }
            Ok(Request::Hello(hello)) => {
                answer(transport, id, &Reply::Error(other_version(&hello)))?;
                return Err(TransportError::Closed);
            }
            Ok(other) => client_error(ErrorCode::BadState, format!("{} before Hello; send Hello first", other.name())),
            Err(error) => error.into(),
        };
        answer(transport, id, &Reply::Error(refused))?;
    }
}

fn other_version(hello: &Hello) -> WireError {
    client_error(
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
    let id = ClientId(daemon.next_number());
    tracing::info!(client = id.0, pid = hello.pid, program = hello.program, "client");
    let client = Arc::new(Client::new(id, hello, Arc::clone(transport)));
    let reply = Welcome {
        protocol: VERSION.into(),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        client: id,
        daemon_pid: std::process::id(),
        log: daemon.log.display().to_string(),
    };
    answer(transport, request_id, &Reply::Welcome(reply))?;
    lock(&daemon.clients).insert(id, Arc::clone(&client));
    Ok(client)
}

fn requests(daemon: &Daemon, client: &Client) -> Served<std::convert::Infallible> {
    let handler = Handler { daemon, client };
    loop {
        let check = |header: &_| FrameHeader::decode_request(header, limits::BODY_BYTES);
        let frame = client.transport.receive(check, None)?;
        let (id, request) = wire::decode_request(frame.body);
        let stops = matches!(request, Ok(Request::Stop { .. }));
        let reply = request.map_err(WireError::from).and_then(|request| {
            tracing::debug!(client = client.id.0, request = request.name(), id, "request");
            answer_or_panic(|| handler.handle(request, frame.fd)).inspect_err(|error| {
                if error.code == ErrorCode::Internal {
                    client.state().nothing_runs();
                }
            })
        });
        let reply = reply.unwrap_or_else(|error| {
            tracing::debug!(client = client.id.0, id, code = ?error.code, %error, "refused");
            Reply::Error(error)
        });
        let sent = answer(&client.transport, id, &reply);
        // It ends also where a dump is told to be incomplete: that is all that could be done.
        if stops && (reply == Reply::Done || matches!(&reply, Reply::Error(error) if error.code == ErrorCode::Dump)) {
            daemon.end(Ended::Asked);
        }
        sent?;
    }
}

/// The handler's answer. A panic costs the request alone: Internal.
fn answer_or_panic(handle: impl FnOnce() -> Result<Reply, WireError>) -> Result<Reply, WireError> {
    catch_unwind(AssertUnwindSafe(handle)).unwrap_or_else(|_| {
        let message = "the daemon panicked in this request; run again, and please report it with the daemon's log";
        Err(fault(ErrorCode::Internal, message))
    })
}

fn answer(transport: &Transport, request_id: u64, reply: &Reply) -> Served<()> {
    let frame = wire::encode_reply(request_id, reply)
        .or_else(|error| wire::encode_reply(request_id, &Reply::Error(fault(ErrorCode::Limit, error.to_string()))))?;
    Ok(transport.send(&frame, None)?)
}

/// Returns what the client held, also when its thread panics.
struct Leaving<'a> {
    daemon: &'a Daemon,
    client: Arc<Client>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let client = &self.client;
        // The dump stays where a daemon that ends finds it, until it is written.
        let (executor, parts, dump) = {
            let mut state = client.state();
            let parts: Vec<_> = state.parts.values().map(|part| (part.spec.part.graph, part.spec.part.part)).collect();
            (state.executor.take(), parts, state.dump.clone())
        };
        if let Some(executor) = executor.filter(|executor| !executor.is_gone()) {
            self.daemon.pool.give_back(&executor);
            if !executor.is_gone() {
                parts.into_iter().for_each(|(graph, part)| self.daemon.quarantine.survived(graph, part));
            }
        }
        if let Some(dump) = dump {
            dump.end_within(Duration::MAX);
            client.state().dump = None;
        }
        lock(&self.daemon.clients).remove(&client.id);
        tracing::info!(client = client.id.0, "client left");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_answer_of_its_request() {
        let error = answer_or_panic(|| panic!("in the handler")).unwrap_err();
        assert!(error.code == ErrorCode::Internal && error.message.contains("report"), "{error:?}");
        assert_eq!(answer_or_panic(|| Ok(Reply::Done)), Ok(Reply::Done));
    }
}
