//! Exact numbers, dtype by dtype.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::tensor::{DType, TensorBuf, TensorDesc};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F64 | DType::C128 => value.to_le_bytes().into(),
        DType::F32 | DType::C64 => (value as f32).to_le_bytes().into(),
        DType::F16 => f16::from_f64(value).to_le_bytes().into(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().into(),
        _ => (value as i64).to_le_bytes()[..dtype.size_bytes()].into(),
    }
}

fn tensor(dtype: DType, dims: &[i64], values: &[f64]) -> TensorBuf {
    let bytes = values.iter().flat_map(|&value| encode(dtype, value)).collect();
    TensorBuf::new(TensorDesc::new(dtype, dims).unwrap(), bytes).unwrap()
}

fn judged(dtype: DType, reference: &[f64], candidate: &[f64], tolerance: Option<&Tolerance>) -> TensorVerdict {
    let per_element = if matches!(dtype, DType::C64 | DType::C128) { 2 } else { 1 };
    let dims = [(reference.len() / per_element) as i64];
    judge("y", &tensor(dtype, &dims, reference).view(), &tensor(dtype, &dims, candidate).view(), tolerance)
}

fn metrics(dtype: DType, reference: &[f64], candidate: &[f64]) -> Metrics {
    judged(dtype, reference, candidate, None).metrics.unwrap()
}

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

#[test]
fn metrics_have_exact_numbers_in_every_float_type() {
    let (reference, candidate) = ([1., -2., 0., 4., 0.5, -0.], [1., -2.5, 0., 4., 0., 0.]);
    for (dtype, max_ulp) in
        [(DType::F16, 14336), (DType::BF16, 16128), (DType::F32, 0x3f00_0000), (DType::F64, 0x3fe0_0000_0000_0000)]
    {
        let metrics = metrics(dtype, &reference, &candidate);
        assert_eq!(metrics.n, 6, "{dtype}");
        assert_eq!((metrics.max_abs, metrics.max_rel), (0.5, 1.), "{dtype}");
        assert_eq!((metrics.mean_abs, metrics.rmse), (1. / 6., (0.5_f64 / 6.).sqrt()), "{dtype}");
        assert_eq!((metrics.max_reference, metrics.max_rel_to_max), (4., 0.125), "{dtype}");
        assert_eq!(metrics.cosine, 22. / (21.25_f64.sqrt() * 23.25_f64.sqrt()), "{dtype}");
        assert_eq!(metrics.max_ulp, Some(max_ulp), "{dtype}");
        assert_eq!(metrics.above, Counts([2, 2, 2, 2, 2, 0, 0, 0]), "{dtype}");
        assert_eq!(metrics.outside, 2, "{dtype}");
        assert_eq!(metrics.first_outside.as_ref().unwrap().index, 1, "{dtype}");
        let worst = metrics.worst.unwrap();
        assert_eq!((worst.index, worst.reference, worst.candidate), (4, 0.5, 0.), "{dtype}");
        let max_diff = metrics.max_diff;
        assert_eq!((max_diff.abs, max_diff.rel, max_diff.sum, max_diff.n), (0.5, 0.5 / 0.501, 1., 6), "{dtype}");
        assert_eq!((max_diff.dnan, max_diff.argm), (0, Some(vec![1])), "{dtype}");
        assert_eq!(max_diff.rep, Counts([2, 2, 2, 2, 2, 0, 0, 0]), "{dtype}");
    }
}

#[test]
fn ulp_counts_the_steps_of_the_own_type() {
    for (dtype, epsilon) in
        [(DType::F16, 2_f64.powi(-10)), (DType::BF16, 2_f64.powi(-7)), (DType::F32, f32::EPSILON.into())]
    {
        assert_eq!(metrics(dtype, &[1.], &[1. + 3. * epsilon]).max_ulp, Some(3), "{dtype}");
        assert_eq!(metrics(dtype, &[0.], &[-0.]).max_ulp, Some(0), "{dtype}");
    }
    assert_eq!(metrics(DType::F64, &[1.], &[1. - f64::EPSILON]).max_ulp, Some(2));
    assert_eq!(metrics(DType::F64, &[5e-324], &[-5e-324]).max_ulp, Some(2));
    assert_eq!(metrics(DType::F64, &[f64::MAX], &[f64::MIN]).max_ulp, Some(2 * f64::MAX.to_bits()));
    assert_eq!(metrics(DType::I32, &[1.], &[2.]).max_ulp, None);
}

