//! How near two results are to the exact one: whether they differ by no more than their type's own noise.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::number;
use super::rounding::{Rounding, Roundings, Steps};
use super::tolerance::{accumulated_in, epsilon, smallest};
use crate::base::parallel::in_parallel;
use crate::tensor::{DType, SharedTensor};

/// What the errors of two results come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseKind {
    /// The candidate is about as far from float64 as the reference is, or by no more than rounding explains.
    Noise,
    /// The candidate is further from float64 than noise explains.
    CandidateWorse,
    /// The reference is.
    ReferenceWorse,
    /// Both are far from float64, by about as much as they are apart: the value itself is hardly determined.
    IllConditioned,
}

impl NoiseKind {
    /// All, in the order of their declaration.
    pub const ALL: [NoiseKind; 4] =
        [NoiseKind::Noise, NoiseKind::CandidateWorse, NoiseKind::ReferenceWorse, NoiseKind::IllConditioned];
}

/// Kinds counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoiseSummary {
    /// [`NoiseKind::Noise`].
    pub noise: usize,
    /// [`NoiseKind::CandidateWorse`].
    pub candidate_worse: usize,
    /// [`NoiseKind::ReferenceWorse`].
    pub reference_worse: usize,
    /// [`NoiseKind::IllConditioned`].
    pub ill_conditioned: usize,
}

impl NoiseSummary {
    /// Of those that are known.
    pub fn of(kinds: impl IntoIterator<Item = NoiseKind>) -> Self {
        let mut summary = Self::default();
        for kind in kinds {
            *match kind {
                NoiseKind::Noise => &mut summary.noise,
                NoiseKind::CandidateWorse => &mut summary.candidate_worse,
                NoiseKind::ReferenceWorse => &mut summary.reference_worse,
                NoiseKind::IllConditioned => &mut summary.ill_conditioned,
            } += 1;
        }
        summary
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Those that there are: "12 noise, 1 candidate worse".
impl fmt::Display for NoiseSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [self.noise, self.candidate_worse, self.reference_worse, self.ill_conditioned];
        let there = NoiseKind::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
        let parts: Vec<_> = there.map(|(kind, count)| format!("{count} {kind}")).collect();
        f.pad(&parts.join(", "))
    }
}

impl fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NoiseKind::Noise => "noise",
            NoiseKind::CandidateWorse => "candidate worse",
            NoiseKind::ReferenceWorse => "reference worse",
            NoiseKind::IllConditioned => "ill-conditioned",
        })
    }
}

/// How far reference and candidate are from the same computation in float64, and what that comes to, at the elements
/// that were asked for: all, or those that decide.
///
/// # When to use
/// Where two results differ and neither is exact. Of a node's own kernel ([`Explained::Terms`], [`Explained::Kernel`]) it
/// says whether the kernel rounds as eager's does; of a value as it drifted ([`Explained::Drift`]), whether what the
/// candidate gathered on its way is more than what eager did.
///
/// # When not
/// Of float64 tensors, whose exact values are eager's own, it tells how far the candidate is from eager and no more. Of
/// integers there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "AsWritten")]
pub struct Noise {
    /// What it comes to.
    pub kind: NoiseKind,
    /// What was measured.
    #[serde(flatten)]
    pub errors: Errors,
    /// `candidate_error` / `reference_error`: about 1 is the type's own noise. 1 where both are 0 or infinite.
    #[serde(with = "number")]
    pub ratio: f64,
}

/// Errors of two results against the exact one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// max |reference − exact|.
    #[serde(with = "number")]
    pub reference_error: f64,
    /// max |candidate − exact|.
    #[serde(with = "number")]
    pub candidate_error: f64,
    /// The reference's largest error as a multiple of what rounding explains at that element.
    #[serde(with = "number")]
    pub reference_excess: f64,
    /// Likewise, of the candidate.
    #[serde(with = "number")]
    pub candidate_excess: f64,
    /// max |candidate − reference|; NaN unknown.
    #[serde(with = "number", default = "unknown")]
    pub distance: f64,
    /// The reference's largest error in steps of its type, or of the lowest precision on its way, at max|exact|, of which rounding the exact value explains half
    /// a one; NaN unknown.
    #[serde(with = "number", default = "unknown")]
    pub condition: f64,
    /// How both round, over all elements; None of types that are not half precision, and of values that drifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<Rounding>,
}

