//! The judgement over a tensor, and over many.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::metrics::{Measured, Metrics, measure, measured};
use super::noise::{Excused, Noise};
use super::tolerance::Tolerance;
use super::wanted::Wanted;
use crate::tensor::{DType, SharedTensor, TensorDesc};

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "reason", rename_all = "snake_case")]
pub enum Verdict {
    /// Every element is inside tolerance (also when there is none).
    Match,
    /// At least one element is outside tolerance, and the candidate is about as far from float64 as the reference is: it
    /// says nothing of the candidate. A pass.
    Noise,
    /// Elements differ where the reference itself was undecided between equals, and why. A pass.
    Tie(String),
    /// Elements are the reference's in an order that its operator leaves open, and why. A pass.
    OpenOrder(String),
    /// At least one element is outside tolerance.
    Mismatch,
    /// There was no pair to compare, and why. Never a pass.
    NotCompared(String),
    /// The pair cannot be compared, and why: another dtype, another shape, a bad tolerance.
    Failed(String),
}

/// A verdict and the facts behind it.
///
/// ```
/// use rust_ort::compare::{TensorVerdict, summary};
///
/// let verdicts = [TensorVerdict::not_compared("h", "an integer list"), TensorVerdict::failed("y", "the kernel is missing")];
/// assert_eq!(verdicts[0].to_string(), "\"h\": not compared: an integer list");
/// assert_eq!(summary(&verdicts).exit_code(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorVerdict {
    /// Name of the value.
    pub name: String,
    /// What it came to.
    pub verdict: Verdict,
    /// Present where there was a pair to measure.
    pub metrics: Option<Metrics>,
    /// How far both are from float64, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
}

impl Verdict {
    /// (name in files, whether it is a pass) of each kind: passes first, in the order in which counts are told.
    pub const KINDS: [(&'static str, bool); 7] = [
        ("match", true),
        ("noise", true),
        ("tie", true),
        ("open_order", true),
        ("mismatch", false),
        ("not_compared", false),
        ("failed", false),
    ];

    /// Whether the candidate is as right as the reference.
    pub fn is_pass(&self) -> bool {
        match self {
            Self::Match | Self::Noise | Self::Tie(_) | Self::OpenOrder(_) => true,
            Self::Mismatch | Self::NotCompared(_) | Self::Failed(_) => false,
        }
    }

    /// Its name in files, and its reason where it has one.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Match => ("match", ""),
            Self::Noise => ("noise", ""),
            Self::Tie(reason) => ("tie", reason),
            Self::OpenOrder(reason) => ("open_order", reason),
            Self::Mismatch => ("mismatch", ""),
            Self::NotCompared(reason) => ("not_compared", reason),
            Self::Failed(reason) => ("failed", reason),
        }
    }
}

impl TensorVerdict {
    /// `name` has no counterpart, or was not looked at; `reason` says why.
    pub fn not_compared(name: &str, reason: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::NotCompared(reason.into()), metrics: None, noise: None }
    }

    /// There is nothing of `name` to judge, because what should give it failed; `reason` says how.
    pub fn failed(name: &str, reason: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Failed(reason.into()), metrics: None, noise: None }
    }
}

impl TensorVerdict {
    /// A mismatch of a value that drifted is noise where float64 says so, which the candidate may be `factor` times as far
    /// from as the reference. A NaN or an infinity on one side is none, whichever side is right.
    pub(super) fn excuse(&mut self, excused: Excused, factor: f64) {
        let (Some(metrics), Some(noise), Verdict::Mismatch) = (&self.metrics, &mut self.noise, &self.verdict) else {
            return;
        };
        let nan = if metrics.tolerance.equal_nan { 0 } else { metrics.both_nan };
        let is_of_numbers = metrics.nan_disagreements + metrics.inf_disagreements + nan == 0;
        let factor = factor * Noise::scatter(metrics.shape.n_elements());
        if is_of_numbers && noise.excuses(excused, factor, metrics.allowed_at_worst()) {
            self.verdict = Verdict::Noise;
        }
    }
}

