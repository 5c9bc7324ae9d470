//! Every value that is judged, on the reference's inputs.

use std::collections::{HashMap, HashSet};

use super::error::NodesError;
use super::part::PartNodes;
use super::piece::{Ran, Ready};
use super::runner::{Runner, Together};
use super::slots::Slot;
use crate::link::message::RanOnce;
use crate::onnx::{OnnxError, Piece};
use crate::protocol::message::RunStats;

/// A node's own kernel on the reference's inputs.
pub(super) struct Local<'a> {
    pub slot: Slot<'a>,
    pub ran: Ran,
}

/// The values of a batch that are judged.
pub(super) struct Locals<'b, 'a> {
    pub part: &'b PartNodes,
    /// Names that have no reference, so that no model can be cut there.
    pub through: &'b HashSet<&'a str>,
    pub references: &'b Ready<'a>,
    pub slots: HashMap<&'a str, Slot<'a>>,
    pub done: HashMap<&'a str, Local<'a>>,
}

/// Values that are run as one: of values of one operator the pieces share nodes.
type Group<'a> = Vec<&'a str>;

impl<'b, 'a> Locals<'b, 'a> {
    /// What values have in common, as those do that one operator of torch gives, runs once.
    pub fn groups(&self, names: &[&'a str]) -> Vec<Group<'a>> {
        let groups = self.part.isolator.share_nodes(names, self.through, &self.references.descs);
        groups.into_iter().map(|group| group.into_iter().map(|name| self.own(name)).collect()).collect()
    }

    fn own(&self, name: &str) -> &'a str {
        self.slots.get_key_value(name).map(|(name, _)| *name).expect("one of those that were asked for")
    }

    pub fn piece(&self, group: &[&str]) -> Result<Piece, OnnxError> {
        self.part.isolator.local_to_all(group, self.through, &self.references.descs)
    }

    /// Models of groups, as one.
    pub fn together(&self, groups: &[Group<'a>]) -> Together<'b> {
        Together {
            pieces: groups.iter().map(|group| self.piece(group)).collect(),
            ready: self.references,
            outputs: groups.iter().flatten().map(|name| self.slots[name].tensor.clone()).collect(),
        }
    }

    /// Goes on after these groups, run as one, came to `ran`: what failed runs by halves, a group value by value. Errors:
    /// [`NodesError::Lost`].
    pub fn after(&mut self, groups: &[Group<'a>], ran: Ran, runner: &mut Runner<'_>) -> Result<(), NodesError> {
        match (ran, groups) {
            (Ran::Done(ran), groups) => {
                self.keep(groups, ran);
                Ok(())
            }
            (Ran::Failed(reason), [group]) => {
                if let [name] = group[..] {
                    self.part.set_apart(name);
                    let slot = self.slots[name];
                    self.done.insert(name, Local { slot, ran: Ran::Failed(reason) });
                    return Ok(());
                }
                let alone: Vec<Group<'a>> = group.iter().map(|&name| vec![name]).collect();
                let all = alone.iter().map(|group| self.together(std::slice::from_ref(group))).collect();
                let ran = runner.run(all)?;
                alone.iter().zip(ran).try_for_each(|(group, ran)| self.after(std::slice::from_ref(group), ran, runner))
            }
            (Ran::Failed(_), groups) => {
                let (first, second) = groups.split_at(groups.len() / 2);
                let ran = runner.run(vec![self.together(first), self.together(second)])?;
                [first, second].into_iter().zip(ran).try_for_each(|(half, ran)| self.after(half, ran, runner))
            }
        }
    }

    /// The time of several that ran as one is told of the first of a group; that of groups is nobody's.
    fn keep(&mut self, groups: &[Group<'a>], mut ran: RanOnce) {
        for group in groups {
            if groups.len() > 1 {
                ran.stats = RunStats::default();
            }
            for &name in group {
                self.done.insert(name, Local { slot: self.slots[name], ran: Ran::Done(ran.clone()) });
                ran.stats = RunStats::default();
            }
        }
    }
}