/// As it stands in a file; `rust_ort/nodes/2` has the errors alone.
#[derive(Deserialize)]
struct AsWritten {
    kind: Option<NoiseKind>,
    #[serde(flatten)]
    errors: Errors,
}

impl From<AsWritten> for Noise {
    fn from(written: AsWritten) -> Self {
        let noise = Noise::of(written.errors, Noise::FACTOR);
        Noise { kind: written.kind.unwrap_or(noise.kind), ..noise }
    }
}

fn unknown() -> f64 {
    f64::NAN
}

/// What rounding explains at an element, beside one step of the reference's type there.
#[derive(Clone, Copy, Debug)]
pub enum Explained<'a> {
    /// [`Noise::ROUNDINGS`] roundings, in the type that kernels add up in, of Σ|terms|, float64 of the exact one's shape.
    Terms(SharedTensor<'a>),
    /// The same of an operator whose terms nobody knows: of max|exact|.
    Kernel,
    /// Of a value that drifted: one step at max|exact|, for errors came from elsewhere than from the element.
    Drift {
        /// The relative one of the lowest precision that it drifted through, where that is wider than its own type's.
        step: f64,
    },
}

impl Errors {
    /// The reference's and the candidate's errors and their distance are within this factor of each other where both are
    /// off "by about as much as they are apart".
    const ABOUT: f64 = 3.;

    /// From so many steps on the value is hardly determined.
    const ILL_CONDITIONED: f64 = 8.;

    /// What they come to: pure. `factor`: how much further from float64 than the reference the candidate may be. Largest
    /// errors decide; where they are alike, how both round.
    pub fn kind(&self, factor: f64) -> NoiseKind {
        let (reference, candidate) = (self.reference_excess, self.candidate_excess);
        let leniency = factor / Noise::FACTOR;
        let is_worse = |of: fn(&Rounding, f64) -> bool| self.rounding.as_ref().is_some_and(|found| of(found, leniency));
        if self.is_ill_conditioned() {
            NoiseKind::IllConditioned
        } else if candidate > (factor * reference).max(1.) {
            NoiseKind::CandidateWorse
        } else if reference > (factor * candidate).max(1.) {
            NoiseKind::ReferenceWorse
        } else if is_worse(Rounding::candidate_is_worse) {
            NoiseKind::CandidateWorse
        } else if is_worse(Rounding::reference_is_worse) {
            NoiseKind::ReferenceWorse
        } else {
            NoiseKind::Noise
        }
    }

    fn is_ill_conditioned(&self) -> bool {
        let sizes = [self.reference_error, self.candidate_error, self.distance];
        let least = sizes.into_iter().fold(f64::INFINITY, f64::min);
        let most = sizes.into_iter().fold(0., f64::max);
        // Three infinities are alike, too.
        let alike = most <= Self::ABOUT * least;
        !self.distance.is_nan() && self.distance > 0. && alike && self.condition > Self::ILL_CONDITIONED
    }
}

impl Noise {
    /// How much further from float64 than the reference the candidate may be, unless told otherwise.
    pub const FACTOR: f64 = 1.5;

    /// A mismatch whose candidate is further than the reference by no more than this is settled as a match.
    pub const SETTLING: f64 = 2.;

    /// Roundings of Σ|terms| that a sum may be off by, in whichever order it is taken: partial sums of n terms differ by
    /// about √n/8 of these.
    pub const ROUNDINGS: f64 = 16.0;

    /// Of errors. `factor`: see [`Errors::kind`].
    pub fn of(errors: Errors, factor: f64) -> Self {
        let Errors { reference_error, candidate_error, .. } = errors;
        let ratio = if reference_error == candidate_error { 1. } else { candidate_error / reference_error };
        Self { kind: errors.kind(factor), errors, ratio }
    }

