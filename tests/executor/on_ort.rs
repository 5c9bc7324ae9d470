//! The suite over ONNX Runtime.

use crate::common::built;

#[path = "suite.rs"]
mod suite;
