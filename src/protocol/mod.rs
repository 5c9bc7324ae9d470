//! What travels between processes: domain types ([`message`]) and their encodings. No sockets are opened here.

pub mod link;
pub mod message;