/// What happened, where, what was expected and what came instead: one sentence.
impl fmt::Display for TensorVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        let word = match &self.verdict {
            Verdict::NotCompared(reason) => return write!(f, "{name:?}: not compared: {reason}"),
            Verdict::Failed(reason) => return write!(f, "{name:?}: {reason}"),
            Verdict::Tie(reason) => format!("tie: {reason}"),
            Verdict::OpenOrder(reason) => format!("open order: {reason}"),
            other => other.words().0.to_owned(),
        };
        match &self.metrics {
            Some(metrics) => write!(f, "{name:?}: {word}: {metrics}"),
            None => write!(f, "{name:?}: {word}"),
        }
    }
}

/// The candidate against the reference, with the given tolerance or the dtype's own. Both: any dtype, any rank.
/// `Failed` when dtypes or shapes differ or the tolerance is bad; `Match` when there are no elements.
/// bool is compared exactly whatever the tolerance.
///
/// # What it compares
/// Elements, position by position, both widened to f64, by the formula of [`Tolerance`]; a complex number is two
/// numbers, an integer beyond 2^53 is subtracted before it is widened. One element outside is a `Mismatch`. What was
/// found on the way is told whatever the verdict: how far, where first and where worst, and which tolerance would pass
/// ([`Metrics`]). Two passes, the second over what the first could not rule out, which it measures again; large tensors
/// on several threads, with sums that have the same bits on any number of them.
///
/// # When to use
/// For every pair of values of which one is held to be right: outputs of a call against eager's, a node's kernel on
/// eager's inputs, a dumped data set run again. Always give the reference first: the tolerance is relative to it.
/// Takes private tensors and shared ones, which a client may write meanwhile: then verdict and metrics are of whatever
/// was read, both of the same bytes, max|r| being that of the first pass.
///
/// # When not
/// - A value that has no counterpart is [`TensorVerdict::not_compared`], one that could not be computed
///   [`TensorVerdict::failed`]: neither is ever a pass.
/// - Of two results that are both rounded, neither right, [`Noise`](super::Noise) tells which is nearer to float64.
/// - Lists of results whose names do not say what belongs together are paired by [`align`](super::align()) first.
/// - Nothing is cast: tensors of two dtypes fail, and so does a shape that could be broadcast.
///
/// ```
/// use rust_ort::compare::{Tolerance, Verdict, judge};
/// use rust_ort::tensor::{BadTensor, DType, Shape, TensorView};
///
/// let shape = Shape::new([3])?;
/// let [eager, ort] = [[1_f32, 2., 4.], [1., 2., 4.5]].map(|values| values.map(f32::to_le_bytes));
/// let reference = TensorView::new(DType::F32, &shape, eager.as_flattened())?;
/// let candidate = TensorView::new(DType::F32, &shape, ort.as_flattened())?;
///
/// let judged = judge("y", &reference, &candidate, None);
/// assert_eq!(judged.verdict, Verdict::Mismatch);
/// let metrics = judged.metrics.expect("there was a pair");
/// assert_eq!((metrics.outside, metrics.max_abs), (1, 0.5));
///
/// let loose = Tolerance { rtol: 0.125, ..Tolerance::EXACT };
/// assert_eq!(judge("y", &reference, &candidate, Some(&loose)).verdict, Verdict::Match);
/// # Ok::<(), BadTensor>(())
/// ```
pub fn judge<'a>(
    name: &str,
    reference: impl Into<SharedTensor<'a>>,
    candidate: impl Into<SharedTensor<'a>>,
    tolerance: Option<&Tolerance>,
) -> TensorVerdict {
    judge_while(name, [&reference.into(), &candidate.into()], tolerance, Wanted::ALWAYS)
}

