//! Faults planted in a user's own dumped part: how many are found, by the comparison of nodes and by blame.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::{Culprit, Layer};
use super::case::{Case, Parts};
use super::error::BlameError;
use super::faults::{self, Kind, Site};
use super::nodes::Nodes;
use super::probe::Prober;
use super::{Progress, Settings, examine};
use crate::base::ids::ValueName;
use crate::compare::{TensorVerdict, Verdict, judge};
use crate::dump::NodeRow;
use crate::onnx::proto::ModelProto;
use crate::onnx::{NamedTensor, decode};
use crate::runtime::Runtime;
use crate::tensor::{TensorBuf, TensorView};

/// What became of one fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// Where.
    pub site: Site,
    /// FX nodes of which the changed node is a part.
    pub guilty: Vec<ValueName>,
    /// What came of it.
    pub effect: Effect,
    /// The first node that the comparison of nodes accuses.
    pub sbs: Option<ValueName>,
    /// The node that is blamed first.
    pub blamed: Option<ValueName>,
    /// What of it is said to be wrong.
    pub layer: Option<Layer>,
    /// Time of the examination.
    pub seconds: f64,
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Effect {
    /// So many outputs leave tolerance. These count.
    Wrong {
        /// Of them.
        n_outputs: usize,
    },
    /// Every output stays within tolerance.
    None,
    /// The runtime does not run the model.
    Refused {
        /// What it says.
        why: String,
    },
}

/// What faults planted in a part came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proofs {
    /// The graph's folder.
    pub graph: String,
    /// Number of the part.
    pub part: u32,
    /// Number of the call.
    pub step: u64,
    /// Outputs that, run again with nothing dumped or compared, have the very bits that were dumped; of how many.
    pub same_bits: (usize, usize),
    /// With nothing planted: who is blamed, which should be nobody.
    pub unplanted: Culprit,
    /// One a fault.
    pub proofs: Vec<Proof>,
}

impl Proof {
    /// It takes an output out of tolerance.
    pub fn counts(&self) -> bool {
        matches!(self.effect, Effect::Wrong { .. })
    }

    /// The comparison of nodes accuses the right node first.
    pub fn found_by_sbs(&self) -> bool {
        self.sbs.as_ref().is_some_and(|name| self.guilty.contains(name))
    }

    /// The right node is blamed first.
    pub fn found_by_blame(&self) -> bool {
        self.blamed.as_ref().is_some_and(|name| self.guilty.contains(name))
    }
}

struct Silent;

impl Progress for Silent {
    fn at(&mut self, _: usize, _: usize) {}

    fn found(&mut self, _: &super::Contribution) {}
}

/// Plants up to `n_faults` that take an output out of tolerance, kinds in turn, drawn by `seed`. Errors: [`BlameError`] when the case itself cannot be run.
pub fn prove(
    case: &Case,
    runtime: &dyn Runtime,
    n_faults: usize,
    seed: u64,
    budget: Duration,
    done: &mut dyn FnMut(usize),
) -> Result<Proofs, BlameError> {
    let model = decode(case.model.clone())?;
    let settings = Settings { strategy: None, output: None, budget, follow: false };
    let prober = Prober::new(case, runtime, budget);
    let feeds: Vec<_> = case.feeds.iter().map(NamedTensor::view).collect();
    let again = prober.whole(&case.spec, &feeds)?;
    let same = again.iter().zip(&case.actuals).filter(|(now, then)| now.view().bytes() == then.view().bytes()).count();
    let unplanted = examine(case, runtime, &settings, &[], &mut Silent)?;
    let known = unplanted.complaints.into_iter().map(|complaint| complaint.as_ran.name).collect();
    let mut proofs = Proofs {
        graph: case.table.graph.clone(),
        part: case.table.part,
        step: case.table.step,
        same_bits: (same, case.actuals.len()),
        unplanted: unplanted.culprit,
        proofs: Vec::new(),
    };
    let dtypes: HashMap<&str, _> = case.values.descs().iter().map(|(name, desc)| (name.as_str(), desc.dtype)).collect();
    for site in drawn(faults::sites(&model, &dtypes), seed) {
        if proofs.proofs.iter().filter(|proof| proof.counts()).count() >= n_faults {
            break;
        }
        proofs.proofs.push(proof(case, &model, runtime, site, &settings, &known)?);
        done(proofs.proofs.iter().filter(|proof| proof.counts()).count());
    }
    Ok(proofs)
}

/// Of one fault; `known`: outputs that are wrong without it, too.
fn proof(
    case: &Case,
    model: &ModelProto,
    runtime: &dyn Runtime,
    site: Site,
    settings: &Settings,
    known: &HashSet<ValueName>,
) -> Result<Proof, BlameError> {
    let named: HashSet<&str> =
        case.named_values.iter().map(String::as_str).filter(|name| case.values.has(name)).collect();
    let mut guilty: Vec<_> = faults::behind(model, &site, &named).into_iter().collect();
    guilty.sort();
    let spoiled = faults::planted(model, &site);
    let mut proof = Proof { site, guilty, effect: Effect::None, sbs: None, blamed: None, layer: None, seconds: 0. };
    let case = match spoiled_case(case, spoiled, runtime, settings.budget, &proof.guilty) {
        Ok(case) => case,
        Err(error) => {
            proof.effect = Effect::Refused { why: error.to_string() };
            return Ok(proof);
        }
    };
    let answer = examine(&case, runtime, settings, &[], &mut Silent)?;
    proof.seconds = answer.seconds;
    proof.sbs = case.table.first_local_mismatch().map(|row| row.name.clone());
    let n_outputs = answer.complaints.iter().filter(|complaint| !known.contains(&complaint.as_ran.name)).count();
    if n_outputs > 0 {
        proof.effect = Effect::Wrong { n_outputs };
    }
    if let Culprit::Node { name, layer } = answer.culprit {
        (proof.blamed, proof.layer) = (Some(name), Some(layer));
    }
    Ok(proof)
}

