//! Running models: the trait that runtimes implement, and the link to the process that holds one.

#[allow(unsafe_code)]
pub mod cuda_ipc;
pub mod link;
