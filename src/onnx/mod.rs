//! ONNX models: read, write, order, look into, cut.

/// The messages of `protos/onnx.proto`. `raw_data` is [`bytes::Bytes`]: decoding from `Bytes` copies no tensor.
#[allow(missing_docs, clippy::all)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
}
