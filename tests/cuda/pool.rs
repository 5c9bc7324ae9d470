//! Memory out of a pool of the driver's: taken, given back, wanting, failing.

use serde_json::json;

use crate::peer::Peer;
use crate::stand_in::StandIn;

#[test]
fn what_is_taken_lies_apart_and_is_given_back() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    let told = peer.ask("pool", json!({"device": 0, "len_bytes": [0, 1, 4096, 100_000]}));
    let addresses: Vec<u64> = serde_json::from_value(told["addresses"].clone()).unwrap();
    assert_eq!(addresses.len(), 4);
    for (address, next) in addresses.iter().zip(&addresses[1..]) {
        assert!(address.abs_diff(*next) >= 4096 && address % 256 == 0, "{told}");
    }
    let pid = peer.pid();
    assert_eq!(peer.end().0, 0);
    assert!(gpu.journal(pid).unbalanced().is_empty());
}

#[test]
fn a_device_without_pools_has_none() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_NO_POOLS", "1")]);
    assert_eq!(peer.ask("pool", json!({"device": 0, "len_bytes": [1]}))["pool"], false);
}

#[test]
fn want_of_memory_says_what_was_asked_and_gives_back_what_was_taken() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_TOTAL", "4194304")]);
    let error = peer.error("pool", json!({"device": 0, "len_bytes": [3 << 20, 2 << 20]}));
    assert!(error.starts_with("cuMemAllocFromPoolAsync on ") && error.contains("asked 2.0 MiB, 1.0 MiB of"), "{error}");
    let pid = peer.pid();
    peer.end();
    assert!(gpu.journal(pid).unbalanced().is_empty());
}

#[test]
fn each_call_that_fails_is_named() {
    for function in
        ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolTrimTo"]
    {
        let gpu = StandIn::new();
        let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_FAIL", function)]);
        let error = peer.error("pool", json!({"device": 0, "len_bytes": [100]}));
        assert!(error.starts_with(&format!("{function} failed with 719")), "{error}");
        let pid = peer.pid();
        peer.end();
        let left = gpu.journal(pid).unbalanced();
        assert!(
            left.keys().all(|end| *end == "cuMemFreeAsync" && function == "cuMemFreeAsync"),
            "{function}: {left:?}"
        );
    }
}
