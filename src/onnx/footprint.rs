//! What a model takes in memory, told before it is decoded.

use crate::base::footprint::{Footprint, of};

mod shapes {
    use crate::base::footprint::{Field, Shape};
    use crate::onnx::proto;
    include!(concat!(env!("OUT_DIR"), "/onnx_shapes.rs"));
}

/// What decoding a tensor's file takes: as [`footprint`].
pub(super) fn tensor_footprint(tensor: &[u8]) -> Footprint {
    of(tensor, shapes::SHAPES, shapes::TENSOR)
}

/// What decoding a model takes: beside its tensors, which share its bytes. Of bytes that are no model, what decoding takes
/// until that is found.
pub fn footprint(model: &[u8]) -> Footprint {
    of(model, shapes::SHAPES, shapes::ROOT)
}
