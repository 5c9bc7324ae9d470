//! The probe itself: its commands, and the forms of a handle that torch writes.

use serde_json::json;

use crate::peer::{Peer, opening};
use crate::stand_in::StandIn;

#[test]
fn tensor_at_an_offset_is_read_and_written_and_its_neighbours_are_not() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": 1024}));
    exporter.ask("write", json!({"seed": 0, "delay_ms": 0}));
    let mut open = opening(0, &shared);
    (open["offset"], open["len_bytes"]) = (502.into(), 100.into()); // the pattern repeats after 251
    open["memory"] = format!("0363{}", shared["memory"].as_str().unwrap()).into();
    importer.ask("open", open);
    let read = importer.ask("read", json!({"seed": 0}));
    assert_eq!((&read["wrong_bytes"], &read["len_bytes"]), (&0.into(), &100.into()));
    importer.ask("write", json!({"seed": 9, "delay_ms": 1}));
    let read = exporter.ask("read", json!({"seed": 0}));
    assert_eq!((&read["wrong_bytes"], &read["first_wrong"]["at"]), (&100.into(), &502.into()));
    assert_eq!((&read["first_wrong"]["got"], &read["first_wrong"]["expected"]), (&9.into(), &0.into()));
}

#[test]
fn commands_out_of_order_and_bad_ones_are_answered_and_cost_nothing_else() {
    let gpu = StandIn::new();
    let (mut exporter, mut importer) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    let shared = exporter.ask("share", json!({"device": 0, "len_bytes": 100}));
    exporter.ask("write", json!({"seed": 5, "delay_ms": 0}));
    let open = opening(0, &shared);
    let mut wrong = vec![
        "{}".to_owned(),
        "no json".to_owned(),
        r#"{"op":"open"}"#.to_owned(),
        r#"{"op":"read","seed":5}"#.to_owned(),
        r#"{"op":"close"}"#.to_owned(),
    ];
    let handles = ["", "0", "zz", &"00".repeat(63), &"00".repeat(64), &"ff".repeat(64)];
    let mut with = |field: &str, value: serde_json::Value| {
        let mut other = open.clone();
        (other[field], other["op"]) = (value, "open".into());
        wrong.push(other.to_string());
    };
    with("len_bytes", u64::MAX.into());
    with("offset", u64::MAX.into());
    with("device", "GPU-0".into());
    for field in ["memory", "ready", "done"] {
        handles.iter().for_each(|handle| with(field, (*handle).into()));
    }
    for line in wrong {
        assert_eq!(importer.say(&line)["ok"], false, "{line}");
    }
    importer.open(0, &shared);
    assert_eq!(importer.error("open", open), "a tensor is open already; send close first");
    assert_eq!(importer.ask("read", json!({"seed": 5}))["wrong_bytes"], 0);
    importer.ask("close", json!({}));
    importer.error("close", json!({}));
    let pid = importer.pid();
    assert_eq!(importer.end().0, 2);
    assert!(gpu.journal(pid).unbalanced().is_empty());
}