/// The case with another model, on eager's inputs: what that gives, and what comparing its nodes finds. Other nodes than
/// the guilty are what they were.
fn spoiled_case(
    case: &Case,
    model: ModelProto,
    runtime: &dyn Runtime,
    budget: Duration,
    guilty: &[ValueName],
) -> Result<Case, BlameError> {
    let eager = |feed: &NamedTensor| {
        let known = case.values.get(&feed.name)?;
        Ok::<_, BlameError>(known.map_or_else(|| feed.clone(), |tensor| NamedTensor::clone(&tensor)))
    };
    let mut made = Case::new(Parts {
        model,
        named_values: case.named_values.clone(),
        described: case.described.clone(),
        spec: case.spec.clone(),
        judging: Some(case.judging.clone()),
        tolerance: None,
        feeds: case.feeds.iter().map(eager).collect::<Result<_, _>>()?,
        actuals: Vec::new(),
        values: Rc::clone(&case.values),
        table: case.table.clone(),
    })?;
    let (outputs, planted) = {
        let prober = Prober::new(&made, runtime, budget);
        let feeds: Vec<_> = made.feeds.iter().map(NamedTensor::view).collect();
        let outputs = prober.whole(&made.spec, &feeds)?;
        let nodes = Nodes::new(&prober);
        let mut planted = Vec::new();
        for group in nodes.groups(guilty).iter().filter(|group| group.values.iter().any(|name| guilty.contains(name))) {
            planted.extend(nodes.local(group)?.into_judged());
        }
        (outputs, planted)
    };
    made.actuals =
        case.actuals.iter().zip(&outputs).map(|(actual, output)| NamedTensor::of(&actual.name, output)).collect();
    made.table.plain.clear();
    let prober = Prober::new(case, runtime, budget);
    let as_exported = Nodes::new(&prober);
    for (verdict, value) in planted {
        if let Some(row) = made.table.nodes.iter_mut().find(|row| row.name == verdict.name) {
            let reference = prober.eager(&verdict.name)?;
            judged(row, verdict, &reference.view(), &value, &as_exported)?;
        }
    }
    Ok(made)
}

/// Makes a row what the comparison of nodes would have written had the node given `value`: by steps of each element, and
/// what is outside these by float64. A fault that it acquits is not found, and blame believes the row.
fn judged(
    row: &mut NodeRow,
    verdict: TensorVerdict,
    reference: &TensorView<'_>,
    value: &TensorBuf,
    as_exported: &Nodes<'_, '_>,
) -> Result<(), BlameError> {
    let (of_all, is_mismatch) = (row.has_float64_of_all(), verdict.verdict == Verdict::Mismatch);
    let errors = if of_all || is_mismatch { as_exported.errors(&verdict.name, value)? } else { None };
    row.local = TensorVerdict { noise: errors.filter(|_| of_all).map(|errors| errors.of_all), ..verdict };
    match errors {
        _ if !is_mismatch => {}
        Some(errors) => _ = row.settle(Some(errors.of_terms.unwrap_or(errors.of_all))),
        // Steps of each element are for what float64 can settle.
        None => row.local.verdict = judge(&row.name, reference, &value.view(), None).verdict,
    }
    Ok(())
}

/// Kinds in turn, each in an order that is drawn.
fn drawn(sites: Vec<Site>, seed: u64) -> Vec<Site> {
    let mut random = Random(seed);
    let mut by_kind: Vec<(Kind, Vec<Site>)> = faults::KINDS.iter().map(|&kind| (kind, Vec::new())).collect();
    for site in sites {
        if let Some((_, list)) = by_kind.iter_mut().find(|(kind, _)| *kind == site.kind) {
            list.push(site);
        }
    }
    for (_, list) in &mut by_kind {
        for last in (1..list.len()).rev() {
            list.swap(last, random.below(last + 1));
        }
    }
    let mut ordered = Vec::new();
    while by_kind.iter().any(|(_, list)| !list.is_empty()) {
        ordered.extend(by_kind.iter_mut().filter_map(|(_, list)| list.pop()));
    }
    ordered
}

/// Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014 (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % n as u64) as usize
    }
}

/// Verdicts of a proof's kind, for a table: (planted, found by sbs, found by blame).
pub fn counted(proofs: &[Proofs]) -> Vec<(Kind, [usize; 3])> {
    let all = || proofs.iter().flat_map(|proofs| &proofs.proofs).filter(|proof| proof.counts());
    let of = |kind: Kind| {
        let found = all().filter(move |proof| proof.site.kind == kind);
        let counts = found.fold([0; 3], |[n, sbs, blame], proof| {
            [n + 1, sbs + usize::from(proof.found_by_sbs()), blame + usize::from(proof.found_by_blame())]
        });
        (kind, counts)
    };
    faults::KINDS.into_iter().map(of).filter(|(_, [n, ..])| *n > 0).collect()
}