#[test]
fn nan_and_infinity_have_one_meaning_in_every_float_type() {
    for dtype in FLOATS {
        let own = Tolerance::for_dtype(dtype);
        let [told, not_told] = [true, false].map(|equal_nan| Tolerance { equal_nan, ..own });
        // reference, candidate, outside, outside when NaN equals NaN, one NaN, infinities, both NaN
        for (reference, candidate, outside, outside_told, one_nan, infinities, both_nan) in [
            (NAN, NAN, 1, 0, 0, 0, 1),
            (NAN, 1., 1, 1, 1, 0, 0),
            (1., NAN, 1, 1, 1, 0, 0),
            (NAN, INF, 1, 1, 1, 0, 0),
            (INF, INF, 0, 0, 0, 0, 0),
            (-INF, -INF, 0, 0, 0, 0, 0),
            (INF, -INF, 1, 1, 0, 1, 0),
            (INF, 1., 1, 1, 0, 1, 0),
            (1., -INF, 1, 1, 0, 1, 0),
            (-0., 0., 0, 0, 0, 0, 0),
        ] {
            let untold = judged(dtype, &[2., reference], &[2., candidate], Some(&not_told)).metrics.unwrap();
            let told = judged(dtype, &[2., reference], &[2., candidate], Some(&told)).metrics.unwrap();
            let what = format!("{dtype} {reference} {candidate}");
            assert_eq!((untold.outside, told.outside), (outside, outside_told), "{what}");
            assert_eq!((untold.nan_disagreements, untold.inf_disagreements), (one_nan, infinities), "{what}");
            assert_eq!(untold.both_nan, both_nan, "{what}");
            assert_eq!(untold.max_abs, if outside == 0 { 0. } else { INF }, "{what}");
            assert_eq!(told.max_abs, if outside_told == 0 { 0. } else { INF }, "{what}");
            assert_eq!((untold.mean_abs, untold.max_rel), (0., 0.), "{what}");
            assert_eq!(untold.required.rtol, if outside == 0 { 0. } else { INF }, "{what}");
            assert_eq!(untold.worst.map(|worst| worst.index), (outside > 0).then_some(1), "{what}");
        }
    }
}

#[test]
fn max_diff_replaces_nan_and_infinity_as_numpy_does() {
    let max_diff = metrics(DType::F64, &[NAN, NAN, 0., INF], &[NAN, 0., 0.5, INF]).max_diff;
    assert_eq!((max_diff.abs, max_diff.rel), (1e10, 500.));
    assert_eq!((max_diff.sum, max_diff.dnan, max_diff.argm), (1e10 + 0.5, 1, Some(vec![1])));
    assert_eq!(max_diff.rep, Counts([2, 2, 2, 2, 2, 1, 1, 1]));
    assert_eq!(metrics(DType::F32, &[INF], &[0.]).max_diff.abs, f64::MAX);
}

#[test]
fn empty_tensors_match_with_n_0() {
    for &dtype in DType::ALL {
        let empty = tensor(dtype, &[3, 0, 2], &[]);
        let judged = judge("y", &empty.view(), &empty.view(), None);
        assert_eq!(judged.verdict, Verdict::Match, "{dtype}");
        let metrics = judged.metrics.unwrap();
        assert_eq!((metrics.n, metrics.worst, metrics.cosine), (0, None, 1.), "{dtype}");
        assert_eq!((metrics.max_diff.argm, metrics.mean_abs, metrics.rmse), (None, 0., 0.), "{dtype}");
    }
}

#[test]
fn rank_0_has_one_element_at_the_empty_index() {
    let (reference, candidate) = (tensor(DType::F32, &[], &[1.]), tensor(DType::F32, &[], &[2.]));
    let judged = judge("loss", &reference.view(), &candidate.view(), None);
    assert_eq!(judged.verdict, Verdict::Mismatch);
    let worst = judged.metrics.unwrap().worst.unwrap();
    assert_eq!((worst.index, worst.at), (0, vec![]));
}

