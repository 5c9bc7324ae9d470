//! Kernels of regions that real models have give on a device what the CPU's give.

use serde_json::{Value, json};

use crate::peer::Peer;
use crate::stand_in::StandIn;

/// Asks for each; how many there are. many: also how fast they are, which is printed.
pub fn compare_all(peer: &mut Peer, many: bool) -> usize {
    let answer = peer.ask("regions", json!({"device": 0, "many": many}));
    let all = answer["regions"].as_array().unwrap();
    for one in all {
        println!("{one}");
        assert_eq!((&one["error"], &one["is_near"]), (&Value::Null, &Value::Bool(true)), "{one}");
    }
    all.len()
}

#[test]
fn regions_on_a_device_give_what_the_cpu_gives() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    assert!(compare_all(&mut peer, false) >= 10);
    let pid = peer.pid();
    assert_eq!(peer.end().0, 0);
    assert!(gpu.journal(pid).unbalanced().is_empty(), "{:?}", gpu.journal(pid).unbalanced());
}

#[test]
fn a_region_that_fails_says_why_and_the_others_are_looked_at() {
    for (fault, said) in [
        ("nvrtcCompileProgram", "nvrtcCompileProgram failed with 6"),
        ("cuModuleLoadData", "cuModuleLoadData failed with 719"),
        ("cuLaunchKernel", "cuLaunchKernel failed with 719"),
    ] {
        let gpu = StandIn::new();
        let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_FAIL", fault)]);
        let answer = peer.ask("regions", json!({"device": 0}));
        for one in answer["regions"].as_array().unwrap() {
            assert!(one["error"].as_str().unwrap().contains(said), "{fault}: {one}");
        }
    }
}
