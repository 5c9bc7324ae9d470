//! Which GPUs a process sees, and what it says where there is no driver.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::peer::{Peer, opening};
use crate::stand_in::{StandIn, UUIDS, build};

#[test]
fn devices_are_told_by_name_whatever_their_order() {
    let gpu = StandIn::new();
    let half = &UUIDS[1][..12];
    for (visible, expected) in [
        ("0,1", vec![UUIDS[0], UUIDS[1]]),
        ("1,0", vec![UUIDS[1], UUIDS[0]]),
        ("1", vec![UUIDS[1]]),
        (UUIDS[1], vec![UUIDS[1]]),
        (half, vec![UUIDS[1]]),
        ("0,7,1", vec![UUIDS[0]]),
    ] {
        let mut peer = Peer::start(&gpu, &[("CUDA_VISIBLE_DEVICES", visible)]);
        let answer = peer.ask("devices", json!({}));
        assert_eq!((&answer["visible"], &answer["driver_version"]), (&json!(expected), &json!(13010)), "{visible}");
    }
}

#[test]
fn a_process_that_sees_one_device_opens_what_lies_on_it_as_its_first() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[("CUDA_VISIBLE_DEVICES", "1")]));
    let shared = exporter.ask("share", json!({"device": UUIDS[1], "len_bytes": 1000}));
    assert_eq!(shared["ordinal"], 1);
    assert_eq!(exporter.ask("share", json!({"slot": 1, "device": UUIDS[0], "len_bytes": 1000}))["ordinal"], 0);
    let mut open = opening(0, &shared);
    open["device"] = UUIDS[1].into();
    importer.ask("open", open.clone());
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    assert_eq!(importer.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    (open["device"], open["slot"]) = (UUIDS[0].into(), 1.into());
    let error = importer.error("open", open);
    assert_eq!(
        error,
        format!(
            "no {} here: visible are [{}]; give this process the same CUDA_VISIBLE_DEVICES as the client",
            UUIDS[0], UUIDS[1]
        )
    );
}

#[test]
fn memory_of_two_devices_is_counted_apart() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_TOTAL", "1000000")]);
    peer.ask("share", json!({"device": 1, "len_bytes": 300_000}));
    assert_eq!(peer.ask("memory", json!({"device": 0}))["free_bytes"], 1_000_000);
    assert_eq!(peer.ask("memory", json!({"device": 1}))["free_bytes"], 700_000);
}

#[test]
fn no_gpu_and_no_such_gpu_are_said_in_the_drivers_words() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("CUDA_VISIBLE_DEVICES", "")]);
    let error = peer.error("devices", json!({}));
    assert_eq!(error, "cuInit failed with 100 (CUDA_ERROR_NO_DEVICE): no CUDA-capable device is detected");
    let mut peer = Peer::start(&gpu, &[]);
    for ordinal in [-1, 2] {
        let error = peer.error("memory", json!({ "device": ordinal }));
        assert_eq!(error, "cuDeviceGet failed with 101 (CUDA_ERROR_INVALID_DEVICE): invalid device ordinal");
    }
    assert!(peer.error("memory", json!({"device": "GPU-1"})).contains("nvidia-smi -L lists them"));
}

/// What a probe answers, with this libcuda.so.1.
fn error_with(library: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    if library.ends_with(';') {
        fs::write(folder.path().join("other.c"), library).unwrap();
        build(&folder.path().join("other.c"), folder.path());
    } else {
        fs::write(folder.path().join("libcuda.so.1"), library).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_rust-ort"));
    command.arg("cuda-probe").env("LD_LIBRARY_PATH", folder.path());
    Peer::of(command).error("devices", json!({}))
}

#[test]
fn a_driver_that_does_not_load_is_an_error_with_the_reason() {
    let error = error_with("no library");
    assert!(error.starts_with("NVIDIA's driver: ") && error.contains("libcuda.so.1"), "{error}");
    assert!(error.ends_with("or name its folder in LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn a_driver_that_is_too_old_is_an_error_that_names_what_it_lacks() {
    let error = error_with("int cuInit(unsigned flags) { return (int)flags; } int other;");
    assert!(error.contains("cuDriverGetVersion") && error.contains("CUDA 11.4 or later"), "{error}");
}
