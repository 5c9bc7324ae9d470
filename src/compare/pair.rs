//! A candidate and its reference, and everything that is asked of them at once, wherever they lie.

use super::metrics::Measured;
use super::noise::{Excused, Explained, Noise};
use super::signature::signatures_while;
use super::sums::judge_sums_while;
use super::tolerance::Tolerance;
use super::verdict::{TensorVerdict, comparable, judge_measured, judge_while};
use super::wanted::Wanted;
use crate::tensor::{SharedTensor, TensorDesc};

/// What is asked of a candidate and its reference. `T`: a tensor, or where it lies.
#[derive(Clone, Debug)]
pub struct Pair<'a, T> {
    /// Of the value.
    pub name: &'a str,
    /// Eager's.
    pub reference: T,
    /// The runtime's.
    pub candidate: T,
    /// None: the dtype's own.
    pub tolerance: Option<Tolerance>,
    /// Σ|terms| of each element, float64, of a value that is a sum.
    pub terms: Option<T>,
    /// What both should be.
    pub exact: Option<Exact<T>>,
    /// Their signatures, too.
    pub signatures: bool,
    /// What nobody waits for is stopped.
    pub wanted: Wanted<'a>,
}

/// What both of a pair should be, and what is noise around it.
#[derive(Clone, Copy, Debug)]
pub struct Exact<T> {
    /// float64, of the pair's shape.
    pub value: T,
    /// By rounding.
    pub explained: Explained<T>,
    /// How much further from it than the reference the candidate may be.
    pub factor: f64,
    /// What of a value that drifted beyond its tolerance is noise.
    pub excused: Excused,
}

/// What came of a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// With noise where an exact value was given.
    pub verdict: TensorVerdict,
    /// Where they were asked for: of reference and candidate.
    pub signatures: Option<[String; 2]>,
}

impl<'a, T> Pair<'a, T> {
    /// A pair of which nothing but a verdict is asked.
    pub fn new(name: &'a str, reference: T, candidate: T, tolerance: Option<Tolerance>) -> Self {
        let wanted = Wanted::ALWAYS;
        Self { name, reference, candidate, tolerance, terms: None, exact: None, signatures: false, wanted }
    }

    /// The same of what its tensors stand for.
    pub fn map<U>(self, of: impl Fn(T) -> U) -> Pair<'a, U> {
        Pair {
            name: self.name,
            reference: of(self.reference),
            candidate: of(self.candidate),
            tolerance: self.tolerance,
            terms: self.terms.map(&of),
            exact: self.exact.map(|Exact { value, explained, factor, excused }| Exact {
                value: of(value),
                explained: explained.map(&of),
                factor,
                excused,
            }),
            signatures: self.signatures,
            wanted: self.wanted,
        }
    }

    /// All its tensors: reference and candidate, terms, the exact value, its terms.
    pub fn tensors(&self) -> impl Iterator<Item = &T> {
        let exact = self.exact.iter();
        let of_exact = exact.flat_map(|exact| [&exact.value].into_iter().chain(exact.explained.terms()));
        [&self.reference, &self.candidate].into_iter().chain(&self.terms).chain(of_exact)
    }
}

impl Pair<'_, SharedTensor<'_>> {
    /// Judged here; failed where nobody waits for it any more.
    pub fn compared(self) -> Compared {
        let (reference, candidate, wanted) = (self.reference, self.candidate, self.wanted);
        let mut verdict = judge_while(self.name, [&reference, &candidate], self.tolerance.as_ref(), wanted);
        if let Some(terms) = self.terms {
            verdict = judge_sums_while(verdict, [reference, candidate, terms], wanted);
        }
        if let Some(Exact { value, explained, factor, excused }) = self.exact {
            let (noise, max_abs) =
                Noise::measure_apart([reference, candidate, value], explained, factor, wanted).unzip();
            verdict.noise = noise;
            // Where somebody writes them, float64 may have been asked of other numbers than those that were measured.
            let is_of_these = verdict.metrics.as_ref().map(|metrics| metrics.max_abs) == max_abs;
            if explained.is_drift() && is_of_these {
                verdict.excuse(excused, factor);
            }
        }
        let signatures = self.signatures.then(|| signatures_while(reference, candidate, wanted));
        // What was left out stands nowhere as found.
        if wanted.is() {
            Compared { verdict, signatures }
        } else {
            self.failed("nobody waits for the comparison any more")
        }
    }
}

impl<T> Pair<'_, T> {
    /// Nothing is known of it but why.
    pub fn failed(&self, why: impl Into<String>) -> Compared {
        let unknown = || super::signature::UNKNOWN.to_owned();
        let signatures = self.signatures.then(|| [unknown(), unknown()]);
        Compared { verdict: TensorVerdict::failed(self.name, why), signatures }
    }

    /// What is to be measured with, of tensors of these descriptions. Error: why they cannot be compared.
    pub fn comparable(&self, descs: [&TensorDesc; 2]) -> Result<Tolerance, String> {
        comparable(descs, self.tolerance.as_ref())
    }

    /// Of what was found where its tensors lie, both of `desc`, with the tolerance of [`Pair::comparable`].
    pub fn of_measured(&self, desc: &TensorDesc, tolerance: &Tolerance, found: Measured) -> Compared {
        let mut verdict = judge_measured(self.name, desc, tolerance, &found);
        if let (Some(errors), Some(Exact { explained, factor, excused, .. })) = (found.errors(), &self.exact) {
            verdict.noise = Some(Noise::of_measured(errors, desc.shape.n_elements(), explained, *factor));
            if explained.is_drift() {
                verdict.excuse(*excused, *factor);
            }
        }
        Compared { verdict, signatures: found.signatures }
    }
}
