use half::{bf16, f16};

use super::super::tolerance::epsilon;
use super::super::{Exact, Pair, Policy, Verdict};
use super::*;
use crate::tensor::{DType, TensorBuf, TensorDesc};

fn tensor(dtype: DType, values: &[f64]) -> TensorBuf {
    let bytes = values.iter().flat_map(|&value| match dtype {
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        other => panic!("{other}"),
    });
    TensorBuf::new(TensorDesc::new(dtype, [values.len() as i64]).unwrap(), bytes.collect()).unwrap()
}

fn noise(dtype: DType, values: [&[f64]; 3], terms: Option<&[f64]>) -> Noise {
    let [reference, candidate] = [values[0], values[1]].map(|values| tensor(dtype, values));
    let (exact, terms) = (tensor(DType::F64, values[2]), terms.map(|terms| tensor(DType::F64, terms)));
    let explained = terms.as_ref().map_or(Explained::Kernel, |terms| Explained::Terms(terms.shared()));
    Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR).unwrap()
}

fn drift(dtype: DType, values: [&[f64]; 3]) -> Option<Noise> {
    let [reference, candidate] = [values[0], values[1]].map(|values| tensor(dtype, values));
    let exact = tensor(DType::F64, values[2]);
    Noise::measure(&reference.view(), &candidate.view(), &exact.view(), Explained::Drift { step: 0. }, Noise::FACTOR)
}

fn measure(dtype: DType, reference: &[f64], candidate: &[f64], exact: &[f64]) -> (f64, f64, bool) {
    let noise = noise(dtype, [reference, candidate, exact], None);
    (noise.errors.reference_error, noise.errors.candidate_error, noise.settles())
}

#[test]
fn up_to_twice_the_references_error_is_rounding() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (reference, candidate, expected) in [
            ([1., 2.], [1., 2.], (0., 0., true)),
            ([1.25, 2.], [1., 2.5], (0.25, 0.5, true)),
            ([1.25, 2.], [1., 3.], (0.25, 1., false)),
            ([1., 2.], [1., 2.5], (0., 0.5, false)),
        ] {
            assert_eq!(measure(dtype, &reference, &candidate, &[1., 2.]), expected, "{dtype}");
        }
    }
}

#[test]
fn nan_and_infinity_are_near_themselves_only() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let same = [nan, inf, -inf];
    assert_eq!(measure(DType::F32, &same, &same, &same), (0., 0., true));
    for bad in [[0., inf, -inf], [nan, 0., -inf], [nan, inf, inf], [inf, nan, -inf]] {
        assert_eq!(measure(DType::F32, &same, &bad, &same), (0., inf, false), "{bad:?}");
        assert_eq!(measure(DType::F32, &bad, &bad, &same), (inf, inf, false), "{bad:?}");
    }
}

#[test]
fn other_shapes_and_complex_numbers_have_no_noise() {
    let (two, one) = (tensor(DType::F64, &[1., 2.]), tensor(DType::F64, &[1.]));
    let complex = TensorBuf::zeros(TensorDesc::new(DType::C64, [2]).unwrap());
    let terms = Explained::Terms(one.shared());
    for (reference, exact, explained) in
        [(&two, &one, Explained::Kernel), (&two, &two, terms), (&complex, &two, Explained::Drift { step: 0. })]
    {
        let found = Noise::measure(&reference.view(), &two.view(), &exact.view(), explained, Noise::FACTOR);
        assert_eq!(found, None);
    }
}

#[test]
fn a_lucky_reference_accuses_nobody_of_rounding_what_was_added_up() {
    let (zero, off) = ([0., 1.], [1.4e-8, 1.]);
    let of = |terms: &[f64]| noise(DType::F32, [&zero, &off, &zero], Some(terms)).settles();
    assert!(of(&[0.01, 1.]));
    assert!(!of(&[0.001, 1.]), "1.4e-8 is 117 roundings of 0.001");
    assert!(!of(&[f64::INFINITY, 1.]) && !of(&[f64::NAN, 1.]), "explains nothing");
}

#[test]
fn half_precision_rounds_once_at_each_element_and_adds_up_in_float32() {
    for (dtype, step) in [(DType::BF16, 0.0078125), (DType::F16, 0.0009765625)] {
        let exact = [0.125 * (1. + 0.5 * step), 64.];
        let of = |steps: f64| {
            let candidate = [0.125 * (1. + steps * step), 64.];
            noise(dtype, [&[0.125, 64.], &candidate, &exact], Some(&exact)).settles()
        };
        assert!(of(1.), "{dtype}: the other neighbour");
        assert!(!of(3.), "{dtype}: steps of the element, not of the largest one");
    }
}