/// As [`judge`], of reference and candidate; the verdict says nothing where nobody waits for it any more.
pub(super) fn judge_while(
    name: &str,
    [reference, candidate]: [&SharedTensor<'_>; 2],
    tolerance: Option<&Tolerance>,
    wanted: Wanted<'_>,
) -> TensorVerdict {
    match comparable([&reference.desc(), &candidate.desc()], tolerance) {
        Ok(tolerance) => of_metrics(name, measure(reference, candidate, &tolerance, wanted)),
        Err(why) => TensorVerdict::failed(name, why),
    }
}

/// The tolerance of a comparison of two tensors, \[reference, candidate\]: the one asked for (bools have none but their
/// own), or the default. Error: why they cannot be compared, for a failed verdict.
pub fn comparable(
    [reference, candidate]: [&TensorDesc; 2],
    tolerance: Option<&Tolerance>,
) -> Result<Tolerance, String> {
    let differ = || format!("expected {reference} (reference), got {candidate} (candidate)");
    if reference.dtype != candidate.dtype {
        return Err(format!("dtypes differ: {}; cast one first", differ()));
    }
    if reference.shape != candidate.shape {
        return Err(format!("shapes differ: {}", differ()));
    }
    let tolerance = match tolerance {
        Some(given) if reference.dtype != DType::Bool => *given,
        _ => Tolerance::for_dtype(reference.dtype),
    };
    tolerance.check().map_err(|error| error.to_string())?;
    Ok(tolerance)
}

/// The verdict on [`comparable`] tensors of `desc` that were measured with this tolerance where they lie.
pub fn judge_measured(name: &str, desc: &TensorDesc, tolerance: &Tolerance, found: &Measured) -> TensorVerdict {
    of_metrics(name, measured(desc, tolerance, found))
}

fn of_metrics(name: &str, metrics: Metrics) -> TensorVerdict {
    let verdict = if metrics.outside == 0 { Verdict::Match } else { Verdict::Mismatch };
    TensorVerdict { name: name.to_owned(), verdict, metrics: Some(metrics), noise: None }
}

/// Verdicts counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// `Match`.
    #[serde(rename = "match")]
    pub matched: usize,
    /// `Noise`.
    #[serde(default)]
    pub noise: usize,
    /// `Tie`.
    #[serde(default)]
    pub tie: usize,
    /// `OpenOrder`.
    #[serde(default)]
    pub open_order: usize,
    /// `Mismatch`.
    pub mismatch: usize,
    /// `NotCompared`.
    pub not_compared: usize,
    /// `Failed`.
    pub failed: usize,
}

impl Summary {
    /// Exit code of a command: 2 when a comparison failed, else 1 when one mismatched, else 3 when one was left out or
    /// none passed, else 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            Summary { failed: 1.., .. } => 2,
            Summary { mismatch: 1.., .. } => 1,
            Summary { not_compared: 1.., .. } => 3,
            _ if self.passed() == 0 => 3,
            _ => 0,
        }
    }

    /// All that the candidate is as right of as the reference.
    pub fn passed(&self) -> usize {
        self.matched + self.noise + self.tie + self.open_order
    }

    /// Each kind in words, in their order, and how many there are.
    pub fn counts(&self) -> [(&'static str, usize); 7] {
        [
            ("match", self.matched),
            ("noise", self.noise),
            ("tie", self.tie),
            ("open order", self.open_order),
            ("mismatch", self.mismatch),
            ("not compared", self.not_compared),
            ("failed", self.failed),
        ]
    }

    /// Of both together.
    pub fn with(self, more: Self) -> Self {
        Self {
            matched: self.matched + more.matched,
            noise: self.noise + more.noise,
            tie: self.tie + more.tie,
            open_order: self.open_order + more.open_order,
            mismatch: self.mismatch + more.mismatch,
            not_compared: self.not_compared + more.not_compared,
            failed: self.failed + more.failed,
        }
    }
}

/// Counts by verdict.
pub fn summary<'a>(verdicts: impl IntoIterator<Item = &'a TensorVerdict>) -> Summary {
    let mut summary = Summary::default();
    for verdict in verdicts {
        match verdict.verdict {
            Verdict::Match => summary.matched += 1,
            Verdict::Noise => summary.noise += 1,
            Verdict::Tie(_) => summary.tie += 1,
            Verdict::OpenOrder(_) => summary.open_order += 1,
            Verdict::Mismatch => summary.mismatch += 1,
            Verdict::NotCompared(_) => summary.not_compared += 1,
            Verdict::Failed(_) => summary.failed += 1,
        }
    }
    summary
}
