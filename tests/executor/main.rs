//! ONNX Runtime behind the executor: in this process, which loads it once, and in processes of its own. With the feature
//! `torch`, libtorch behind the same traits.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers
#![allow(clippy::duplicate_mod)] // the suite stands once for each runtime

mod attention;
mod blame;
#[path = "../common/mod.rs"]
mod common;
mod confined;
mod constants;
#[cfg(feature = "torch")]
mod corners_torch;
mod keep;
mod libraries;
mod missing_kernels;
mod mixed;
#[cfg(feature = "torch")]
mod mixed_torch;
mod on_ort;
mod placement;
mod precision;
mod process;
mod regions;
mod rewrites;
#[cfg(feature = "torch")]
mod torch;
