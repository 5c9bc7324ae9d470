//! Each call of the driver fails in turn, in the process that shares and in the one that opens: an error names it, and
//! what was made before is ended.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::peer::{Peer, opening};
use crate::stand_in::StandIn;

/// One conversation; every answer of the process at fault, and what it logged.
fn converse(gpu: &StandIn, at_fault: Side, fault: &str, numbers: bool) -> (u32, Vec<Value>, String) {
    let environment = |side| if side == at_fault { vec![("FAKE_CUDA_FAIL", fault)] } else { Vec::new() };
    let mut exporter = Peer::start(gpu, &environment(Side::Exporter));
    let mut importer = Peer::start(gpu, &environment(Side::Importer));
    let mut answers: BTreeMap<Side, Vec<Value>> = BTreeMap::new();
    let mut ask = |side: Side, op: &str, arguments: Value| {
        let peer = if side == Side::Exporter { &mut exporter } else { &mut importer };
        let answer = peer.try_ask(op, arguments);
        answers.entry(side).or_default().push(answer.clone());
        answer
    };
    ask(Side::Importer, "devices", json!({}));
    let shared = ask(Side::Exporter, "share", json!({"device": 0, "len_bytes": 1000, "numbers": numbers}));
    if shared["ok"] == true {
        let opened = ask(Side::Importer, "open", opening(0, &shared));
        let mut said = opened["ok"] == true;
        for (side, op, arguments) in [
            (Side::Exporter, "write", json!({"seed": 5, "delay_ms": 1})),
            (Side::Importer, "read", json!({"seed": 5})),
            (Side::Importer, "write", json!({"seed": 9, "delay_ms": 1})),
            (Side::Exporter, "read", json!({"seed": 9})),
        ] {
            // Who waits for a number that nobody writes waits for ever; an event that nobody recorded counts as done.
            if said || !numbers {
                said &= ask(side, op, arguments)["ok"] == true;
            }
        }
        ask(Side::Importer, "close", json!({}));
        ask(Side::Exporter, "close", json!({}));
    }
    let peer = if at_fault == Side::Exporter { exporter } else { importer };
    let (pid, log) = (peer.pid(), peer.end().1);
    (pid, answers.remove(&at_fault).unwrap(), log)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Exporter,
    Importer,
}

/// How many calls of `function` one conversation has; each has failed once.
fn fail_each(side: Side, function: &str, numbers: bool) -> usize {
    for n in 1.. {
        let gpu = StandIn::new();
        let (pid, answers, log) = converse(&gpu, side, &format!("{function}:{n}"), numbers);
        let journal = gpu.journal(pid);
        let Some(failed) = journal.failed() else { return n - 1 };
        let said = format!("{failed} failed with 719 (CUDA_ERROR_LAUNCH_FAILED): unspecified launch failure");
        let told = answers.iter().any(|answer| answer["error"] == said.as_str());
        assert!(told || log.contains(&said), "{side:?} {function}:{n}: {answers:?} {log}");
        let mut unbalanced = journal.unbalanced();
        if function == "cuCtxPushCurrent" && !told {
            // Nothing can be ended in a context that cannot be entered.
            unbalanced.retain(|_, left| *left != 1);
        }
        assert!(unbalanced.is_empty(), "{side:?} {function}:{n}: {unbalanced:?}");
    }
    unreachable!()
}

#[test]
fn every_call_that_fails_is_named_and_leaves_nothing_behind() {
    let both = [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetUuid",
        "cuDeviceGetName",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuPointerGetAttributes",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventDestroy",
        "cuStreamCreate",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuStreamDestroy",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
        "cuLaunchHostFunc",
    ];
    let exporters = ["cuMemAlloc", "cuMemFree", "cuIpcGetMemHandle", "cuIpcGetEventHandle", "cuEventCreate"];
    let importers = ["cuDriverGetVersion", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuIpcOpenEventHandle"];
    let sides = [(Side::Exporter, &exporters[..]), (Side::Importer, &importers[..])];
    let of_numbers = [
        "cuDeviceGetAttribute",
        "cuMemHostRegister",
        "cuMemHostUnregister",
        "cuMemHostGetDevicePointer",
        "cuStreamWriteValue32",
        "cuStreamWaitValue32",
        "cuStreamQuery",
    ];
    let n_failed = AtomicUsize::new(0);
    let n_failed = &n_failed;
    std::thread::scope(|scope| {
        for side in [Side::Exporter, Side::Importer] {
            for function in of_numbers {
                scope.spawn(move || {
                    let n = fail_each(side, function, true);
                    assert!(n > 0, "{side:?} never calls {function}");
                    n_failed.fetch_add(n, Ordering::Relaxed);
                });
            }
        }
        for (side, own) in sides {
            for function in both.iter().chain(own) {
                let only_importers = side == Side::Exporter && *function == "cuDeviceGetCount";
                scope.spawn(move || {
                    let n = fail_each(side, function, false);
                    assert!(n > 0 || only_importers, "{side:?} never calls {function}");
                    n_failed.fetch_add(n, Ordering::Relaxed);
                });
            }
        }
    });
    let n_failed = n_failed.load(Ordering::Relaxed);
    let _ = writeln!(
        std::io::stderr(),
        "stand-in for CUDA's driver: {n_failed} calls failed on demand, one after the other"
    );
}
