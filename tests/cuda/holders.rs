//! Who holds a device's memory: what an executor counts of its own, and what it says of others when there is none left.

use serde_json::{Value, json};

use crate::peer::Peer;
use crate::stand_in::{Nvml, StandIn, UUIDS};

/// What a process gets that wants more than there is, as an executor of `client`, and the process.
fn refused(gpu: &StandIn, environment: &[(&str, &str)], client: u32) -> (String, u32) {
    let total = [("FAKE_CUDA_TOTAL", "4194304")];
    let mut executor = Peer::start(gpu, &[&total[..], environment].concat());
    executor.ask("serve", json!({ "client": client }));
    executor.ask("share", json!({"device": 0, "len_bytes": 2 << 20}));
    (executor.error("share", json!({"slot": 1, "device": 0, "len_bytes": 3 << 20})), executor.pid())
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

#[test]
fn want_of_memory_names_the_executor_its_client_and_others() {
    let gpu = StandIn::new();
    let (mut client, mut other) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    client.ask("share", json!({"device": 0, "len_bytes": 7 << 20}));
    client.ask("share", json!({"slot": 1, "device": 1, "len_bytes": 100 << 20}));
    other.ask("share", json!({"device": 0, "len_bytes": 4 << 20}));
    let unseen = [("FAKE_NVML_OTHERS", "1073741824:8589934592")];
    let names = [client.pid(), other.pid()].map(name_of);
    for nvml in [Nvml::Here, Nvml::Old] {
        let folder = StandIn::library_folder(nvml).to_str().unwrap();
        let (error, pid) = refused(&gpu, &[&unseen[..], &[("LD_LIBRARY_PATH", folder)]].concat(), client.pid());
        let expected = format!(
            "cuMemAlloc on {}: asked 3.0 MiB, 2.0 MiB of 4.0 MiB free; held: this executor (pid {pid}) 3.0 MiB, the client \
             {} (pid {}) 8.0 MiB, pid 1073741824 8.0 GiB, {} (pid {}) 5.0 MiB",
            UUIDS[0],
            names[0],
            client.pid(),
            names[1],
            other.pid()
        );
        assert_eq!(error, expected, "{nvml:?}");
    }
}

#[test]
fn many_others_are_told_together() {
    let gpu = StandIn::new();
    // More than there is room for at first.
    let others = (0..40).map(|n| format!("{}:{}", (1 << 30) + n, (100 - n) << 20)).collect::<Vec<_>>().join(",");
    let (error, pid) = refused(&gpu, &[("FAKE_NVML_OTHERS", &others)], 0);
    let named: Vec<String> = (0..4).map(|n| format!("pid {} {}.0 MiB", (1 << 30) + n, 100 - n)).collect();
    let rest: u32 = (4..40).map(|n| 100 - n).sum();
    let expected = format!(
        "held: this executor (pid {pid}) 3.0 MiB, {}, 36 others {:.1} GiB",
        named.join(", "),
        f64::from(rest) / 1024.
    );
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn where_nobody_tells_who_holds_memory_that_is_said() {
    let missing = StandIn::library_folder(Nvml::Missing).to_str().unwrap();
    let fails = |function: &str| format!("{function} failed with 999: Unknown Error");
    let unknown = |why: &str| format!("who holds the rest is not known ({why}");
    for (environment, expected) in [
        (("LD_LIBRARY_PATH", missing), unknown("NVIDIA's management library: libnvidia-ml.so.1: ")),
        (("FAKE_NVML_FAIL", "nvmlInit"), unknown(&fails("nvmlInit"))),
        (("FAKE_NVML_FAIL", "nvmlDeviceGetHandleByUUID"), unknown(&fails("nvmlDeviceGetHandleByUUID"))),
        (
            ("FAKE_NVML_FAIL", "nvmlDeviceGetComputeRunningProcesses"),
            unknown(&fails("nvmlDeviceGetComputeRunningProcesses")),
        ),
        (("FAKE_NVML_HIDES", "1"), unknown("no process is told")),
        (("FAKE_NVML_UNAVAILABLE", "1"), "held: this executor (pid ".to_owned()),
    ] {
        let gpu = StandIn::new();
        let (error, pid) = refused(&gpu, &[environment], 0);
        let told = error.strip_prefix(&format!("cuMemAlloc on {}: asked 3.0 MiB, 2.0 MiB of 4.0 MiB free; ", UUIDS[0]));
        assert!(told.unwrap_or_else(|| panic!("{error}")).starts_with(&expected), "{environment:?}: {error}");
        if environment.0 == "FAKE_NVML_UNAVAILABLE" {
            assert!(error.ends_with(&format!("this executor (pid {pid}) an unknown amount")), "{error}");
        }
        // It costs the text alone: the next one that fits is made.
        let mut executor = Peer::start(&gpu, &[environment]);
        executor.ask("serve", json!({ "client": null }));
        executor.ask("share", json!({"device": 0, "len_bytes": 1000}));
        assert_eq!(executor.ask("held", json!({}))["bytes"], Value::Null, "{environment:?}: unknown is not 0");
    }
}

#[test]
fn what_a_process_holds_is_counted_on_all_devices_and_none_without_a_context() {
    let gpu = StandIn::new();
    let (mut peer, mut other) = (Peer::start(&gpu, &[]), Peer::start(&gpu, &[]));
    other.ask("share", json!({"device": 0, "len_bytes": 64 << 20}));
    assert_eq!(peer.ask("held", json!({}))["bytes"], 0);
    peer.ask("share", json!({"device": 0, "len_bytes": 2 << 20}));
    assert_eq!(peer.ask("held", json!({}))["bytes"], 3 << 20, "a context is a megabyte");
    peer.ask("share", json!({"slot": 1, "device": 1, "len_bytes": 5 << 20}));
    assert_eq!(peer.ask("held", json!({}))["bytes"], 9 << 20);
    peer.ask("close", json!({"slot": 0}));
    assert_eq!(peer.ask("held", json!({}))["bytes"], 6 << 20);
    peer.ask("close", json!({"slot": 1}));
    assert_eq!(peer.ask("held", json!({}))["bytes"], 0, "the last context went with what lay in it");
}

#[test]
fn a_program_that_is_no_executor_asks_nobody() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_TOTAL", "1000"), ("FAKE_NVML_OTHERS", "1073741824:8589934592")]);
    let error = peer.error("share", json!({"device": 0, "len_bytes": 1001}));
    assert!(error.ends_with("free; other processes and torch's cache count, too"), "{error}");
}
