//! What a daemon is told of this process, so that its executor lives as the process does.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use rust_ort::base::process;
use rust_ort::protocol::control;

/// Inode of this process's namespace of pids; 0 where /proc does not tell.
#[pyfunction]
pub fn pid_namespace() -> u64 {
    process::pid_namespace()
}

/// CPUs that this process may run on, a bit each, the lowest of the first byte first; empty where the system does not tell.
#[pyfunction]
pub fn cpus() -> Vec<u8> {
    process::cpus()
}

/// This process's umask; None where /proc does not tell.
#[pyfunction]
pub fn umask() -> Option<u32> {
    process::umask()
}

/// Variables of this process that its executor is to have; those that are no Unicode stay behind.
#[pyfunction]
pub fn environment() -> BTreeMap<String, String> {
    let unicode =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    unicode.filter(|(name, _)| control::of_client(name)).collect()
}
