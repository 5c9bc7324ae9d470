//! Memory of one process in another: handles, addresses that are used again, processes that are killed.

use serde_json::json;

use crate::peer::{Peer, opening};
use crate::stand_in::StandIn;

const LEN: u64 = 5000;

#[test]
fn both_processes_read_what_the_other_wrote_and_nothing_is_left() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    assert_eq!(importer.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    importer.ask("write", json!({"seed": 9, "delay_ms": 0}));
    assert_eq!(exporter.ask("read", json!({"seed": 9}))["wrong_bytes"], 0);
    assert_eq!(exporter.ask("read", json!({"seed": 5}))["wrong_bytes"], LEN);
    importer.ask("close", json!({}));
    exporter.ask("close", json!({}));
    let pids = [exporter.pid(), importer.pid()];
    assert_eq!([exporter.end(), importer.end()], [(0, String::new()), (0, String::new())]);
    assert_eq!(gpu.leftovers(), [""; 0]);
    let [exporter, importer] = pids.map(|pid| gpu.journal(pid));
    for journal in [&exporter, &importer] {
        assert!(journal.unbalanced().is_empty(), "{:?}", journal.unbalanced());
    }
    assert_eq!([exporter.copied_bytes(), importer.copied_bytes()], [3 * LEN, 2 * LEN]);
    assert_eq!([exporter.n("cuIpcOpenMemHandle"), importer.n("cuIpcOpenMemHandle")], [0, 1]);
}

#[test]
fn any_address_of_an_allocation_finds_it_and_no_other_does() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    let shared = peer.ask("share", json!({"device": 0, "len_bytes": LEN}));
    let base = shared["base"].as_u64().unwrap();
    for address in [base, base + 1, base + LEN - 1] {
        let found = peer.ask("at", json!({"address": address}));
        for field in ["id", "base", "len_bytes", "ordinal"] {
            assert_eq!(found[field], shared[field], "{address} {field}");
        }
    }
    for address in [0, 4096, base - 1, base + LEN, u64::MAX] {
        let error = peer.error("at", json!({"address": address}));
        assert!(error.contains("expected device memory of this process"), "{error}");
    }
}

#[test]
fn an_address_that_is_used_again_is_another_allocation() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let share = || json!({"device": 0, "len_bytes": LEN});
    let first = exporter.ask("share", share());
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    importer.open(0, &first);
    exporter.ask("close", json!({}));
    let second = exporter.ask("share", share());
    assert_eq!(first["base"], second["base"]);
    assert_ne!(first["id"], second["id"]);
    assert_ne!(first["memory"], second["memory"]);
    let stale = json!({"id": first["id"], "base": first["base"], "len_bytes": LEN, "ordinal": 0});
    assert!(exporter.error("export", stale).contains("was freed since it was looked up"));
    assert_eq!(importer.ask("read", json!({"seed": 5, "unordered": true}))["wrong_bytes"], LEN);
    assert!(importer.error("open", opening(1, &second)).contains("CUDA_ERROR_ALREADY_MAPPED"));
    importer.ask("close", json!({}));
    assert!(importer.error("open", opening(0, &first)).contains("CUDA_ERROR_INVALID_HANDLE"));
    importer.open(0, &second);
}

#[test]
fn a_handle_that_is_opened_twice_is_closed_twice() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    importer.open(1, &shared);
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    importer.ask("close", json!({"slot": 0}));
    assert_eq!(importer.ask("read", json!({"seed": 5, "slot": 1}))["wrong_bytes"], 0);
    let pid = importer.pid();
    assert_eq!(importer.end().0, 0); // without close: the drop's turn
    let journal = gpu.journal(pid);
    assert_eq!((journal.n("cuIpcOpenMemHandle"), journal.n("cuIpcCloseMemHandle")), (2, 2));
}

#[test]
fn a_process_does_not_open_its_own_memory_nor_more_of_it_than_there_is() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    assert!(exporter.error("open", opening(1, &shared)).contains("cuIpcOpenMemHandle failed with 201"));
    let mut beyond = opening(0, &shared);
    beyond["len_bytes"] = (LEN + 1).into();
    assert!(importer.error("open", beyond).contains("expected 5001 bytes behind it, found 5000"));
    let pid = importer.pid();
    importer.end();
    assert!(gpu.journal(pid).unbalanced().is_empty());
}

#[test]
fn memory_that_cannot_be_shared_is_refused_with_what_to_change() {
    for (kind, change) in [("expandable", "expandable_segments:True"), ("pool", "backend:cudaMallocAsync")] {
        let gpu = StandIn::new();
        let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_KIND", kind)]);
        let error = peer.error("share", json!({"device": 0, "len_bytes": LEN}));
        assert!(error.contains("PYTORCH_CUDA_ALLOC_CONF without") && error.contains(change), "{error}");
        let pid = peer.pid();
        peer.end();
        assert!(gpu.journal(pid).unbalanced().is_empty());
        assert_eq!(gpu.journal(pid).n("cuIpcGetMemHandle"), 0);
    }
}

#[test]
fn want_of_memory_says_what_was_asked_and_what_there_is() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_TOTAL", "1000000")]);
    peer.ask("share", json!({"device": 0, "len_bytes": 400_000}));
    assert_eq!(peer.ask("memory", json!({"device": 0}))["free_bytes"], 600_000);
    let error = peer.error("share", json!({"slot": 1, "device": 0, "len_bytes": 600_001}));
    let expected = "cuMemAlloc on GPU-10111213-1415-1617-1819-1a1b1c1d1e1f: asked 585.9 KiB, 585.9 KiB of 976.6 KiB free; \
                    other processes and torch's cache count, too";
    assert_eq!(error, expected);
    peer.ask("close", json!({}));
    peer.ask("share", json!({"device": 0, "len_bytes": 1_000_000}));
}

#[test]
fn the_importer_of_a_killed_process_closes_what_it_opened() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    exporter.kill();
    importer.try_ask("read", json!({"seed": 5}));
    importer.ask("close", json!({}));
    assert!(importer.error("open", opening(0, &shared)).contains("CUDA_ERROR_INVALID_HANDLE"));
    let pid = importer.pid();
    importer.end();
    assert!(gpu.journal(pid).unbalanced().is_empty());
}

#[test]
fn an_exporter_goes_on_after_its_importer_was_killed() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[("FAKE_CUDA_LAZY", "1")]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    importer.ask("write", json!({"seed": 9, "delay_ms": 10_000})); // done is recorded and will never happen
    importer.kill();
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    assert_eq!(exporter.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    let mut other = Peer::start(&gpu, &[]);
    other.open(0, &shared);
    assert_eq!(other.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    other.end();
    exporter.ask("close", json!({}));
    let pid = exporter.pid();
    assert_eq!(exporter.end(), (0, String::new()));
    assert!(gpu.journal(pid).unbalanced().is_empty());
    assert_eq!(gpu.leftovers(), [""; 0]);
}
