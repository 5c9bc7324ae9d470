//! Nodes one by one: what each makes of eager's inputs, and what that does to the outputs.

use std::collections::HashSet;
use std::rc::Rc;

use super::answer::{Contribution, Layer};
use super::case::is_wrong;
use super::error::BlameError;
use super::error_share::{Effect, Share};
use super::layer::{self, Errors, Said};
use super::local_error::Own;
use super::probe::Prober;
use super::repetition::Again;
use super::same_pair::{SAME, is_alike};
use crate::base::ids::ValueName;
use crate::compare::{NoiseKind, TensorVerdict, Verdict, judge};
use crate::onnx::{Feeds, NamedTensor};
use crate::tensor::TensorBuf;

/// Times that a wrong node is run on one pool, to see whether it gives the same each time.
const REPEATS: usize = 3;
/// Numbers of threads that it is run with after that.
const THREADS: [u32; 3] = [1, 2, 4];
/// So many times as far from eager a kernel may be that sums in another order, as it does with other numbers of threads.
const ANOTHER_ORDER: f64 = 4.;

/// An output and what it was without any optimization.
pub struct Target {
    /// Of the output.
    pub name: ValueName,
    /// Eager's.
    pub reference: Rc<NamedTensor>,
    /// ONNX Runtime's.
    pub candidate: TensorBuf,
}

/// Values that one node gives, or that share nodes: they are right or wrong together.
pub struct Group {
    /// In graph order.
    pub values: Vec<ValueName>,
}

/// A group's values on eager's inputs.
pub struct Local {
    values: Vec<(ValueName, TensorBuf)>,
    verdicts: Vec<TensorVerdict>,
}

/// Looks at nodes.
pub struct Nodes<'p, 'a> {
    prober: &'p Prober<'a>,
    /// Values whose eager value is known.
    feeds: Feeds<'a>,
    /// Values that are none of eager's, so that no model can be cut there.
    through: HashSet<&'a str>,
}

impl<'p, 'a> Nodes<'p, 'a> {
    /// Over the values of eager's that are known.
    pub fn new(prober: &'p Prober<'a>) -> Self {
        let case = prober.case;
        let feeds: Feeds<'a> = case.values.descs().iter().map(|(name, desc)| (name.as_str(), desc)).collect();
        let named = case.named_values.iter().map(String::as_str);
        let through = named.filter(|name| !feeds.contains_key(name)).collect();
        Self { prober, feeds, through }
    }

    /// The groups that some of the `outputs` depend on, in graph order.
    pub fn groups(&self, outputs: &[ValueName]) -> Vec<Group> {
        let case = self.prober.case;
        let before = case.before(outputs.iter().map(String::as_str));
        let is_node = |name: &&str| case.isolator.producer(name).is_some() && self.feeds.contains_key(name);
        let named = case.named_values.iter().map(String::as_str).filter(|name| before.contains(name));
        let mut values: Vec<&str> = named.filter(is_node).collect();
        values.sort_by_key(|name| case.isolator.producer(name));
        let groups = case.isolator.share_nodes(&values, &self.through, &self.feeds);
        groups.into_iter().map(|group| Group { values: group.into_iter().map(str::to_owned).collect() }).collect()
    }

    /// A group on eager's inputs. Errors: [`BlameError`].
    pub fn local(&self, group: &Group) -> Result<Local, BlameError> {
        self.local_with(group, None)
    }

    /// As [`Nodes::local`], with so many threads of its own.
    fn local_with(&self, group: &Group, threads: Option<u32>) -> Result<Local, BlameError> {
        let case = self.prober.case;
        let names: Vec<&str> = group.values.iter().map(String::as_str).collect();
        let piece = case.isolator.local_to_all(&names, &self.through, &self.feeds)?;
        let ready = self.prober.piece_with(piece, threads)?;
        let outputs = self.prober.run_piece(&ready, |name| self.prober.eager(name))?;
        let values: Vec<(ValueName, TensorBuf)> = group.values.iter().cloned().zip(outputs).collect();
        let verdict = |(name, value): &(ValueName, TensorBuf)| {
            let reference = self.prober.eager(name)?;
            let tolerance = case.policy().kernel(reference.desc.dtype);
            Ok::<_, BlameError>(judge(name, &reference.view(), &value.view(), Some(&tolerance)))
        };
        let verdicts = values.iter().map(verdict).collect::<Result<_, _>>()?;
        Ok(Local { values, verdicts })
    }