#[test]
fn integers_and_bool_are_exact() {
    let integers = [DType::U8, DType::I8, DType::U16, DType::I16, DType::I32, DType::I64, DType::U32, DType::U64];
    for dtype in integers {
        assert_eq!(judged(dtype, &[1., 100.], &[1., 100.], None).verdict, Verdict::Match, "{dtype}");
        let off_by_one = judged(dtype, &[1., 100.], &[1., 101.], None);
        assert_eq!(off_by_one.verdict, Verdict::Mismatch, "{dtype}");
        assert_eq!(off_by_one.metrics.unwrap().max_abs, 1., "{dtype}");
        let one = Tolerance { atol: 1., ..Tolerance::EXACT };
        assert_eq!(judged(dtype, &[1., 100.], &[1., 101.], Some(&one)).verdict, Verdict::Match, "{dtype}");
    }
    let one = Tolerance { atol: 1., ..Tolerance::EXACT };
    assert_eq!(judged(DType::Bool, &[0., 1.], &[1., 1.], Some(&one)).verdict, Verdict::Mismatch);
    assert_eq!(judged(DType::Bool, &[0., 1.], &[0., 2.], None).verdict, Verdict::Match);
}

#[test]
fn the_distance_of_64_bit_integers_is_not_rounded() {
    let wide =
        |dtype, value: u64| TensorBuf::new(TensorDesc::new(dtype, []).unwrap(), value.to_le_bytes().into()).unwrap();
    for (dtype, reference, candidate, apart) in [
        (DType::I64, 1 << 60, (1 << 60) + 1, 1.),
        (DType::U64, u64::MAX, u64::MAX - 1, 1.),
        (DType::I64, i64::MIN as u64, i64::MAX as u64, u64::MAX as f64),
    ] {
        let judged = judge("y", &wide(dtype, reference).view(), &wide(dtype, candidate).view(), None);
        assert_eq!(judged.verdict, Verdict::Mismatch, "{dtype}");
        assert_eq!(judged.metrics.unwrap().max_abs, apart, "{dtype}");
    }
}

#[test]
fn eight_bit_floats_are_compared_by_value() {
    // Bits, and the value that the formats' definitions give them.
    for (dtype, table) in [
        (DType::F8E4M3FN, [(0x01, 2_f64.powi(-9)), (0x38, 1.), (0xc0, -2.), (0x7e, 448.), (0x7f, NAN)]),
        (DType::F8E5M2, [(0x01, 2_f64.powi(-16)), (0x3c, 1.), (0xc0, -2.), (0x7b, 57344.), (0x7c, INF)]),
        (DType::F8E4M3FNUZ, [(0x01, 2_f64.powi(-10)), (0x40, 1.), (0xc8, -2.), (0x7f, 240.), (0x80, NAN)]),
        (DType::F8E5M2FNUZ, [(0x01, 2_f64.powi(-17)), (0x40, 1.), (0xc4, -2.), (0x7f, 57344.), (0x80, NAN)]),
    ] {
        for (bits, value) in table {
            let of = |bits| TensorBuf::new(TensorDesc::new(dtype, []).unwrap(), vec![bits]).unwrap();
            let metrics = judge("y", &of(bits).view(), &of(0).view(), None).metrics.unwrap();
            let worst = metrics.worst.unwrap();
            assert!(worst.reference == value || worst.reference.is_nan() && value.is_nan(), "{dtype} {bits:#x}");
            assert_eq!(worst.candidate, 0., "{dtype}");
        }
    }
}

#[test]
fn complex_is_a_pair_of_reals() {
    for dtype in [DType::C64, DType::C128] {
        let judged = judged(dtype, &[1., 2., 3., 4.], &[1., 2., 3., 5.], None);
        assert_eq!(judged.verdict, Verdict::Mismatch, "{dtype}");
        let metrics = judged.metrics.unwrap();
        assert_eq!((metrics.n, metrics.outside, metrics.max_abs), (4, 1, 1.), "{dtype}");
        let worst = metrics.worst.unwrap();
        assert_eq!((worst.at, worst.imaginary, worst.reference, worst.candidate), (vec![1], true, 4., 5.), "{dtype}");
    }
}

