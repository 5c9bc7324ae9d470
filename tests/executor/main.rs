//! ONNX Runtime behind the executor: in this process, which loads it once, and in processes of its own. With the feature
//! `torch`, libtorch behind the same traits.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers
#![allow(clippy::duplicate_mod)] // the suite stands once for each runtime

mod attention;
mod blame;
#[path = "../common/mod.rs"]
mod common;
mod constants;
mod keep;
mod libraries;
mod on_ort;
mod precision;
mod process;
mod regions;
mod rewrites;
#[cfg(feature = "torch")]
mod torch;