    /// The outputs with nothing optimized, on eager's inputs, where `given` values are eager's as well. Errors:
    /// [`BlameError`].
    pub fn outputs(&self, outputs: &[ValueName], given: &[&str]) -> Result<Vec<TensorBuf>, BlameError> {
        let case = self.prober.case;
        let inputs = case.feeds.iter().map(|feed| feed.name.as_str());
        let feeds: Feeds<'_> =
            inputs.chain(given.iter().copied()).filter_map(|name| Some((name, *self.feeds.get(name)?))).collect();
        let wanted: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let piece = case.isolator.segment(&wanted, &self.feeds, &feeds)?;
        let ready = self.prober.piece(piece)?;
        self.prober.run_piece(&ready, |name| self.prober.eager(name))
    }

    /// What a group's own error does to the targets: everything else is eager's. Errors: [`BlameError`].
    pub fn contribution(
        &self,
        group: &Group,
        local: &Local,
        targets: &[Target],
    ) -> Result<Option<Contribution>, BlameError> {
        let case = self.prober.case;
        let members: HashSet<&str> = group.values.iter().map(String::as_str).collect();
        let after = case.after(members.iter().copied());
        let reached: Vec<&Target> = targets.iter().filter(|target| after.contains(target.name.as_str())).collect();
        let (inside, beyond): (Vec<&Target>, Vec<&Target>) =
            reached.into_iter().partition(|target| members.contains(target.name.as_str()));
        let mut shares: Vec<(f64, &str)> = Vec::new();
        for target in inside {
            let without = self.prober.eager(&target.name)?;
            shares.extend(share(target, &without.view().to_owned(), local.value(&target.name)));
        }
        if !beyond.is_empty() {
            let (without, with) = self.effects(&members, &after, &beyond, local)?;
            let all = beyond.iter().zip(&without).zip(&with);
            shares.extend(all.filter_map(|((target, without), with)| share(target, without, Some(with))));
        }
        let largest = shares.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        Ok(largest.map(|(share, output)| self.described(group, local, share, output)))
    }

    /// The targets with eager's values of the members, and with their own.
    fn effects(
        &self,
        members: &HashSet<&str>,
        after: &HashSet<&str>,
        targets: &[&Target],
        local: &Local,
    ) -> Result<(Vec<TensorBuf>, Vec<TensorBuf>), BlameError> {
        let stands = |name: &&str| members.contains(name) || !after.contains(name);
        let feeds: Feeds<'_> =
            self.feeds.iter().filter(|(name, _)| stands(name)).map(|(&name, &desc)| (name, desc)).collect();
        let wanted: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let piece = self.prober.case.isolator.segment(&wanted, &self.feeds, &feeds)?;
        let ready = self.prober.piece(piece)?;
        let without = self.prober.run_piece(&ready, |name| self.prober.eager(name))?;
        let with = self.prober.run_piece(&ready, |name| match local.named(name) {
            Some(value) => Ok(Rc::new(value)),
            None => self.prober.eager(name),
        })?;
        Ok((without, with))
    }

    fn described(&self, group: &Group, local: &Local, share: f64, output: &str) -> Contribution {
        let worst = local.worst();
        let row = self.prober.case.row(&worst.name);
        let text = |of: fn(&crate::dump::NodeRow) -> &str| row.map(of).unwrap_or_default().to_owned();
        Contribution {
            name: worst.name.clone(),
            values: group.values.clone(),
            op: text(|row| &row.op),
            onnx_ops: row.map(|row| row.onnx_ops.to_vec()).unwrap_or_default(),
            module: text(|row| &row.module),
            source: text(|row| &row.source),
            share,
            output: output.to_owned(),
            local: worst.clone(),
            own: Own::Noise,
            layer: None,
            again: None,
        }
    }

    /// What a group whose effect is not known makes of an output: all of it. For one that cannot be run on, as it gives
    /// another shape.
    pub fn all_of(&self, group: &Group, local: Option<&Local>, output: &str) -> Contribution {
        let none = || Local { values: Vec::new(), verdicts: vec![self.of_row(&group.values[0])] };
        let fresh;
        let local = match local {
            Some(local) => local,
            None => {
                fresh = none();
                &fresh
            }
        };
        Contribution { own: Own::Wrong, layer: Some(Layer::Unknown), ..self.described(group, local, 1., output) }
    }

    fn of_row(&self, name: &str) -> TensorVerdict {
        let row = self.prober.case.row(name).map(|row| row.local.clone());
        row.unwrap_or_else(|| TensorVerdict::failed(name, "its nodes could not be run by themselves"))
    }