#[test]
fn other_dtype_shape_or_a_bad_tolerance_fails_and_says_so() {
    let wide = tensor(DType::F32, &[2, 3], &[0.; 6]);
    for (candidate, tolerance, words) in [
        (tensor(DType::F64, &[2, 3], &[0.; 6]), None, ["float32[2, 3]", "float64[2, 3]"]),
        (tensor(DType::F32, &[3, 2], &[0.; 6]), None, ["float32[2, 3]", "float32[3, 2]"]),
        (wide.clone(), Some(Tolerance { rtol: NAN, ..Tolerance::EXACT }), ["rtol", "NaN"]),
        (wide.clone(), Some(Tolerance { atol: -1., ..Tolerance::EXACT }), ["atol", "-1"]),
    ] {
        let judged = judge("y", &wide.view(), &candidate.view(), tolerance.as_ref());
        let Verdict::Failed(reason) = judged.verdict else { panic!("{judged:?}") };
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
        assert_eq!(judged.metrics, None);
    }
}

#[test]
fn default_tolerance_passes_rounding_and_catches_a_wrong_constant() {
    let reference: Vec<f64> = (0..1000).map(|i| (f64::from(i) * 0.37).sin()).collect();
    // Rounding noise of `noise`·max|r| on every element, and a tensor that is off by a factor; at any size.
    for (dtype, noise, factor) in
        [(DType::F32, 1e-5, 1e-4), (DType::F64, 1e-14, 1e-12), (DType::F16, 3e-3, 2e-2), (DType::BF16, 2e-2, 1e-1)]
    {
        for size in [1., 1e-3, if dtype == DType::F16 { 1. } else { 1e-7 }] {
            let scaled: Vec<f64> = reference.iter().map(|r| r * size).collect();
            let noisy: Vec<f64> = scaled.iter().enumerate().map(|(i, r)| r + [1., -1.][i % 2] * noise * size).collect();
            let wrong: Vec<f64> = scaled.iter().map(|r| r * (1. + factor)).collect();
            assert_eq!(judged(dtype, &scaled, &noisy, None).verdict, Verdict::Match, "{dtype} {size}");
            assert_eq!(judged(dtype, &scaled, &wrong, None).verdict, Verdict::Mismatch, "{dtype} {size}");
        }
    }
}

#[test]
fn a_fill_value_does_not_hide_a_difference() {
    for (dtype, fill) in [(DType::F32, f32::MIN.into()), (DType::F16, -65504.), (DType::F64, f64::MIN)] {
        let metrics = metrics(dtype, &[fill, 1., -INF], &[fill, 1.5, -INF]);
        assert_eq!((metrics.outside, metrics.max_reference, metrics.max_rel_to_max), (1, 1., 0.5), "{dtype}");
    }
}

#[test]
fn json_keeps_what_is_not_finite() {
    let judged = judged(DType::F32, &[1., NAN, 0.], &[1., -INF, 2.], None);
    let json = serde_json::to_value(&judged).unwrap();
    assert_eq!(json["verdict"], serde_json::json!({ "kind": "mismatch" }));
    assert_eq!(json["metrics"]["max_abs"], "inf");
    assert_eq!(json["metrics"]["worst"]["reference"], "nan");
    assert_eq!(json["metrics"]["worst"]["candidate"], "-inf");
    assert_eq!(json["metrics"]["mean_abs"], 1.);
    assert_eq!(json["metrics"]["above"][">0.0001"], 2);
    let back: TensorVerdict = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(back).unwrap(), json);
    let failed = serde_json::to_value(Verdict::Failed("why".to_owned())).unwrap();
    assert_eq!(failed, serde_json::json!({ "kind": "failed", "reason": "why" }));
}

#[test]
fn the_sentence_says_what_where_expected_and_got() {
    let (reference, candidate) = (tensor(DType::F64, &[2, 2], &[1., 2., 4., 8.]), [1., 2., 4., 4.]);
    let candidate = tensor(DType::F64, &[2, 2], &candidate);
    let tolerance = Tolerance { atol: 0.5, rtol: 0.125, ..Tolerance::EXACT };
    assert_eq!(
        judge("y", &reference.view(), &candidate.view(), Some(&tolerance)).to_string(),
        "\"y\": mismatch: float64[2, 2], 1 of 4 outside atol 0.5 + rtol 0.125·|r|; worst at \
         [1, 1]: expected 8, got 4; max |Δ| 4 is 0.5 of max|r|; rtol 0.4376 or atol 3.001 would pass"
    );
    assert_eq!(
        judge("y", &reference.view(), &reference.view(), None).to_string(),
        "\"y\": match: float64[2, 2], all 4 equal"
    );
    assert_eq!(TensorVerdict::not_compared("z", "no such output").to_string(), "\"z\": not compared: no such output");
}

