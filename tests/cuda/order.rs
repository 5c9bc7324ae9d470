//! Events and numbers order the streams of two processes: on streams that run later, whoever does not wait reads what was
//! there before.

use serde_json::json;

use crate::peer::Peer;
use crate::stand_in::StandIn;

const LEN: u64 = 100_000;
const LAZY: &[(&str, &str)] = &[("FAKE_CUDA_LAZY", "20")];

#[test]
fn who_waits_reads_what_was_written_and_who_does_not_reads_what_was_there() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, LAZY), Peer::start(&gpu, LAZY));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    exporter.ask("write", json!({"seed": 5, "delay_ms": 3000}));
    let early = importer.ask("read", json!({"seed": 5, "unordered": true}));
    assert!(early["was_done"] == false && early["wrong_bytes"].as_u64() > Some(LEN / 2), "{early}");
    assert_eq!(importer.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
}

#[test]
fn streams_of_two_processes_take_turns() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, LAZY), Peer::start(&gpu, LAZY));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    for turn in 0..10 {
        exporter.ask("write", json!({"seed": 2 * turn, "delay_ms": 10}));
        assert_eq!(importer.ask("read", json!({"seed": 2 * turn}))["wrong_bytes"], 0, "{turn}");
        importer.ask("write", json!({"seed": 2 * turn + 1, "delay_ms": 10}));
        assert_eq!(exporter.ask("read", json!({"seed": 2 * turn + 1}))["wrong_bytes"], 0, "{turn}");
    }
}

#[test]
fn what_is_queued_is_done_before_its_memory_goes() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, LAZY), Peer::start(&gpu, LAZY));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN}));
    importer.open(0, &shared);
    importer.ask("write", json!({"seed": 9, "delay_ms": 200}));
    assert_eq!(importer.end(), (0, String::new())); // without close
    assert_eq!(exporter.ask("read", json!({"seed": 9}))["wrong_bytes"], 0);
}

#[test]
fn numbers_order_streams_of_two_processes_before_the_other_has_begun() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, LAZY), Peer::start(&gpu, LAZY));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": LEN, "numbers": true}));
    importer.open(0, &shared);
    for turn in 0..10 {
        // Handed over: the stream waits for what nobody has been told of yet.
        exporter.ask("write", json!({"seed": 2 * turn, "delay_ms": 10}));
        assert_eq!(importer.ask("read", json!({"seed": 2 * turn}))["wrong_bytes"], 0, "{turn}");
        importer.ask("write", json!({"seed": 2 * turn + 1, "delay_ms": 10}));
        assert_eq!(exporter.ask("read", json!({"seed": 2 * turn + 1}))["wrong_bytes"], 0, "{turn}");
    }
    assert_eq!(exporter.end(), (0, String::new()));
    assert_eq!(importer.end(), (0, String::new()));
}

#[test]
fn numbers_of_a_device_or_a_driver_that_has_none_are_refused_with_the_reason() {
    for (environment, why) in [
        (("FAKE_CUDA_VALUES", "lost"), "does not see the number that it wrote"),
        (("FAKE_CUDA_VALUES", "0"), "lacks stream memory operations (CAN_USE_64_BIT_STREAM_MEM_OPS is 0)"),
    ] {
        let gpu = StandIn::new();
        let mut peer = Peer::start(&gpu, &[environment]);
        let error = peer.error("share", json!({"device": 0, "len_bytes": LEN, "numbers": true}));
        assert!(error.starts_with("values in memory cannot order streams: ") && error.contains(why), "{error}");
    }
}
