//! Calls with outputs outside tolerance, which their client may look at once more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::compare::TensorVerdict;
use crate::dump::{Role, Run, StepFolder};
use crate::protocol::control::NodesOf;

/// A client looks at a call before its next one: one a thread.
const MOST: usize = 64;

/// A call.
#[derive(Clone)]
pub struct Unsettled {
    /// Its graph's name.
    pub graph: String,
    /// Of all its outputs.
    pub verdicts: Vec<TensorVerdict>,
    /// What was found of outputs since.
    pub known: BTreeSet<(Role, usize)>,
    /// The dump that has it, and its data set there.
    pub into: Option<(Arc<Run>, StepFolder)>,
}

/// The newest of a client's.
#[derive(Default)]
pub struct UnsettledCalls(VecDeque<(NodesOf, Unsettled)>);

impl UnsettledCalls {
    /// In the place of what is there of this call; above a few the oldest goes.
    pub fn add(&mut self, of: NodesOf, call: Unsettled) {
        self.0.retain(|(other, _)| *other != of);
        self.0.push_back((of, call));
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// The call, to be changed.
    pub fn get_mut(&mut self, of: &NodesOf) -> Option<&mut Unsettled> {
        self.0.iter_mut().find(|(other, _)| other == of).map(|(_, call)| call)
    }

    /// Of the dump that ends nothing is kept.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}
