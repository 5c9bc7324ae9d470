//! Running models: the trait, the runtime, the worker process.

pub mod cuda_ipc;
