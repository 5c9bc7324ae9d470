//! Metrics that the device finds are those that the host finds, for every dtype.

use serde_json::{Value, json};

use crate::peer::Peer;
use crate::stand_in::StandIn;

/// Names of dtypes, and bytes of an element.
const DTYPES: &[(&str, usize)] = &[
    ("F16", 2),
    ("BF16", 2),
    ("F32", 4),
    ("F64", 8),
    ("C64", 8),
    ("C128", 16),
    ("I8", 1),
    ("I16", 2),
    ("I32", 4),
    ("I64", 8),
    ("U8", 1),
    ("U16", 2),
    ("U32", 4),
    ("U64", 8),
    ("Bool", 1),
    ("F8E4M3FN", 1),
    ("F8E4M3FNUZ", 1),
    ("F8E5M2", 1),
    ("F8E5M2FNUZ", 1),
];

/// Numbers that look random, the same each time.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ (self.0 >> 29)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 40) as u8).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A pair of `n` elements of a dtype: any bits, or a candidate that is mostly the reference, or one step from it.
fn pair(dtype: (&str, usize), n: usize, near: bool, draw: &mut Draw) -> [Vec<u8>; 2] {
    let (name, size) = dtype;
    let mut reference = draw.bytes(n * size);
    if near && (name.starts_with(['F', 'C']) || name == "BF16") && size > 1 {
        // Ordinary numbers: no exponent of only ones.
        let part = if name.starts_with('C') { size / 2 } else { size };
        reference.chunks_mut(part).for_each(|number| number[part - 1] = 0x3c | number[part - 1] & 0x80);
    }
    let mut candidate = if near { reference.clone() } else { draw.bytes(n * size) };
    if near {
        for element in candidate.chunks_mut(size) {
            match draw.next() % 5 {
                0 => element[0] ^= 1,
                1 => element.fill(0),
                _ => {}
            }
        }
    }
    if name == "Bool" {
        reference.iter_mut().chain(&mut candidate).for_each(|byte| *byte &= 1);
    }
    [reference, candidate]
}

/// Sums are added up in another order; everything else is the same to the last bit.
const SUMS: &[&str] = &["/metrics/mean_abs", "/metrics/rmse", "/metrics/cosine", "/metrics/max_diff/sum"];

#[track_caller]
fn check(what: &str, answer: &Value) {
    let (mut device, mut host) = (answer["device"].clone(), answer["host"].clone());
    for sum in SUMS {
        let [one, other] = [&mut device, &mut host].map(|verdict| verdict.pointer_mut(sum).unwrap().take());
        match (one.as_f64(), other.as_f64()) {
            (Some(one), Some(other)) => {
                assert!((one - other).abs() <= 1e-12 * other.abs(), "{what} {sum}: {one} {other}")
            }
            _ => assert_eq!(one, other, "{what} {sum}"),
        }
    }
    assert_eq!(device, host, "{what}");
}

/// Asks for every dtype, any bits and near ones, lengths around the edges of threads and blocks; how many were compared.
pub fn compare_all(peer: &mut Peer) -> usize {
    let mut draw = Draw(7);
    let mut n_compared = 0;
    for &dtype in DTYPES {
        for n in [0, 1, 2, 255, 256, 4097, 70_000] {
            for near in [false, true] {
                let [reference, candidate] = pair(dtype, n, near, &mut draw);
                for equal_nan in [false, true] {
                    let answer = peer.ask(
                        "measure",
                        json!({"device": 0, "dtype": dtype.0, "reference": hex(&reference),
                               "candidate": hex(&candidate), "equal_nan": equal_nan}),
                    );
                    check(&format!("{} {n} near={near} equal_nan={equal_nan}", dtype.0), &answer);
                    n_compared += 1;
                }
            }
        }
    }
    n_compared
}

#[test]
fn the_device_finds_what_the_host_finds() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    assert_eq!(compare_all(&mut peer), DTYPES.len() * 28);
    let pid = peer.pid();
    assert_eq!(peer.end().0, 0);
    let journal = gpu.journal(pid);
    assert!(journal.n("cuLaunchKernel") > 2 * DTYPES.len() * 24);
    assert!(journal.unbalanced().is_empty(), "{:?}", journal.unbalanced());
}

#[test]
fn what_is_found_comes_behind_the_work_before_it() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_LAZY", "5")]);
    let [reference, candidate] = pair(("F32", 4), 5000, true, &mut Draw(3));
    let ask = json!({"device": 0, "dtype": "F32", "reference": hex(&reference), "candidate": hex(&candidate)});
    check("late", &peer.ask("measure", ask));
}

#[test]
fn each_call_that_fails_is_named() {
    let ask = json!({"device": 0, "dtype": "F32", "reference": "0000803f", "candidate": "00000040"});
    for (fault, said) in [
        ("cuDeviceGetAttribute", "cuDeviceGetAttribute failed with 719"),
        ("nvrtcCreateProgram", "nvrtcCreateProgram failed with 11"),
        (
            "nvrtcCompileProgram",
            "nvrtcCompileProgram failed with 6 (NVRTC_ERROR_COMPILATION): kernels(1): error: the stand-in",
        ),
        ("nvrtcGetCUBINSize", "nvrtcGetCUBINSize failed with 11"),
        ("cuModuleLoadData", "cuModuleLoadData failed with 719"),
        ("cuModuleGetFunction", "cuModuleGetFunction failed with 719"),
        ("cuLaunchKernel", "cuLaunchKernel failed with 719"),
        ("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync failed with 719"),
    ] {
        let gpu = StandIn::new();
        let mut peer = Peer::start(&gpu, &[("FAKE_CUDA_FAIL", fault)]);
        let error = peer.error("measure", ask.clone());
        assert!(error.contains(said), "{fault}: {error}");
        let pid = peer.pid();
        assert_eq!(peer.end().0, 2);
        assert!(gpu.journal(pid).unbalanced().is_empty(), "{fault}");
    }
}

#[test]
fn without_the_compiler_the_error_says_what_brings_it() {
    let gpu = StandIn::without_compiler();
    let mut peer = Peer::start(&gpu, &[]);
    let ask = json!({"device": 0, "dtype": "F32", "reference": "0000803f", "candidate": "00000040"});
    let error = peer.error("measure", ask);
    assert!(error.contains("none of libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so.11.2 was found"), "{error}");
    assert!(error.contains("install torch with CUDA, whose wheels bring it"), "{error}");
}
