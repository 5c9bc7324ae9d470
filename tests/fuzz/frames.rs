//! Frames of the socket, in both directions: what a peer sends becomes a message or an error, and a message stays what it
//! is when it is sent on.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use rust_ort::protocol::frame::{FrameError, FrameHeader, FrameKind, HEADER_LEN, MAX_BODY_BYTES};
use rust_ort::protocol::wire::{self, DecodeError};

use crate::counting::most;
use crate::mutate::{self, Draws};
use crate::protobuf;
use crate::target::{Reached, Target};

pub const TARGET: Target = Target {
    name: "frames",
    seeds,
    open: || Box::new(frames),
    mutate: mutated,
    most_bytes: |len| 4096 * len + (64 << 10),
};

/// The golden frames.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_frame = |name: &String| ["_request.bin", "_reply.bin", "_notice.bin"].iter().any(|end| name.ends_with(end));
    entries.filter(is_frame).map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap())).collect()
}

/// A frame whose length holds, three times in four.
fn mutated(draws: &mut Draws, frame: &[u8], other: &[u8]) -> Vec<u8> {
    let body = |frame: &[u8]| frame.get(HEADER_LEN..).unwrap_or_default().to_vec();
    let (header, old) = (&frame[..HEADER_LEN.min(frame.len())], body(frame));
    let new = match draws.below(4) {
        0 => return mutate::bytes(draws, frame, other),
        1 => mutate::bytes(draws, &old, &body(other)),
        _ => protobuf::message(draws, &old, &body(other)),
    };
    let mut frame = [header, &new].concat();
    if let Some(length) = frame.get_mut(8..12) {
        length.copy_from_slice(&(new.len() as u32).to_le_bytes());
    }
    frame
}

fn frames(bytes: &[u8]) -> Reached {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Reached::refused("cut short") };
    let header = match FrameHeader::decode_request(head, MAX_BODY_BYTES) {
        Err(FrameError::Kind { .. }) => FrameHeader::decode_answer(head),
        decoded => decoded,
    };
    let header = match header {
        Ok(header) => header,
        Err(error) => return Reached::refused(error),
    };
    assert_eq!(header.encode(), *head, "a header that is read is the one that is written");
    let Some(body) = rest.get(..header.body_bytes as usize) else { return Reached::refused("body cut short") };
    match header.kind {
        FrameKind::Request => request(body),
        FrameKind::Reply => told(
            wire::decode_reply(shared(body)),
            |(id, reply)| (wire::encode_reply(*id, reply).unwrap(), kind(reply)),
            |body| wire::decode_reply(body).map(|(id, reply)| wire::encode_reply(id, &reply).unwrap()),
        ),
        FrameKind::Notice => told(
            wire::decode_notice(shared(body)),
            |notice| (wire::encode_notice(notice).unwrap(), kind(notice)),
            |body| wire::decode_notice(body).map(|notice| wire::encode_notice(&notice).unwrap()),
        ),
    }
}

fn request(body: &[u8]) -> Reached {
    let footprint = wire::footprint(body);
    let (limit, body) = (footprint.text_bytes + footprint.n_bytes + 4096, shared(body));
    let taken = most(|| wire::decode_request(body.clone()));
    assert!(taken <= limit, "decoding takes {taken} bytes, told at most {limit}");
    let (id, decoded) = wire::decode_request(body);
    told(
        decoded,
        |request| (wire::encode_request(id, request).unwrap(), kind(request)),
        |body| {
            let (id, request) = wire::decode_request(body);
            Ok(wire::encode_request(id, &request?).unwrap())
        },
    )
}

/// A message that was read is written, read and written to the same bytes. Bytes, because NaN is no NaN's equal.
fn told<T>(
    decoded: Result<T, DecodeError>,
    encode: impl Fn(&T) -> (Vec<u8>, String),
    again: impl Fn(Bytes) -> Result<Vec<u8>, DecodeError>,
) -> Reached {
    match decoded {
        Err(error) => Reached::refused(error),
        Ok(message) => {
            let (frame, kind) = encode(&message);
            let second = again(shared(&frame[HEADER_LEN..]));
            assert!(second.as_ref() == Ok(&frame), "{kind}: {second:?} is not {frame:?}");
            Reached::accepted(kind)
        }
    }
}

fn shared(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The name of a message's variant: what Debug writes first.
fn kind(message: &impl std::fmt::Debug) -> String {
    struct First(String);
    impl std::fmt::Write for First {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.push_str(text);
            Err(std::fmt::Error)
        }
    }
    let mut first = First(String::new());
    let _ = write!(first, "{message:?}");
    first.0
}