#[test]
fn subnormals_and_signed_zeros_are_rounding() {
    for (dtype, tiny) in [(DType::F16, 6e-8), (DType::BF16, 1e-40), (DType::F32, 1e-45), (DType::F64, 5e-324)] {
        let found = noise(dtype, [&[0., -0.], &[tiny, 0.], &[0., 0.]], Some(&[0., 0.]));
        assert!(found.settles(), "{dtype}: {found:?}");
    }
}

#[test]
fn nothing_is_rounding() {
    assert!(noise(DType::F32, [&[], &[], &[]], Some(&[])).settles());
}

/// Of every type: step at 1, values around a middle that is exact in all.
#[test]
fn kinds_by_errors_in_every_type() {
    use NoiseKind::{CandidateWorse, IllConditioned, ReferenceWorse};
    const NOISE: NoiseKind = NoiseKind::Noise;
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let step = epsilon(dtype);
        // (steps of the reference from 1, of the candidate, expected of a kernel with terms, of drift)
        for (reference, candidate, of_kernel, of_drift) in [
            (0., 0., NOISE, NOISE),
            (0., 1., NOISE, NOISE),
            (1., 0., NOISE, NOISE),
            (0., 40., CandidateWorse, CandidateWorse),
            (40., 0., ReferenceWorse, ReferenceWorse),
            (40., 40., NOISE, NOISE),
            (30., 44., NOISE, NOISE),
            (30., 60., IllConditioned, IllConditioned),
            (40., -40., IllConditioned, IllConditioned),
            (2., -7., if step > 1e-5 { CandidateWorse } else { NOISE }, NOISE),
            (2., -14., CandidateWorse, CandidateWorse),
        ] {
            let values = [1. + reference * step, 1. + candidate * step].map(|value| [value, 0.25]);
            let exact = [1., 0.25];
            let terms = if dtype.size_bytes() == 2 { exact } else { [0.4, 0.1] };
            let found = noise(dtype, [&values[0], &values[1], &exact], Some(&terms));
            assert_eq!(found.kind, of_kernel, "{dtype}, {reference} and {candidate} steps: {found:?}");
            let Some(found) = drift(dtype, [&values[0], &values[1], &exact]) else {
                assert_eq!(dtype, DType::F64);
                continue;
            };
            assert_eq!(found.kind, of_drift, "{dtype}, drift, {reference} and {candidate} steps: {found:?}");
            assert_eq!(found.errors.condition, found.errors.reference_excess, "{dtype}");
        }
    }
}

