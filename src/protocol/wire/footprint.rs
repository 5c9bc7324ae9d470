//! What a request takes in memory, told before it is decoded.

use crate::base::footprint::{Footprint, of};

mod shapes {
    use crate::base::footprint::{Field, Shape};
    use crate::protocol::wire::proto;
    include!(concat!(env!("OUT_DIR"), "/rust_ort_shapes.rs"));
}

/// What [`super::decode_request`] takes beside the body's own bytes, at most: the generated message and, made of it, ours.
pub fn footprint(body: &[u8]) -> Footprint {
    let Footprint { n_elements, text_bytes, n_bytes } = of(body, shapes::SHAPES, shapes::ROOT);
    Footprint { n_elements, text_bytes, n_bytes: n_bytes.saturating_mul(2) }
}
