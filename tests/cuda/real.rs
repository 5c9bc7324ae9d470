//! The same on the machine's own driver and GPU, where it has them.

use std::io::Write as _;
use std::process::Command;

use serde_json::json;

use crate::measure;
use crate::peer::{Peer, opening};
use crate::regions;

const LEN: u64 = 1 << 20;

fn peer() -> Peer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rust-ort"));
    command.arg("cuda-probe");
    Peer::of(command)
}

#[test]
fn two_processes_share_memory_of_a_real_gpu() {
    let (mut exporter, mut importer) = (peer(), peer());
    let found = exporter.try_ask("devices", json!({}));
    if found["ok"] == false {
        let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", found["error"]);
        return;
    }
    let shared = exporter.ask("share", json!({"device": found["visible"][0], "len_bytes": LEN}));
    let base = shared["base"].as_u64().unwrap();
    let inside = exporter.ask("at", json!({"address": base + LEN - 1}));
    assert_eq!((&inside["id"], &inside["base"]), (&shared["id"], &shared["base"]));
    importer.open(0, &shared);
    importer.open(1, &shared);
    exporter.ask("write", json!({"seed": 5, "delay_ms": 500}));
    assert_eq!(importer.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    importer.ask("close", json!({"slot": 1}));
    importer.ask("write", json!({"seed": 9, "delay_ms": 500}));
    assert_eq!(exporter.ask("read", json!({"seed": 9}))["wrong_bytes"], 0);
    assert!(!exporter.error("open", opening(2, &shared)).is_empty());
    importer.ask("close", json!({}));
    exporter.ask("close", json!({}));
    let again = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    assert_ne!(again["id"], shared["id"]);
    importer.open(0, &again);
    importer.ask("close", json!({}));
    assert_eq!([exporter.end().0, importer.end().0], [2, 0]); // its own memory was refused
}

#[test]
fn numbers_order_two_processes_on_a_real_gpu() {
    let (mut exporter, mut importer) = (peer(), peer());
    let found = exporter.try_ask("devices", json!({}));
    if found["ok"] == false {
        let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", found["error"]);
        return;
    }
    let shared = exporter.try_ask("share", json!({"device": 0, "len_bytes": LEN, "numbers": true}));
    if shared["ok"] == false {
        let _ = writeln!(std::io::stderr(), "skipped: {}", shared["error"]);
        return;
    }
    importer.open(0, &shared);
    for turn in 0..20 {
        exporter.ask("write", json!({"seed": 2 * turn, "delay_ms": 20}));
        assert_eq!(importer.ask("read", json!({"seed": 2 * turn}))["wrong_bytes"], 0, "{turn}");
        importer.ask("write", json!({"seed": 2 * turn + 1, "delay_ms": 20}));
        assert_eq!(exporter.ask("read", json!({"seed": 2 * turn + 1}))["wrong_bytes"], 0, "{turn}");
    }
    // Whoever is told nothing writes the number itself, and the stream comes to rest.
    exporter.ask("write", json!({"seed": 7, "delay_ms": 1}));
    importer.kill();
    assert!(exporter.error("read", json!({"seed": 7})).contains("the other process did not write it"));
    assert_eq!(exporter.ask("read", json!({"seed": 7}))["wrong_bytes"], 0);
}

#[test]
fn a_real_gpu_finds_what_the_host_finds() {
    let mut peer = peer();
    let found = peer.try_ask("devices", json!({}));
    if found["ok"] == false {
        let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", found["error"]);
        return;
    }
    assert!(measure::compare_all(&mut peer) > 500);
}

#[test]
fn regions_on_a_real_gpu_give_what_the_cpu_gives() {
    let mut peer = peer();
    let found = peer.try_ask("devices", json!({}));
    if found["ok"] == false {
        let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", found["error"]);
        return;
    }
    assert!(regions::compare_all(&mut peer, true) >= 10);
}
