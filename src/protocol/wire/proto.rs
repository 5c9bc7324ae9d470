//! The messages of `protos/rust_ort.proto`, generated.
// ExportPlan is for clients alone.
#![allow(missing_docs, dead_code, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/rust_ort.rs"));
