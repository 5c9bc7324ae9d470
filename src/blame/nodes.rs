//! Nodes one by one: what each makes of eager's inputs, and what that does to the outputs.

use std::collections::HashSet;
use std::rc::Rc;

use super::answer::{Contribution, Layer, Own};
use super::error::BlameError;
use super::layer;
use super::probe::Prober;
use super::share::{Effect, Share};
use crate::base::ids::ValueName;
use crate::compare::{TensorVerdict, Tolerance, Verdict, judge};
use crate::onnx::{Feeds, NamedTensor};
use crate::tensor::TensorBuf;

/// Times that a wrong node is run to see whether it gives the same each time.
const REPEATS: usize = 3;

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
        let case = self.prober.case;
        let names: Vec<&str> = group.values.iter().map(String::as_str).collect();
        let piece = case.isolator.local_to_all(&names, &self.through, &self.feeds)?;
        let ready = self.prober.piece(piece)?;
        let outputs = self.prober.run_piece(&ready, |name| self.prober.eager(name))?;
        let values: Vec<(ValueName, TensorBuf)> = group.values.iter().cloned().zip(outputs).collect();
        let verdict = |(name, value): &(ValueName, TensorBuf)| {
            let reference = self.prober.eager(name)?;
            let tolerance = case.tolerance.unwrap_or_else(|| Tolerance::for_kernel(reference.desc.dtype));
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
        let case = self.prober.case;
        let worst = local.worst();
        let row = case.row(&worst.name);
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
            local: self.settled(worst),
            own: if self.is_wrong(group, local) { Own::Wrong } else { Own::Noise },
            layer: None,
        }
    }

    /// Whether a value of the group is off by more than rounding explains.
    pub fn is_wrong(&self, group: &Group, local: &Local) -> bool {
        group
            .values
            .iter()
            .zip(&local.verdicts)
            .any(|(_, verdict)| matches!(self.settled(verdict).verdict, Verdict::Mismatch | Verdict::Failed(_)))
    }

    /// The verdict, as float64 settled it when the nodes were compared.
    fn settled(&self, verdict: &TensorVerdict) -> TensorVerdict {
        let known = self.prober.case.row(&verdict.name);
        let is_rounding = known.is_some_and(|row| row.local.verdict == Verdict::Match);
        match verdict.verdict {
            Verdict::Mismatch if is_rounding => TensorVerdict { verdict: Verdict::Match, ..verdict.clone() },
            _ => verdict.clone(),
        }
    }

    /// What of a wrong group is wrong, or that it gives something else each time. Errors: Budget.
    pub fn look_closer(&self, group: &Group, local: &Local) -> Result<(Own, Layer), BlameError> {
        for _ in 1..REPEATS {
            let again = self.local(group)?;
            let same =
                |((_, one), (_, other)): (&(_, TensorBuf), &(_, TensorBuf))| one.view().bytes() == other.view().bytes();
            if !local.values.iter().zip(&again.values).all(same) {
                return Ok((Own::Jitter, Layer::Unknown));
            }
        }
        let worst = local.worst();
        let case = self.prober.case;
        let piece = case.isolator.local(&worst.name, &self.through, &self.feeds)?;
        let layer = match local.value(&worst.name) {
            Some(candidate) => layer::of(self.prober, piece, &worst.name, candidate)?,
            None => Layer::Unknown,
        };
        Ok((Own::Wrong, layer))
    }
}

impl Local {
    /// One a value, in their order.
    pub fn into_verdicts(self) -> Vec<TensorVerdict> {
        self.verdicts
    }

    fn value(&self, name: &str) -> Option<&TensorBuf> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    fn named(&self, name: &str) -> Option<NamedTensor> {
        let value = self.value(name)?;
        Some(NamedTensor::of(name, value))
    }

    /// Of its values, the one that is furthest from eager's.
    fn worst(&self) -> &TensorVerdict {
        let distance =
            |verdict: &&TensorVerdict| verdict.metrics.as_ref().map_or(f64::INFINITY, |metrics| metrics.max_rel_to_max);
        let wrong = |verdict: &&TensorVerdict| verdict.verdict != Verdict::Match;
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
    Share::of(&effect).map(|share| (share.value(), target.name.as_str()))
}
