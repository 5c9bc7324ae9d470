//! The fixed header in front of every message on the socket (docs/design/protocol.md).

use thiserror::Error;

use crate::base::limits;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;
/// Version of frames and messages this build speaks.
pub const VERSION: u16 = 1;
/// Largest body once `Hello` is answered.
pub const MAX_BODY_BYTES: u32 = limits::BODY_BYTES;

const MAGIC: [u8; 4] = *b"RORT";

/// What a frame's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// Client to daemon.
    Request = 1,
    /// Daemon to client, answers one request.
    Reply = 2,
    /// Daemon to client, unasked.
    Notice = 3,
}

/// A checked header.
///
/// ```
/// use rust_ort::protocol::frame::{self, FrameError, FrameHeader, FrameKind, HEADER_LEN};
///
/// let frame = frame::encode(FrameKind::Request, b"body")?;
/// let (header, body) = frame.split_first_chunk::<HEADER_LEN>().expect("a header is there");
/// let header = FrameHeader::decode_request(header, 1024)?;
/// assert_eq!((header.kind, header.body_bytes as usize), (FrameKind::Request, body.len()));
///
/// let too_long = FrameHeader { body_bytes: 1025, ..header }.encode();
/// assert!(matches!(FrameHeader::decode_request(&too_long, 1024), Err(FrameError::Length { .. })));
/// # Ok::<(), FrameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What follows.
    pub kind: FrameKind,
    /// Bytes of the body that follows.
    pub body_bytes: u32,
}

/// Why 16 bytes are no header. After one of these the stream has no next frame one could trust.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The first four bytes are another protocol's.
    #[error("frame magic: expected \"RORT\", got {0:02x?}; another program speaks on this socket")]
    Magic([u8; 4]),
    /// A peer of another version.
    #[error(
        "frame version: this side (rust-ort {}) speaks {VERSION}, the peer speaks {peer}; install equal versions of the \
         rust-ort package and its daemon, then run `rust-ort stop`",
        env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The peer's version.
        peer: u16,
    },
    /// A kind that does not exist, or not in this direction.
    #[error("frame kind: expected {expected}, got {got}")]
    Kind {
        /// Kinds this side reads, in words.
        expected: &'static str,
        /// The number received.
        got: u16,
    },
    /// Bytes 12 to 16 are not 0.
    #[error("frame reserved bytes: expected 0, got {0:#x}")]
    Reserved(u32),
    /// The body is longer than allowed here.
    #[error("frame length: expected at most {max_bytes} bytes, got {got_bytes}; send large tensors through a segment")]
    Length {
        /// Largest body allowed at this point of the connection.
        max_bytes: u32,
        /// Bytes announced.
        got_bytes: u32,
    },
}

impl FrameHeader {
    /// The header on the wire.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    /// A header of a request, as the daemon reads it. Errors: [`FrameError`], the first that applies in its order.
    pub fn decode_request(bytes: &[u8; HEADER_LEN], max_bytes: u32) -> Result<Self, FrameError> {
        let header = Self::decode(bytes, max_bytes)?;
        match header.kind {
            FrameKind::Request => Ok(header),
            other => Err(FrameError::Kind { expected: "1 (Request)", got: other as u16 }),
        }
    }

    /// A header of a reply or notice, as a client reads it. Errors: [`FrameError`].
    pub fn decode_answer(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let header = Self::decode(bytes, MAX_BODY_BYTES)?;
        match header.kind {
            FrameKind::Reply | FrameKind::Notice => Ok(header),
            FrameKind::Request => Err(FrameError::Kind { expected: "2 (Reply) or 3 (Notice)", got: 1 }),
        }
    }

    fn decode(bytes: &[u8; HEADER_LEN], max_bytes: u32) -> Result<Self, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if u16_at(4) != VERSION {
            return Err(FrameError::Version { peer: u16_at(4) });
        }
        let kind = match u16_at(6) {
            1 => FrameKind::Request,
            2 => FrameKind::Reply,
            3 => FrameKind::Notice,
            got => return Err(FrameError::Kind { expected: "1 (Request), 2 (Reply) or 3 (Notice)", got }),
        };
        if u32_at(12) != 0 {
            return Err(FrameError::Reserved(u32_at(12)));
        }
        let body_bytes = u32_at(8);
        if body_bytes > max_bytes {
            return Err(FrameError::Length { max_bytes, got_bytes: body_bytes });
        }
        Ok(Self { kind, body_bytes })
    }
}

/// Header and body in one buffer. Errors: [`FrameError::Length`].
pub fn encode(kind: FrameKind, body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
    if body_bytes > MAX_BODY_BYTES {
        return Err(FrameError::Length { max_bytes: MAX_BODY_BYTES, got_bytes: body_bytes });
    }
    let mut frame = Vec::with_capacity(HEADER_LEN + body.len());
    frame.extend_from_slice(&FrameHeader { kind, body_bytes }.encode());
    frame.extend_from_slice(body);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good() -> [u8; HEADER_LEN] {
        FrameHeader { kind: FrameKind::Request, body_bytes: 7 }.encode()
    }

    #[test]
    fn header_reads_what_it_writes() {
        for kind in [FrameKind::Reply, FrameKind::Notice] {
            let header = FrameHeader { kind, body_bytes: MAX_BODY_BYTES };
            assert_eq!(FrameHeader::decode_answer(&header.encode()), Ok(header));
        }
        let header = FrameHeader { kind: FrameKind::Request, body_bytes: 0 };
        assert_eq!(FrameHeader::decode_request(&header.encode(), 0), Ok(header));
    }

    #[test]
    fn each_field_is_checked() {
        let with = |at: usize, value: u8| {
            let mut bytes = good();
            bytes[at] = value;
            FrameHeader::decode_request(&bytes, 64)
        };
        assert_eq!(with(0, b'X'), Err(FrameError::Magic(*b"XORT")));
        assert_eq!(with(4, 2), Err(FrameError::Version { peer: 2 }));
        assert!(matches!(with(6, 0), Err(FrameError::Kind { got: 0, .. })));
        assert!(matches!(with(6, 2), Err(FrameError::Kind { got: 2, .. })));
        assert!(matches!(with(6, 4), Err(FrameError::Kind { got: 4, .. })));
        assert_eq!(with(8, 65), Err(FrameError::Length { max_bytes: 64, got_bytes: 65 }));
        for at in 12..16 {
            assert!(matches!(with(at, 1), Err(FrameError::Reserved(_))));
        }
    }

    #[test]
    fn version_error_names_both_versions() {
        let text = FrameError::Version { peer: 7 }.to_string();
        assert!(text.contains("speaks 1") && text.contains("speaks 7"), "{text}");
    }

    proptest! {
        #[test]
        fn any_accepted_header_encodes_back(bytes: [u8; HEADER_LEN], cut in 0_usize..16) {
            let mut near = good();
            near[cut..].copy_from_slice(&bytes[cut..]);
            if let Ok(header) = FrameHeader::decode_request(&near, MAX_BODY_BYTES) {
                prop_assert_eq!(header.encode(), near);
            }
        }
    }
}
