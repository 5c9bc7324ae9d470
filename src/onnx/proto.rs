//! The messages of `protos/onnx.proto`, generated. `raw_data` is [`bytes::Bytes`]: decoding from `Bytes` copies no tensor.
#![allow(missing_docs, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
