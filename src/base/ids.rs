//! Names of things that travel between processes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A connection, for the daemon's lifetime. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// An executor process, for the daemon's lifetime. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecutorId(pub u64);

/// One call of a compiled graph, chosen by the client, unique in its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallId(pub u64);

/// What a client waits for, and may wait for no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Work {
    /// A call, over a lane or observed.
    Call(CallId),
    /// A request of this id that prepares a part, dumps parts of a graph or compares nodes.
    Request(u64),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Call(call) => write!(f, "call {}", call.0),
            Work::Request(id) => write!(f, "request {id}"),
        }
    }
}

/// Position of a call among the calls of its graph in one client, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepId(pub u64);

/// A prepared part of a graph, valid for one lease of one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartHandle(pub u32);

/// A memory segment of one client, chosen by it, below 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl SegmentId {
    /// Exclusive upper bound: a location keeps 24 bits for the segment.
    pub const LIMIT: u32 = 1 << 24;
}

/// A GPU, as its driver names it: the same in every process and container, whatever CUDA_VISIBLE_DEVICES hides or reorders.
/// Written as NVIDIA does: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceUuid(pub [u8; 16]);

/// GPU {0:?}: expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in lowercase hexadecimal digits; nvidia-smi -L lists them
#[derive(Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct BadDeviceUuid(pub String);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeviceUuid {
    type Err = BadDeviceUuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 16];
        let mut digits = text.bytes().filter_map(|digit| char::from(digit).to_digit(16));
        for byte in &mut bytes {
            let (high, low) = (digits.next().unwrap_or(0), digits.next().unwrap_or(0));
            *byte = (high << 4 | low) as u8;
        }
        // What is not written exactly so has other digits, too few, or dashes elsewhere.
        let uuid = Self(bytes);
        if uuid.to_string() == text { Ok(uuid) } else { Err(BadDeviceUuid(text.chars().take(80).collect())) }
    }
}

/// Name of a value in an ONNX graph; equal to the FX node's name where one stands behind it.
pub type ValueName = String;

/// Content hash of an AOT graph: 32 bytes, written as 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphId([u8; 32]);

/// graph id {0:?}: expected 64 lowercase hexadecimal digits; send the hash the shim computed
#[derive(Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct BadGraphId(pub String);

impl GraphId {
    /// The identity with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The first eight digits, for logs and folder names.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for GraphId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for GraphId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphId({self})")
    }
}

impl FromStr for GraphId {
    type Err = BadGraphId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadGraphId(text.chars().take(80).collect());
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| match digit {
                b'0'..=b'9' => Some(digit - b'0'),
                b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            *byte = match (nibble(pair[0]), nibble(pair[1])) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err(bad()),
            };
        }
        Ok(Self(bytes))
    }
}

impl Serialize for GraphId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GraphId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_id_reads_what_it_writes() {
        let id = GraphId::from_bytes(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(id.to_string().parse::<GraphId>(), Ok(id));
        assert_eq!(id.short(), "00070e15");
    }

    #[test]
    fn device_uuid_is_written_as_nvidia_writes_it_and_read_back() {
        let uuid = DeviceUuid(std::array::from_fn(|i| i as u8 * 17));
        assert_eq!(uuid.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
    }

    #[test]
    fn device_uuid_refuses_other_texts() {
        let right = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let wrong = [
            "",
            "GPU-",
            "GPU",
            "0",
            &right[4..],
            &right[..39],
            &right.replace("GPU", "MIG"),
            &right.to_uppercase(),
            &right.replace("-4455", "4-455"),
            &format!("{right}0"),
            &format!("{right} "),
            &"é".repeat(20),
        ];
        for text in wrong {
            assert!(text.parse::<DeviceUuid>().is_err(), "{text}");
        }
    }

    #[test]
    fn graph_id_refuses_other_texts() {
        for text in ["", "00", &"A".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            assert!(text.parse::<GraphId>().is_err(), "{text}");
        }
    }
}