    /// Measures both against `exact`. All of one shape; any dtypes that widen to f64. A NaN or an infinity counts as no
    /// error against itself and as an infinite one against any other number. None for complex and 8-bit float types,
    /// and for tensors of different shapes. `factor`: see [`Errors::kind`]; of a value that drifted times 1 + 4/√n, for n
    /// elements. None of a float64 value that drifted, too: what is computed in float64 is the reference itself.
    pub fn measure<'a>(
        reference: impl Into<SharedTensor<'a>>,
        candidate: impl Into<SharedTensor<'a>>,
        exact: impl Into<SharedTensor<'a>>,
        explained: Explained<'a>,
        factor: f64,
    ) -> Option<Self> {
        let (reference, candidate, exact) = (reference.into(), candidate.into(), exact.into());
        let alike = |other: &SharedTensor<'_>| other.shape() == exact.shape();
        let terms = match &explained {
            Explained::Terms(terms) => Some(terms),
            Explained::Kernel | Explained::Drift { .. } => None,
        };
        let is_judge = reference.dtype() == DType::F64 && matches!(explained, Explained::Drift { .. });
        if is_judge || !(alike(&reference) && alike(&candidate) && terms.is_none_or(alike)) {
            return None;
        }
        let largest = largest(&exact)?;
        let dtype = reference.dtype();
        let widest = if let Explained::Drift { step } = explained { step } else { 0. };
        let (step, smallest) = (epsilon(dtype).max(widest), smallest(dtype));
        let rounding = Self::ROUNDINGS * epsilon(accumulated_in(dtype));
        let steps = Steps::of(dtype);
        let scales = match (terms, &explained) {
            (Some(terms), _) => Scales { exact: step, terms: rounding, each: Some(terms), all: smallest, steps },
            (None, Explained::Drift { .. }) => {
                Scales { exact: 0., terms: 0., each: None, all: step * largest + smallest, steps: None }
            }
            (None, _) => Scales { exact: step, terms: 0., each: None, all: rounding * largest + smallest, steps },
        };
        let mut errors = errors([&reference, &candidate], &exact, &scales)?;
        errors.condition = excess(errors.reference_error, step * largest + smallest);
        // How often two largest errors of few elements differ by chance alone.
        let scatter =
            if matches!(explained, Explained::Drift { .. }) { Self::scatter(exact.shape().n_elements()) } else { 1. };
        Some(Self::of(errors, factor * scatter))
    }

    /// The largest of n errors scatters the more the fewer there are: a scalar's ratio says little.
    fn scatter(n_elements: usize) -> f64 {
        1. + 4. / (n_elements.max(1) as f64).sqrt()
    }

    /// Whether a mismatch of a kernel is none: rounding explains what the candidate is off by, or the reference is off
    /// by about as much. NaN is not near.
    pub fn settles(&self) -> bool {
        let Errors { reference_error, reference_excess, candidate_excess, .. } = self.errors;
        candidate_excess <= (Self::SETTLING * reference_excess).max(1.) && reference_error.is_finite()
    }
}

/// What rounding explains at an element: `exact` of |exact|, `terms` of the element's own, and `all`. steps: of the type,
/// where all elements are looked at by these.
struct Scales<'t, 'a> {
    exact: f64,
    terms: f64,
    each: Option<&'t SharedTensor<'a>>,
    all: f64,
    steps: Option<Steps>,
}

const BLOCK: usize = 4096;

/// Ranges of elements, one after the other.
pub(super) fn blocks(n_elements: usize) -> impl Iterator<Item = Range<usize>> {
    // A tensor without elements still tells whether its dtype widens.
    (0..n_elements.max(1)).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(n_elements))
}

/// What `of` finds in each range of elements, some of them at a time; `len_bytes`: what all of it reads. None where
/// it finds nothing in one.
fn of_each<T: Send>(
    n_elements: usize,
    len_bytes: usize,
    of: impl Fn(Range<usize>) -> Option<T> + Sync,
) -> Option<Vec<T>> {
    let ranges: Vec<_> = blocks(n_elements).collect();
    in_parallel(ranges.len(), len_bytes, |index| of(ranges[index].clone())).into_iter().collect()
}

