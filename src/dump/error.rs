//! Why a dump cannot be written or read.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use displaydoc::Display;
use serde::Serialize;
use thiserror::Error;

use crate::onnx::OnnxError;

/// {path}: damaged: {reason}; copy it again from where it was written (`rust-ort verify` lists all that is damaged)
#[derive(Clone, Debug, Display, Error, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// By what it is known.
    pub reason: String,
}

impl Damage {
    pub(super) fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into() }
    }

    /// The damage that an error is of, or of which one of its causes is.
    pub fn of<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(damage) = error.downcast_ref() {
                return Some(damage);
            }
            if let Some(DumpError::Damaged(damage)) = error.downcast_ref() {
                return Some(damage);
            }
            next = match error.downcast_ref::<io::Error>() {
                Some(error) => error.get_ref().map(|inner| inner as &(dyn StdError + 'static)),
                None => error.source(),
            };
        }
        None
    }
}

impl From<Damage> for io::Error {
    fn from(damage: Damage) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, damage)
    }
}

/// Why a dump cannot be opened, or why what the client sent cannot be part of one.
#[derive(Debug, Display, Error)]
pub enum DumpError {
    /// {path}: cannot {action}: {source}
    Io {
        /// The file or folder.
        path: PathBuf,
        /// "create", "list", …
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// {what} name {name:?}: expected 1 to 200 bytes without '/', control characters or a leading '.', and not "tensors"
    /// for a run; choose another name
    BadName {
        /// "run", "graph", "node" or "value".
        what: &'static str,
        /// As given, its start.
        name: String,
    },
    /// {what}: no JSON: {source}; send a JSON object
    BadJson {
        /// "run.json", …
        what: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// {path}: not a dump of ours (no run.json that says so), so it stays; choose another folder or run
    NotOurs {
        /// The run's folder.
        path: PathBuf,
    },
    /// {path}: {stranger} in it is not ours, so that nothing is removed; move it elsewhere, or choose another run
    Stranger {
        /// The run's folder.
        path: PathBuf,
        /// What is there.
        stranger: PathBuf,
    },
    /// {path}: a dump of version {found:?}, expected {expected:?}; open it with clean, or choose another run
    OtherVersion {
        /// The run's folder.
        path: PathBuf,
        /// The schema in its run.json.
        found: String,
        /// This version's.
        expected: &'static str,
    },
    /// {path}: another client is writing this dump; choose another run name
    Busy {
        /// The run's folder.
        path: PathBuf,
    },
    /// {path}: not a folder of dumps: neither runs nor tensors of ours are in it; name the folder that holds the runs
    NoRuns {
        /// The folder.
        path: PathBuf,
    },
    /// {path}: neither a folder of dumps, a run, a graph, a part, a data set, a folder of a node, nor a .onnx, .pb,
    /// .json or .txt file; name one
    NoDump {
        /// The path.
        path: PathBuf,
    },
    /// {0}
    Damaged(Damage),
    /// {0}
    Onnx(#[from] OnnxError),
}

impl DumpError {
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match Damage::of(&source) {
            Some(damage) => Self::Damaged(damage.clone()),
            None => Self::Io { path, action, source },
        }
    }
}
