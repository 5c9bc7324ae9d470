//! What an executor may do when a model has taken it over: an operator of the test's tries it.

use std::collections::BTreeSet;

use crate::common::{add, attempts, custom_ops};
use crate::process::{Executor, record, wait_for};
use rust_ort::protocol::message::{ErrorCode, SessionSpec};
use rust_ort::tensor::DType;

const EPERM: f32 = 1.;
const EACCES: f32 = 13.;

#[test]
fn a_model_in_an_executor_reaches_no_file_network_or_process() {
    let mut executor = Executor::ready();
    let session = SessionSpec { custom_op_libraries: vec![custom_ops()], ..SessionSpec::default() };
    let tried = [1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 20., 21., 22.];
    let prepared = executor.prepare_as(&attempts(tried.len()), Vec::new(), session).unwrap();
    let (x, y) = (executor.memory.put(&[16], &tried), executor.memory.alloc(DType::F32, &[16]));
    let call = record(prepared.handle, vec![x], vec![y.clone()]);
    // On the thread of a lane, which was started after the process was confined.
    executor.call(&call).unwrap();
    let got = executor.memory.get(&y);
    assert_eq!(got[1..8], [EACCES, EPERM, EPERM, EPERM, EPERM, EPERM, EPERM], "{got:?}");
    assert_eq!(got[8..10], [0., 0.], "threads and memory are had");
    assert_eq!(got[10..13], [EPERM, EPERM, EACCES], "nor by the kernel, nor by a pair, nor from /proc");
    assert_eq!(got[13..], [EPERM; 3], "nor a file's attributes, nor its own end, nor what becomes of files");
    assert_eq!(got[0], 0., "what its user may read it may, and pass on to nobody but its client");
}

#[test]
fn a_profile_that_a_confined_executor_cannot_write_is_an_error() {
    let mut executor = Executor::ready();
    let folder = tempfile::tempdir().unwrap();
    let config = [("rust_ort.profile".to_owned(), folder.path().join("profile").display().to_string())].into();
    let refused =
        executor.prepare_as(&add(), Vec::new(), SessionSpec { config, ..SessionSpec::default() }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::BadOption);
    assert!(refused.message.contains("RUST_ORT_CONFINE=off"), "{}", refused.message);
}

/// One that were free would free all: they share memory. The test's own, which waits, is none of the executor's.
#[test]
fn every_thread_of_an_executor_is_confined() {
    let executor = Executor::ready();
    wait_for("the threads of a link and a lane", || {
        let confined: BTreeSet<String> = threads(&executor, true).into_iter().collect();
        ["link", "lane-0"].iter().all(|name| confined.contains(*name))
    });
    assert_eq!(threads(&executor, false).len(), 1, "the test program's first thread alone");
}

/// Names of its threads that are confined, or of the others.
fn threads(executor: &Executor, confined: bool) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", executor.process.id())).unwrap();
    let read =
        |task: &std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let is_confined = |task: &std::fs::DirEntry| read(task, "status").lines().any(|line| line == "Seccomp:\t2");
    tasks
        .flatten()
        .filter(|task| is_confined(task) == confined)
        .map(|task| read(&task, "comm").trim().to_owned())
        .collect()
}