    /// What the group's own error is: what the comparison of nodes found of the same values, or what float64 says. Errors:
    /// Budget.
    pub fn own(&self, group: &Group, local: &Local) -> Result<Own, BlameError> {
        let mut found = Own::Noise;
        if local.verdicts.iter().any(|verdict| self.is_worse(verdict)) {
            return Ok(Own::Wrong);
        }
        for verdict in local.verdicts.iter().filter(|verdict| is_wrong(verdict)) {
            match self.own_of(verdict, local.value(&verdict.name))? {
                Own::Wrong => return Ok(Own::Wrong),
                Own::Noise => {}
                Own::AsRight if found == Own::Unsettled => {}
                other => found = other,
            }
        }
        debug_assert!(group.values.len() == local.values.len());
        Ok(found)
    }

    /// Whether the comparison of nodes found it worse than rounding, of the same values.
    fn is_worse(&self, verdict: &TensorVerdict) -> bool {
        let case = self.prober.case;
        let row = case.row(&verdict.name).filter(|row| is_alike(&row.local, verdict, SAME));
        row.is_some() && case.is_worse(&verdict.name)
    }

    /// Whether float64 calls it rounding, element by element, that another computation of a value on eager's inputs gave a
    /// `candidate` unlike eager's. No row of the comparison of nodes is about that one. Errors: Budget, Onnx.
    pub fn is_rounding(&self, name: &str, candidate: &TensorBuf) -> Result<bool, BlameError> {
        let said = self.said(name, candidate)?;
        Ok(matches!(said, Said::Rounding(errors) if errors.of_terms.is_some_and(|noise| noise.settles())))
    }

    /// What the own error of a value that was found wrong is. Errors: Budget, Onnx.
    fn own_of(&self, verdict: &TensorVerdict, candidate: Option<&TensorBuf>) -> Result<Own, BlameError> {
        let TensorVerdict { name, .. } = verdict;
        // It is about the same nodes only where it measured the same, or what another order of sums makes of it.
        let row = self.prober.case.row(name);
        if let Some(row) = row.filter(|row| is_alike(&row.local, verdict, ANOTHER_ORDER)) {
            return Ok(match is_wrong(&row.local) {
                true => Own::Wrong,
                false if row.as_right.is_empty() => Own::Noise,
                false => Own::AsRight,
            });
        }
        let Some(candidate) = candidate.filter(|_| verdict.verdict == Verdict::Mismatch) else {
            return Ok(Own::Wrong);
        };
        Ok(match self.said(name, candidate)? {
            Said::Wrong(_) => Own::Wrong,
            // Measured by the largest element, which says nothing of those beside it.
            Said::Rounding(errors) if errors.of_terms.is_some_and(|noise| noise.settles()) => Own::Noise,
            Said::Rounding(_) | Said::Nothing => Own::Unsettled,
        })
    }

    /// What of a wrong group is wrong, and whether it is wrong each time. Errors: Budget.
    pub fn look_closer(&self, group: &Group, local: &Local) -> Result<(Own, Layer, Again), BlameError> {
        let again = self.again(group, local)?;
        if again.own() != Own::Wrong {
            return Ok((again.own(), Layer::Unknown, again));
        }
        let worst = local.worst();
        let layer = match local.value(&worst.name) {
            Some(candidate) => match self.said(&worst.name, candidate)? {
                Said::Wrong(layer) => layer,
                // Within tolerance: the same as beyond, by how both round.
                Said::Rounding(errors) if self.is_worse(worst) => match errors.of_all.kind {
                    NoiseKind::ReferenceWorse => Layer::Exporter,
                    NoiseKind::CandidateWorse => Layer::Kernel,
                    NoiseKind::Noise | NoiseKind::IllConditioned => Layer::Unknown,
                },
                Said::Rounding(_) | Said::Nothing => Layer::Unknown,
            },
            None => Layer::Unknown,
        };
        Ok((Own::Wrong, layer, again))
    }

    /// How far eager and a `candidate` are from what the model's own nodes give in float64. None where there is none.
    /// Errors: Budget, Onnx.
    pub fn errors(&self, name: &str, candidate: &TensorBuf) -> Result<Option<Errors>, BlameError> {
        let piece = self.prober.case.isolator.local(name, &self.through, &self.feeds)?;
        layer::errors(self.prober, &piece, name, candidate)
    }

    fn said(&self, name: &str, candidate: &TensorBuf) -> Result<Said, BlameError> {
        let piece = self.prober.case.isolator.local(name, &self.through, &self.feeds)?;
        layer::said(self.prober, &piece, name, candidate)
    }

    /// The group run again on the pool that it ran on, and with other numbers of threads. Errors: [`BlameError`] of the
    /// first; Budget.
    fn again(&self, group: &Group, local: &Local) -> Result<Again, BlameError> {
        let mut again = Again::first();
        for _ in 1..REPEATS {
            let other = self.local(group)?;
            again.add(None, [&local.values, &other.values], || self.is_wrong_again(&other))?;
        }
        for threads in THREADS {
            match self.local_with(group, Some(threads)) {
                Err(BlameError::Budget) => return Err(BlameError::Budget),
                Err(error) => {
                    again.refused = error.to_string();
                    break;
                }
                Ok(other) => {
                    again.add(Some(threads), [&local.values, &other.values], || self.is_wrong_again(&other))?;
                }
            }
        }
        Ok(again)
    }