/// The largest finite |element|; None for a dtype that does not widen.
fn largest(tensor: &SharedTensor<'_>) -> Option<f64> {
    let of_block = |range| {
        let sizes = tensor.flat_f64(range)?.into_iter().map(f64::abs);
        Some(sizes.filter(|size| size.is_finite()).fold(0., f64::max))
    };
    Some(of_each(tensor.shape().n_elements(), tensor.bytes().len(), of_block)?.into_iter().fold(0., f64::max))
}

/// Of a reference and a candidate, but for the condition.
fn errors(tensors: [&SharedTensor<'_>; 2], exact: &SharedTensor<'_>, scales: &Scales<'_, '_>) -> Option<Errors> {
    let of_block = |range: Range<usize>| {
        let exact = exact.flat_f64(range.clone())?;
        let terms = match scales.each {
            Some(terms) => terms.flat_f64(range.clone())?,
            None => vec![0.; exact.len()],
        };
        let [reference, candidate] = [tensors[0].flat_f64(range.clone())?, tensors[1].flat_f64(range)?];
        let (mut found, mut roundings) = (Errors::default(), Roundings::default());
        for (((reference, candidate), exact), terms) in reference.into_iter().zip(candidate).zip(exact).zip(terms) {
            let slack = scales.terms * terms + scales.all;
            let explained = scales.exact * exact.abs() + slack;
            if let Some(steps) = &scales.steps {
                roundings.add([reference, candidate], exact, slack, steps);
            }
            let [of_reference, of_candidate] = [reference, candidate].map(|value| distance(value, exact));
            found.merge(&Errors {
                reference_error: of_reference,
                candidate_error: of_candidate,
                reference_excess: excess(of_reference, explained),
                candidate_excess: excess(of_candidate, explained),
                distance: distance(candidate, reference),
                ..Errors::default()
            });
        }
        Some((found, roundings))
    };
    let (mut all, mut roundings) = (Errors::default(), Roundings::default());
    for (found, in_block) in of_each(exact.shape().n_elements(), exact.bytes().len(), of_block)? {
        all.merge(&found);
        roundings.merge(&in_block);
    }
    Some(Errors { rounding: roundings.found(), ..all })
}

impl Errors {
    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.reference_error, other.reference_error),
            (&mut self.candidate_error, other.candidate_error),
            (&mut self.reference_excess, other.reference_excess),
            (&mut self.candidate_excess, other.candidate_excess),
            (&mut self.distance, other.distance),
        ] {
            *mine = mine.max(theirs);
        }
    }
}

/// What is infinite or NaN explains nothing.
fn excess(distance: f64, explained: f64) -> f64 {
    match distance {
        0. => 0.,
        _ if explained.is_finite() => distance / explained,
        _ => f64::INFINITY,
    }
}

fn distance(value: f64, exact: f64) -> f64 {
    match (value - exact).abs() {
        _ if value == exact || (value.is_nan() && exact.is_nan()) => 0.,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{TensorBuf, TensorDesc};
    use half::{bf16, f16};

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
        Noise::measure(
            &reference.view(),
            &candidate.view(),
            &exact.view(),
            Explained::Drift { step: 0. },
            Noise::FACTOR,
        )
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
        let old =
            r#"{"reference_error": 0.0, "candidate_error": 1.5, "reference_excess": 0.0, "candidate_excess": "inf"}"#;
        let read: Noise = serde_json::from_str(old).unwrap();
        assert_eq!((read.kind, read.ratio), (NoiseKind::CandidateWorse, f64::INFINITY));
        assert!(read.errors.distance.is_nan() && read.errors.condition.is_nan());
        let noise = drift(DType::F32, [&[1., 2.], &[1., 2.5], &[1., 2.]]).unwrap();
        let text = serde_json::to_string(&noise).unwrap();
        assert_eq!(serde_json::from_str::<Noise>(&text).unwrap(), noise, "{text}");
    }
}
