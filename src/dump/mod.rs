//! Graphs, models and tensors on disk, in a layout that other tools read.
//!
//! `<folder>/<run>/<graph>/part_<k>/test_data_set_<step>/`; equal tensors stand once below `<folder>/tensors/`. Every
//! file is written whole or not at all, a data set's `manifest.json` last. What cannot be written (a full disk) is told
//! in the [`FlushReport`] and the log, and never stops the run. Files are not synced: they outlive any process, not a
//! power cut. A tensor past 2 GiB is written too, though protobuf's own readers refuse it; [`crate::onnx`] reads it.

mod error;
mod files;
mod judging;
mod layout;
mod message;
mod nodes;
mod owner;
pub mod reader;
mod retention;
mod rules;
mod run;
mod seal;
mod store;
mod values;
mod verify;
mod writer;

pub use crate::protocol::control::CallsToDump;
pub use error::{Damage, DumpError};
pub use judging::Judging;
pub use layout::{BLAME_SCHEMA, Comparison, DataSet, FileEntry, Incomplete, NODES_SCHEMA, Role, ValueSet, to_json};
pub use nodes::{NodeReproduction, NodeRow, NodeTable};
pub use owner::{is_being_written, is_ours};
pub use retention::{Kept, Removed, gc};
pub use rules::{Rule, runtimes};
pub use run::{GraphRecord, Run, RunSpec, StepFolder};
pub use values::{EagerValues, ValuesFolder};
pub use verify::{Verified, verify};
pub use writer::FlushReport;
