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

/// What both should be, near a reference of ordinary numbers, and Σ|terms|; some of it is no number.
fn exact(dtype: &str, reference: &[u8], n: usize, draw: &mut Draw) -> [Vec<f64>; 2] {
    let wide = |index: usize| match dtype {
        "F16" => half::f16::from_le_bytes([reference[2 * index], reference[2 * index + 1]]).to_f64(),
        "BF16" => half::bf16::from_le_bytes([reference[2 * index], reference[2 * index + 1]]).to_f64(),
        "F32" => f32::from_le_bytes(reference[4 * index..4 * index + 4].try_into().unwrap()).into(),
        "F64" => f64::from_le_bytes(reference[8 * index..8 * index + 8].try_into().unwrap()),
        _ => index as f64,
    };
    let share = |draw: &mut Draw| (draw.next() >> 11) as f64 / 2_f64.powi(53);
    let mut values = Vec::new();
    let mut terms = Vec::new();
    for index in 0..n {
        let value = wide(index) * (1. + 0.01 * (share(draw) - 0.5));
        values.push(match draw.next() % 500 {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => -0.,
            _ => value,
        });
        terms.push(value.abs() * (1. + 100. * share(draw)));
    }
    [values, terms]
}

fn hex_of(values: &[f64]) -> String {
    hex(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().as_slice())
}

/// Sums are added up in another order; everything else is the same to the last bit.
const SUMS: &[&str] = &[
    "/verdict/metrics/mean_abs",
    "/verdict/metrics/rmse",
    "/verdict/metrics/cosine",
    "/verdict/metrics/max_diff/sum",
    "/verdict/noise/rounding/reference_rms",
    "/verdict/noise/rounding/candidate_rms",
    "/verdict/noise/rounding/rms_z",
    "/verdict/noise/rounding/reference_bias",
    "/verdict/noise/rounding/candidate_bias",
];

/// The host alone finds these, and what they make of a kind; without them nothing that drifted is called noise.
const ON_HOST: &[&str] = &["/verdict/noise/reference_rms", "/verdict/noise/candidate_rms"];

/// What is found of the pair and of the pair the other way round.
#[track_caller]
fn check(what: &str, answer: &Value) {
    for way in 0..2 {
        let (mut device, mut host) = (answer["device"][way].clone(), answer["host"][way].clone());
        assert!(device["verdict"].is_object() && device["signatures"][1].is_string(), "{what}: {device}");
        for sum in SUMS {
            let [one, other] = [&mut device, &mut host].map(|found| found.pointer_mut(sum).map(Value::take));
            match (one.as_ref().and_then(Value::as_f64), other.as_ref().and_then(Value::as_f64)) {
                (Some(one), Some(other)) => {
                    assert!((one - other).abs() <= 1e-9 * other.abs().max(1e-3), "{what} {sum}: {one} {other}")
                }
                _ => assert_eq!(one, other, "{what} {sum}"),
            }
        }
        let is_drift = what.ends_with("drift");
        for of_host in ON_HOST.iter().chain(is_drift.then_some(&"/verdict/noise/kind")) {
            let [on_device, on_host] =
                [&mut device, &mut host].map(|found| found.pointer_mut(of_host).map(Value::take));
            // Without elements the host is asked.
            let is_unknown = on_device.as_ref().is_some_and(|found| *found == "nan");
            assert!(is_drift || is_unknown || on_device == on_host, "{what} {of_host}: {on_device:?}");
        }
        assert_eq!(device, host, "{what}");
    }
}

/// Asks for every dtype, any bits and near ones, lengths around the edges of threads, blocks and pieces, without and with
/// what both should be; how many were compared.
pub fn compare_all(peer: &mut Peer) -> usize {
    let mut draw = Draw(7);
    let mut n_compared = 0;
    let small = [0, 1, 2, 7, 255, 256, 1030, 4097].into_iter().flat_map(|n| [(n, false), (n, true)]);
    for &dtype in DTYPES {
        for (n, near) in small.clone().chain([(70_000, true)]) {
            let [reference, candidate] = pair(dtype, n, near, &mut draw);
            let [values, terms] = exact(dtype.0, &reference, n, &mut draw);
            // The host leaves fill values out of what drifted.
            let drifted = values.iter().map(|&value| if value.abs() < 3e4 { value } else { 0.5 }).collect::<Vec<_>>();
            let [values, terms, drifted] = [values, terms, drifted].map(|values| hex_of(&values));
            let asked = [
                (false, json!({"exact": values, "terms": terms})),
                (false, json!({})),
                (true, json!({"exact": values})),
                (false, json!({"exact": drifted, "step": 0.0078125})),
            ];
            // A long pair takes its time.
            for (equal_nan, mut ask) in asked.into_iter().take(if n > 5000 { 1 } else { 4 }) {
                let of = if ask.get("step").is_some() { "drift" } else { "kernel" };
                let what = format!("{} {n} near={near} {} {of}", dtype.0, ask.as_object().unwrap().len());
                for (key, value) in
                    [("dtype", dtype.0), ("reference", &hex(&reference)), ("candidate", &hex(&candidate))]
                {
                    ask[key] = value.into();
                }
                (ask["device"], ask["equal_nan"]) = (0.into(), equal_nan.into());
                check(&what, &peer.ask("measure", ask));
                n_compared += 1;
            }
        }
    }
    n_compared
}

#[test]
fn the_device_finds_what_the_host_finds() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    assert_eq!(compare_all(&mut peer), DTYPES.len() * 65);
    let pid = peer.pid();
    assert_eq!(peer.end().0, 0);
    let journal = gpu.journal(pid);
    let n_launches = journal.n("cuLaunchKernel");
    assert!(n_launches > 4 * DTYPES.len() * 57, "{n_launches}");
    // However many pairs are asked of, and whatever of them: three rounds and one for ranges.
    assert!(journal.n("cuMemcpyDtoHAsync") <= 4 * DTYPES.len() * 65);
    assert!(journal.unbalanced().is_empty(), "{:?}", journal.unbalanced());
}

#[test]
fn a_tensor_of_more_pieces_than_a_thread_merges_has_the_same_signature() {
    let gpu = StandIn::new();
    let mut peer = Peer::start(&gpu, &[]);
    let [reference, candidate] = pair(("BF16", 2), (1 << 19) + 77, true, &mut Draw(11));
    let ask = json!({"device": 0, "dtype": "BF16", "reference": hex(&reference), "candidate": hex(&candidate)});
    check("large", &peer.ask("measure", ask));
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
