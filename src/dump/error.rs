//! Why a dump cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

use displaydoc::Display;
use thiserror::Error;

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
    /// {path}: neither a folder of dumps, a run, a graph, a part, a data set, a folder of a node, nor a .onnx, .pb or
    /// .json file; name one
    NoDump {
        /// The path.
        path: PathBuf,
    },
}

impl DumpError {
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}