#[test]
fn kinds_of_nothing_of_nan_and_of_infinity() {
    use NoiseKind::{CandidateWorse, IllConditioned, ReferenceWorse};
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (reference, candidate, exact, expected, ratio) in [
            (&[][..], &[][..], &[][..], NoiseKind::Noise, 1.),
            (&[0., -0.], &[-0., 0.], &[0., 0.], NoiseKind::Noise, 1.),
            (&[nan, inf], &[nan, inf], &[nan, inf], NoiseKind::Noise, 1.),
            // Both overflowed where float64 does not.
            (&[inf, 1.], &[inf, 1.], &[1e5, 1.], NoiseKind::Noise, 1.),
            (&[1., 1.], &[inf, 1.], &[1., 1.], CandidateWorse, inf),
            (&[1., 1.], &[nan, 1.], &[1., 1.], CandidateWorse, inf),
            (&[inf, 1.], &[6e4, 1.], &[6e4, 1.], ReferenceWorse, 0.),
            (&[nan, 1.], &[1., 1.], &[1., 1.], ReferenceWorse, 0.),
            (&[inf, 1.], &[nan, 1.], &[1., 1.], IllConditioned, 1.),
            (&[inf, 1.], &[1., 1.], &[inf, 1.], CandidateWorse, inf),
        ] {
            let exact = exact.iter().map(|&value| {
                if value == 6e4 { tensor(dtype, &[value]).shared().flat_f64(0..1).unwrap()[0] } else { value }
            });
            let exact: Vec<f64> = exact.collect();
            let of_drift = drift(dtype, [reference, candidate, &exact]);
            assert_eq!(of_drift.is_none(), dtype == DType::F64);
            for found in of_drift.into_iter().chain([noise(dtype, [reference, candidate, &exact], None)]) {
                assert_eq!(
                    (found.kind, found.ratio),
                    (expected, ratio),
                    "{dtype}: {reference:?} {candidate:?} {exact:?}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn what_drifted_through_bfloat16_is_measured_by_its_steps() {
    let [reference, candidate] = [[1.003, 0.25], [1.006, 0.25]].map(|values| tensor(DType::F32, &values));
    let exact = tensor(DType::F64, &[1., 0.25]);
    let of = |step| {
        let explained = Explained::Drift { step };
        Noise::measure(&reference.view(), &candidate.view(), &exact.view(), explained, Noise::FACTOR).unwrap()
    };
    let (own, half) = (of(0.), of(epsilon(DType::BF16)));
    assert_eq!((own.kind, half.kind), (NoiseKind::IllConditioned, NoiseKind::Noise));
    assert!(own.errors.condition > 1e4 && half.errors.condition < 1., "{own:?} {half:?}");
}

#[test]
fn the_factor_decides_where_both_are_off() {
    let errors = |candidate: f64| Errors {
        reference_error: 1.,
        candidate_error: candidate,
        reference_excess: 2.,
        candidate_excess: 2. * candidate,
        distance: 0.1,
        condition: 2.,
        reference_rms: f64::NAN,
        candidate_rms: f64::NAN,
        rounding: None,
    };
    for (candidate, factor, expected) in [
        (1.5, 1.5, NoiseKind::Noise),
        (1.6, 1.5, NoiseKind::CandidateWorse),
        (1.6, 2., NoiseKind::Noise),
        (0.6, 1.5, NoiseKind::ReferenceWorse),
        (0.7, 1.5, NoiseKind::Noise),
    ] {
        assert_eq!(errors(candidate).kind(factor), expected, "{candidate} {factor}");
    }
}

#[test]
fn an_old_opinion_reads_as_noise_and_a_new_one_as_it_was_written() {
    let old = r#"{"reference_error": 0.0, "candidate_error": 1.5, "reference_excess": 0.0, "candidate_excess": "inf"}"#;
    let read: Noise = serde_json::from_str(old).unwrap();
    assert_eq!((read.kind, read.ratio), (NoiseKind::CandidateWorse, f64::INFINITY));
    assert!(read.errors.distance.is_nan() && read.errors.condition.is_nan());
    let noise = drift(DType::F32, [&[1., 2.], &[1., 2.5], &[1., 2.]]).unwrap();
    let text = serde_json::to_string(&noise).unwrap();
    assert_eq!(serde_json::from_str::<Noise>(&text).unwrap(), noise, "{text}");
}

/// Numbers between −1 and 1 that look like chance; of a seed always the same.
fn drawn(seed: u64) -> impl Iterator<Item = f64> {
    let next = |state: &u64| Some(state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    let states = std::iter::successors(next(&seed), next);
    states.map(|state| (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.)
}

const NOISE: f64 = 0.1;

/// What is as far from float64 as a value that drifted through bfloat16 by some steps.
const SPREAD: Spread = Spread { largest: NOISE, rms: 0.58 * NOISE };

/// A value that drifted through bfloat16 by some steps, and beside it one with a fault of `times` as much.
fn faulty(excused: Excused, times: f64, fault: impl Fn(usize, f64) -> f64) -> Verdict {
    const N: usize = 4096;
    let exact: Vec<f64> = drawn(1).take(N).collect();
    let noisy = |seed| exact.iter().zip(drawn(seed)).map(|(exact, drawn)| exact + NOISE * drawn).collect::<Vec<_>>();
    let (reference, mut candidate) = (noisy(2), noisy(3));
    for (at, (value, drawn)) in candidate.iter_mut().zip(drawn(4)).enumerate() {
        *value += times * NOISE * fault(at, drawn);
    }
    let policy = Policy { through: Some(DType::BF16), ..Policy::default() };
    let [reference, candidate] = [reference, candidate].map(|values| tensor(DType::F32, &values));
    let exact = tensor(DType::F64, &exact);
    let explained = Explained::Drift { step: policy.step() };
    let (exact, factor) = (exact.shared(), policy.noise_factor);
    let pair = Pair {
        exact: Some(Exact { value: exact, explained, factor, excused }),
        ..Pair::new("y", reference.shared(), candidate.shared(), Some(policy.tolerance(DType::F32)))
    };
    pair.compared().verdict.verdict
}

/// A fault of every element, one of one way, one of a single element.
fn faults(excused: Excused) -> [impl Fn(f64) -> Verdict; 3] {
    let faults: [fn(usize, f64) -> f64; 3] = [|_, drawn| drawn, |_, _| 0.58, |at, _| if at == 77 { 1. } else { 0. }];
    faults.map(|fault| move |times| faulty(excused, times, fault))
}

#[test]
fn noise_hides_no_fault_that_is_larger() {
    let [everywhere, one_way, one_element] = faults(Excused::AsReference);
    for of in [&everywhere, &one_way] {
        assert_eq!([0., 0.5, 2., 4.].map(of), [Verdict::Noise, Verdict::Noise, Verdict::Mismatch, Verdict::Mismatch]);
    }
    // A single element may be as far off as the largest of all.
    assert_eq!([0.5, 4.].map(one_element), [Verdict::Noise, Verdict::Mismatch]);
}

/// No node is known to be wrong where a spread is: what is hidden is below four times what rounding does.
#[test]
fn what_rounding_moves_hides_no_fault_that_is_larger_than_four_of_it() {
    for of in &faults(Excused::AsRounding(SPREAD)) {
        assert_eq!([1., 2.].map(of), [Verdict::Noise, Verdict::Noise]);
        assert_eq!([5., 8.].map(of), [Verdict::Mismatch, Verdict::Mismatch]);
    }
    for of in &faults(Excused::Nothing) {
        assert_eq!([1., 2., 4.].map(of), [Verdict::Mismatch, Verdict::Mismatch, Verdict::Mismatch]);
    }
}

/// Eager was lucky: ten times nearer to float64 than rounding moves the value.
#[test]
fn a_lucky_reference_accuses_nobody_whose_nodes_are_right() {
    let of = |excused| {
        let [reference, candidate] = [[1.00001, 0.25], [1.0001, 0.25]].map(|values| tensor(DType::F32, &values));
        let exact = tensor(DType::F64, &[1., 0.25]);
        let exact = Exact { value: exact.shared(), explained: Explained::Drift { step: 0. }, factor: 1.5, excused };
        let pair = Pair { exact: Some(exact), ..Pair::new("y", reference.shared(), candidate.shared(), None) };
        pair.compared().verdict
    };
    let spread = |largest| Excused::AsRounding(Spread { largest, rms: largest });
    assert_eq!(of(Excused::AsReference).verdict, Verdict::Mismatch);
    assert_eq!(of(spread(1e-4)).verdict, Verdict::Noise);
    let noise = of(spread(1e-4)).noise.unwrap();
    assert_eq!((noise.kind, noise.spread), (NoiseKind::IllConditioned, Some(Spread { largest: 1e-4, rms: 1e-4 })));
    // Further than four times that; or a value that rounding leaves within its tolerance.
    assert_eq!(of(spread(2.4e-5)).verdict, Verdict::Mismatch);
    assert_eq!(of(spread(2e-5)).noise.unwrap().kind, NoiseKind::CandidateWorse);
    let text = serde_json::to_string(&noise).unwrap();
    assert_eq!(serde_json::from_str::<Noise>(&text).unwrap(), noise, "{text}");
}

#[test]
fn beside_a_fill_value_nothing_else_is_noise() {
    let mask = f64::from(f32::MIN);
    let of = |candidate: [f64; 3]| {
        let [reference, candidate] = [[mask, 1., 2.], candidate].map(|values| tensor(DType::F32, &values));
        let exact = tensor(DType::F64, &[mask, 1., 2.]);
        let exact = Exact {
            value: exact.shared(),
            explained: Explained::Drift { step: 0. },
            factor: 1.5,
            excused: Excused::AsReference,
        };
        let pair = Pair { exact: Some(exact), ..Pair::new("y", reference.shared(), candidate.shared(), None) };
        pair.compared().verdict.verdict
    };
    assert_eq!(
        [[mask, 1., 2.], [mask, 3., 2.], [mask / 2., 1., 2.]].map(of),
        [Verdict::Match, Verdict::Mismatch, Verdict::Mismatch]
    );
}
