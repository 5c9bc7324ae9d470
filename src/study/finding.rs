//! What an example found, and whether it is so here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a finding holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// It reproduces.
    Yes,
    /// It does not.
    No,
    /// Something that it is about was not run.
    NotExamined,
}

/// A finding of an example, and what the same numbers say here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// In one sentence.
    pub claim: String,
    /// Whose it is, and what it was measured on.
    pub source: String,
    /// The example's numbers.
    pub seed: String,
    /// The same here.
    pub here: String,
    /// Computed from them.
    pub holds: Holds,
}

impl Finding {
    /// `seed`: whose, and the numbers. `here`: what was found, and whether that is what is claimed; None where it was not
    /// run.
    pub(super) fn new(
        claim: impl Into<String>,
        (source, seed): (&str, impl Into<String>),
        here: Option<(String, bool)>,
    ) -> Self {
        let (here, holds) = match here {
            Some((here, true)) => (here, Holds::Yes),
            Some((here, false)) => (here, Holds::No),
            None => ("not run".to_owned(), Holds::NotExamined),
        };
        Self { claim: claim.into(), source: source.to_owned(), seed: seed.into(), here, holds }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Holds::Yes => "reproduces",
            Holds::No => "does not reproduce",
            Holds::NotExamined => "not examined",
        })
    }
}

/// One line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (seed: {}; here: {})", self.holds, self.claim, self.seed, self.here)
    }
}
