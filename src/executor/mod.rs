//! Running models: the trait that runtimes implement, and the link to the process that holds one.

pub mod link;