#[test]
fn exit_code_is_0_only_when_everything_was_compared_and_matched() {
    let (matched, mismatch) = (judged(DType::F32, &[1.], &[1.], None), judged(DType::F32, &[1.], &[2.], None));
    let left_out = TensorVerdict::not_compared("y", "no reference");
    let failed = judge("y", &tensor(DType::F32, &[0], &[]).view(), &tensor(DType::F32, &[1], &[1.]).view(), None);
    for (verdicts, exit_code) in [
        (vec![], 3),
        (vec![&left_out], 3),
        (vec![&matched], 0),
        (vec![&matched, &left_out], 3),
        (vec![&mismatch, &left_out, &matched], 1),
        (vec![&failed, &mismatch, &matched], 2),
    ] {
        let verdicts: Vec<_> = verdicts.into_iter().cloned().collect();
        assert_eq!(summary(&verdicts).exit_code(), exit_code, "{verdicts:?}");
    }
    let all = summary(&[matched.clone(), matched, mismatch, left_out, failed]);
    assert_eq!(all, Summary { matched: 2, mismatch: 1, not_compared: 1, failed: 1, ..Summary::default() });
}

fn finite(dtype: DType) -> impl Strategy<Value = f64> {
    let largest = if dtype == DType::F16 { 6e4 } else { 1e30 };
    prop_oneof![4 => -100.0..100.0_f64, 1 => -largest..largest, 1 => Just(-0.), 1 => Just(1e-8)]
}

proptest! {
    #[test]
    fn a_tensor_without_nan_matches_itself(
        (dtype, bytes) in prop::sample::select(DType::ALL.to_vec()).prop_flat_map(|dtype| {
            (Just(dtype), (0..40_usize).prop_flat_map(move |n| prop::collection::vec(any::<u8>(), n * dtype.size_bytes())))
        }),
    ) {
        let dims = [(bytes.len() / dtype.size_bytes()) as i64];
        let tensor = TensorBuf::new(TensorDesc::new(dtype, dims).unwrap(), bytes).unwrap();
        let differs = Tolerance { equal_nan: false, ..Tolerance::for_dtype(dtype) };
        let metrics = judge("x", &tensor.view(), &tensor.view(), Some(&differs)).metrics.unwrap();
        prop_assert_eq!(metrics.outside, if dtype == DType::Bool { 0 } else { metrics.both_nan });
        prop_assert_eq!(metrics.nan_disagreements + metrics.inf_disagreements, 0);
        let told = Tolerance { equal_nan: true, ..Tolerance::EXACT };
        prop_assert_eq!(judge("x", &tensor.view(), &tensor.view(), Some(&told)).verdict, Verdict::Match);
    }

    #[test]
    fn one_changed_element_is_found(
        (dtype, values, at) in prop::sample::select(FLOATS.to_vec()).prop_flat_map(|dtype| {
            (Just(dtype), prop::collection::vec(-100.0..100.0_f64, 1..3000), any::<prop::sample::Index>())
        }),
    ) {
        let at = at.index(values.len());
        let mut changed = values.clone();
        changed[at] += 50.;
        let judged = judged(dtype, &values, &changed, None);
        prop_assert_eq!(judged.verdict, Verdict::Mismatch);
        let metrics = judged.metrics.unwrap();
        prop_assert_eq!(metrics.outside, 1);
        prop_assert_eq!(metrics.worst.unwrap().index, at as u64);
        prop_assert_eq!(metrics.first_outside.unwrap().index, at as u64);
    }

    #[test]
    fn without_scale_the_verdict_is_that_of_numpy_allclose(
        pairs in prop::collection::vec((finite(DType::F64), finite(DType::F64), 0.0..1e-3_f64, any::<bool>()), 0..50),
        atol in 0.0..1e-2_f64,
        rtol in 0.0..1e-3_f64,
    ) {
        let reference: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
        let apart = |&(r, c, rel, near): &(f64, f64, f64, bool)| if near { r * (1. + rel) } else { c };
        let candidate: Vec<f64> = pairs.iter().map(apart).collect();
        let allclose = reference.iter().zip(&candidate).all(|(r, c)| (c - r).abs() <= atol + rtol * r.abs());
        let tolerance = Tolerance { atol, rtol, ..Tolerance::EXACT };
        let judged = judged(DType::F64, &reference, &candidate, Some(&tolerance));
        prop_assert_eq!(judged.verdict == Verdict::Match, allclose);
    }

    #[test]
    fn the_required_tolerance_passes_and_a_smaller_one_does_not(
        pairs in prop::collection::vec((1e-3..100.0_f64, -1.0..1.0_f64), 1..50),
        atol in 0.0..1e-2_f64,
        rtol in 0.0..1e-2_f64,
        scale in 0.0..1e-3_f64,
    ) {
        let (reference, candidate): (Vec<_>, Vec<_>) = pairs.iter().map(|(r, apart)| (*r, r + apart)).unzip();
        let given = Tolerance { atol, rtol, scale, equal_nan: false };
        let required = judged(DType::F64, &reference, &candidate, Some(&given)).metrics.unwrap().required;
        let verdict = |tolerance| judged(DType::F64, &reference, &candidate, Some(&tolerance)).verdict;
        prop_assert_eq!(verdict(Tolerance { atol: required.atol, ..given }), Verdict::Match);
        prop_assert_eq!(verdict(Tolerance { rtol: required.rtol, ..given }), Verdict::Match);
        if required.atol > 1e-9 {
            prop_assert_eq!(verdict(Tolerance { atol: required.atol * (1. - 1e-6), ..given }), Verdict::Mismatch);
        }
        if required.rtol > 1e-9 {
            prop_assert_eq!(verdict(Tolerance { rtol: required.rtol * (1. - 1e-6), ..given }), Verdict::Mismatch);
        }
    }
}

