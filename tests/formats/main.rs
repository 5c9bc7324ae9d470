//! What others read and write: frames, their schema, models, dumps on disk.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

#[path = "../common/any_model.rs"]
mod any_model;
mod descriptor_set;
mod dump_crash;
mod dump_layout;
mod dump_namespaces;
mod golden;
mod golden_dump;
mod onnx_hostile;
