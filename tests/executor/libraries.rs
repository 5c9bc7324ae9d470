//! Libraries: ONNX Runtime's own, and those of custom operators.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{self, add, built};
use rust_ort::protocol::message::{CustomOpLibrary, ErrorCode, SessionSpec, WireError};
use rust_ort::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library};
use rust_ort::runtime::{Runtime as _, RuntimeError, StopToken};

fn code(error: RuntimeError) -> ErrorCode {
    WireError::from(error).code
}

#[test]
fn a_library_of_custom_operators_that_is_missing_changed_or_none_is_refused_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("custom.so");
    let missing = custom_op_library(&path).unwrap_err().to_string();
    assert!(missing.contains(path.to_str().unwrap()) && missing.contains("no such file"), "{missing}");
    assert!(custom_op_library(folder.path()).unwrap_err().to_string().contains("it is no file"));
    std::fs::write(&path, b"no library").unwrap();
    let library = custom_op_library(&path).unwrap();
    let build = |library: &CustomOpLibrary| {
        let spec = SessionSpec { custom_op_libraries: vec![library.clone()], ..SessionSpec::default() };
        let error = built(&add(), &spec).err().unwrap();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        let text = error.to_string();
        assert_eq!(code(error), ErrorCode::BadOption);
        text
    };
    assert!(build(&library).contains("onnxruntime does not take it"));
    std::fs::write(&path, b"another library").unwrap();
    assert!(build(&library).contains("changed since the graph was compiled"));
    std::fs::remove_file(&path).unwrap();
    assert!(build(&library).contains("no such file"));
}

#[test]
fn a_library_that_is_missing_is_named() {
    let error = OrtRuntime::load("libonnxruntime.so".as_ref(), ThreadPool::default()).err().unwrap();
    assert!(error.to_string().contains("libonnxruntime.so: the path must be absolute"), "{error}");
    assert_eq!(code(error), ErrorCode::RuntimeMissing);
    common::runtime();
    let error = OrtRuntime::load(&common::library(), ThreadPool::default()).err().unwrap();
    assert!(matches!(error, RuntimeError::LoadedAlready { .. }), "{error}");
}

/// Whether this library can end the making of a session; says so where it cannot.
fn ends_making() -> bool {
    let version = common::runtime().version();
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    if minor < Some(22) {
        eprintln!("skipped: onnxruntime {version} cannot end it");
    }
    minor >= Some(22)
}

#[test]
fn the_making_of_a_session_ends_half_way() {
    if !ends_making() {
        return;
    }
    let model = common::slow(4000);
    let begun = Instant::now();
    assert!(built(&model, &SessionSpec::default()).is_ok());
    let half = begun.elapsed() / 2;
    // More than one attempt, for the next one may take half as long.
    let ended = (0..5).find_map(|_| {
        let token = Arc::new(StopToken::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(half);
                token.stop();
            });
            token.over_making(|| built(&model, &SessionSpec::default())).err()
        })
    });
    let error = ended.expect("it is made all the same").to_string();
    assert!(error.to_lowercase().contains("cancel"), "{error}");
}

#[test]
fn the_making_of_a_session_ends_when_nobody_waits_for_it() {
    if !ends_making() {
        return;
    }
    let (ended, lives) = (Arc::new(StopToken::default()), Arc::new(StopToken::default()));
    ended.stop();
    let made = ended.over_making(|| {
        assert!(lives.over_making(|| built(&add(), &SessionSpec::default())).is_ok());
        built(&add(), &SessionSpec::default())
    });
    let error = made.err().expect("it is made all the same").to_string();
    assert!(error.to_lowercase().contains("cancel"), "{error}");
    assert!(built(&add(), &SessionSpec::default()).is_ok(), "others are made");
}
