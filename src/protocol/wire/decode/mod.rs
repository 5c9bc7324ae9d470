//! Generated types → domain types. Every field of a peer is checked here.

mod field;
mod reply;
mod request;

use bytes::Bytes;
use prost::Message as _;

pub(super) use field::Decoded;
use field::missing;
pub use field::{DecodeError, is_folder_name};
use reply::{notice, reply};
use request::request;

use super::super::control::{Notice, Reply, Request};
use super::proto;

/// A request as it came: its id, which is known even when the rest is refused, and the rest.
pub fn decode_request(body: Bytes) -> (u64, Decoded<Request>) {
    let guess = request_id(&body);
    match proto::Request::decode(body) {
        Ok(message) => (message.request_id, message.body.ok_or(missing("Request.body")).and_then(request)),
        Err(error) => (guess, Err(DecodeError::Protobuf(error.to_string()))),
    }
}

/// The request id of a body that is otherwise broken or not read to its end, when it stands first as every known encoder
/// writes it; else 0.
pub fn request_id(body_start: &[u8]) -> u64 {
    match body_start {
        [0x08, rest @ ..] => prost::encoding::decode_varint(&mut &rest[..]).unwrap_or(0),
        _ => 0,
    }
}

/// The reply in a body, for clients written in Rust. Errors: [`DecodeError`].
pub fn decode_reply(body: Bytes) -> Decoded<(u64, Reply)> {
    let message = proto::Reply::decode(body).map_err(|error| DecodeError::Protobuf(error.to_string()))?;
    Ok((message.request_id, reply(message.body.ok_or(missing("Reply.body"))?)?))
}

/// The notice in a body, for clients written in Rust. Errors: [`DecodeError`].
pub fn decode_notice(body: Bytes) -> Decoded<Notice> {
    let message = proto::Notice::decode(body).map_err(|error| DecodeError::Protobuf(error.to_string()))?;
    Ok(notice(message.body.ok_or(missing("Notice.body"))?))
}
