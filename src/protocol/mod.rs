//! What travels between processes: domain types ([`message`], [`control`]) and their encodings. No sockets are opened
//! here.

pub mod control;
pub mod frame;
pub mod message;
pub mod wire;