    /// Whether a run that gave something else is wrong, too. Errors: [`BlameError`].
    fn is_wrong_again(&self, local: &Local) -> Result<bool, BlameError> {
        for verdict in &local.verdicts {
            let by_rounding = self.prober.case.is_worse(&verdict.name);
            let Some(value) = local.value(&verdict.name).filter(|_| !matches!(verdict.verdict, Verdict::Failed(_)))
            else {
                return Ok(true);
            };
            // What float64 does not acquit by each element is what the first run is held to be.
            if is_wrong(verdict) && !matches!(self.own_of(verdict, Some(value))?, Own::Noise | Own::AsRight) {
                return Ok(true);
            }
            let is_noise = |said| matches!(said, Said::Rounding(errors) if errors.of_all.kind == NoiseKind::Noise);
            if by_rounding && !is_noise(self.said(&verdict.name, value)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Local {
    /// Verdict and value, in their order.
    pub fn into_judged(self) -> impl Iterator<Item = (TensorVerdict, TensorBuf)> {
        self.verdicts.into_iter().zip(self.values.into_iter().map(|(_, value)| value))
    }

    fn value(&self, name: &str) -> Option<&TensorBuf> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn named(&self, name: &str) -> Option<NamedTensor> {
        let value = self.value(name)?;
        Some(NamedTensor::of(name, value))
    }

    /// One of its values is no pair with eager's: another shape, another dtype.
    pub fn fails(&self) -> bool {
        self.verdicts.iter().any(|verdict| matches!(verdict.verdict, Verdict::Failed(_)))
    }

    /// Of its values, the one that is furthest from eager's.
    fn worst(&self) -> &TensorVerdict {
        let distance =
            |verdict: &&TensorVerdict| verdict.metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max);
        let wrong = |verdict: &&TensorVerdict| !verdict.verdict.is_pass();
        self.verdicts
            .iter()
            .max_by(|one, other| wrong(one).cmp(&wrong(other)).then(distance(one).total_cmp(&distance(other))))
            .expect("a group has values")
    }

    /// How far the worst of its values is from eager's, relative to the largest; 0 of equal ones.
    pub fn distance(&self) -> f64 {
        self.worst().metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max)
    }
}

fn share<'t>(target: &'t Target, without: &TensorBuf, with: Option<&TensorBuf>) -> Option<(f64, &'t str)> {
    let effect = Effect {
        reference: target.reference.view(),
        candidate: target.candidate.view(),
        without: without.view(),
        with: with?.view(),
    };
    // Of a type without arithmetic here: all of it, or nothing.
    let whole = || if without.view().bytes() == with?.view().bytes() { Some(0.) } else { Some(1.) };
    let share = Share::of(&effect).map(|share| share.value()).or_else(whole)?;
    Some((share, target.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one element that eager has as 0, and the candidate as `apart`.
    fn apart(apart: f32) -> TensorVerdict {
        let [reference, candidate] = [0., apart].map(|value| TensorBuf::from_f32([1], &[value]).unwrap());
        judge("y", &reference.view(), &candidate.view(), None)
    }

    #[test]
    fn candidates_are_alike_up_to_a_factor_and_what_equals_eager_is_like_its_equals() {
        for (one, other, of_same, of_another_order) in [
            (0., 0., true, true),
            (0., 1e-30, false, false),
            (1., 1., true, true),
            (1., 1.0009, true, true),
            (1., 1.002, false, true),
            (1., 4., false, true),
            (1., 4.001, false, false),
            (f32::INFINITY, f32::INFINITY, true, true),
            (f32::INFINITY, 1., false, false),
            (f32::NAN, f32::NAN, true, true),
            (f32::NAN, 0., false, false),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let alike = [SAME, ANOTHER_ORDER].map(|factor| is_alike(&apart(one), &apart(other), factor));
                assert_eq!(alike, [of_same, of_another_order], "{one} {other}");
            }
        }
    }

    #[test]
    fn without_metrics_the_verdicts_are_compared() {
        let failed = TensorVerdict::failed("y", "another shape");
        assert!(is_alike(&failed, &failed.clone(), SAME));
        assert!(!is_alike(&failed, &TensorVerdict::failed("y", "another dtype"), ANOTHER_ORDER));
        assert!(!is_alike(&failed, &apart(1.), ANOTHER_ORDER));
    }
}
