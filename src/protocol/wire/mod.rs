//! The protobuf encoding of requests, replies and notices: the only place that knows the generated types. Bytes of a
//! peer become domain types here or an error that names the field; nothing outside sees an unchecked value.

mod decode;
mod encode;
mod footprint;
mod proto;
#[cfg(test)]
mod tests;

pub use decode::{DecodeError, decode_notice, decode_reply, decode_request, is_folder_name, request_id};
pub use encode::{encode_notice, encode_reply, encode_request};
pub use footprint::footprint;