#[test]
fn nan_is_outside_whatever_the_tolerance() {
    let widest = Tolerance { scale: 1e308, ..Tolerance::for_dtype(DType::F64) };
    for (reference, candidate) in [([NAN, 1e3], [0., 1e3]), ([0., 1e3], [NAN, 1e3]), ([INF, 1e3], [0., 1e3])] {
        let judged = judged(DType::F64, &reference, &candidate, Some(&widest));
        assert_eq!((judged.verdict, judged.metrics.unwrap().outside), (Verdict::Mismatch, 1), "{reference:?}");
    }
    assert_eq!(judged(DType::F64, &[0., 1e3], &[1e9, 1e3], Some(&widest)).verdict, Verdict::Match);
}

#[test]
fn a_comparison_that_nobody_waits_for_ends_and_tells_nothing() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let ones = TensorBuf::from_f32([1 << 20], &vec![1.; 1 << 20]).unwrap();
    let twos = TensorBuf::from_f32([1 << 20], &vec![2.; 1 << 20]).unwrap();
    let exact = TensorBuf::zeros(TensorDesc::new(DType::F64, [1 << 20]).unwrap());
    let looks = AtomicUsize::new(0);
    let compared = |until: usize| {
        looks.store(0, Ordering::SeqCst);
        let says = || looks.fetch_add(1, Ordering::SeqCst) < until;
        let explained = Explained::Drift { step: 0. };
        let exact_value = Exact { value: exact.shared(), explained, factor: 1.5, excused: Excused::AsReference };
        let pair = Pair {
            terms: Some(exact.shared()),
            exact: Some(exact_value),
            signatures: true,
            wanted: Wanted::while_so(&says),
            ..Pair::new("y", ones.shared(), twos.shared(), None)
        };
        pair.compared()
    };
    assert_eq!(compared(usize::MAX).verdict.verdict, Verdict::Mismatch);
    // Looked at between blocks of each of its parts.
    let all = looks.load(Ordering::SeqCst);
    assert!(all > 100, "{all} looks");
    for until in [0, 1, 10, 40, all / 2, all - 1] {
        let Compared { verdict, signatures } = compared(until);
        let Verdict::Failed(why) = &verdict.verdict else { panic!("{verdict} after {until} of {all} looks") };
        assert!(why.contains("nobody waits") && verdict.metrics.is_none() && signatures.is_some(), "{verdict}");
    }
}

#[test]
fn the_table_of_kinds_says_which_verdicts_are_passes() {
    let why = String::new;
    let every = [
        Verdict::Match,
        Verdict::Noise,
        Verdict::Tie(why()),
        Verdict::OpenOrder(why()),
        Verdict::Mismatch,
        Verdict::NotCompared(why()),
        Verdict::Failed(why()),
    ];
    assert_eq!(every.each_ref().map(|verdict| (verdict.words().0, verdict.is_pass())), Verdict::KINDS);
}
