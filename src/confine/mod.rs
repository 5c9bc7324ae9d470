//! Walls around a process that runs models of others: a bug of the runtime that one of them exploits gets no further.
//! [`files`] is Landlock, [`calls`] seccomp; neither needs rights of its own
//! ([decision 13](../../docs/design/decisions/0013-confinement.md)).

mod calls;
mod files;

use std::fmt;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};

pub use files::{Rights, of_the_system};

/// Whether a wall stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// It does.
    Holds,
    /// It does not, and why.
    Missing(String),
}

/// What holds a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// Files outside its rights are closed to it.
    pub files: Wall,
    /// It makes no socket, and connects none.
    pub network: Wall,
    /// It starts no program and no process, and reaches into no other one.
    pub exec: Wall,
}

impl Confined {
    /// Nothing holds it, and why.
    pub fn not(why: impl Into<String>) -> Self {
        let missing = Wall::Missing(why.into());
        Self { files: missing.clone(), network: missing.clone(), exec: missing }
    }

    /// Whether every wall stands.
    pub fn is_whole(&self) -> bool {
        self.walls().iter().all(|(_, wall)| **wall == Wall::Holds)
    }

    fn walls(&self) -> [(&'static str, &Wall); 3] {
        [("files", &self.files), ("network", &self.network), ("exec", &self.exec)]
    }
}

impl fmt::Display for Confined {
    /// "files no (the kernel has no Landlock), network yes, exec yes"; in one word where all are alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |wall: &Wall| match wall {
            Wall::Holds => "yes".to_owned(),
            Wall::Missing(why) => format!("no ({why})"),
        };
        if self.files == self.network && self.network == self.exec {
            return f.write_str(&said(&self.files));
        }
        f.write_str(&self.walls().map(|(name, wall)| format!("{name} {}", said(wall))).join(", "))
    }
}

/// Confines the calling thread and those that it starts from now on, for good. Call it while there is no other: threads
/// share memory, so one that is free frees all. Without the kernel's support of a wall the others stand.
pub fn confine(rights: &Rights) -> Confined {
    let privileges = give_up_privileges();
    let files = files::close(rights);
    let calls = calls::refuse(!rights.write.is_empty());
    // Landlock alone leaves files' permissions and owners open.
    let files = Wall::of(files.and_then(|()| calls.clone()));
    Confined { files, network: Wall::of(calls.clone()), exec: Wall::of(calls.and(privileges)) }
}

/// Root's privileges but those over files, which Landlock bounds: with some of the others /proc tells all of other
/// processes, whatever walls stand. Errors: why they stay.
fn give_up_privileges() -> Result<(), String> {
    let over_files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    let given_up = || {
        let held = capabilities(None)?;
        let [effective, permitted] = [held.effective, held.permitted].map(|set| set & over_files);
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
    };
    given_up().map_err(|error| format!("privileges are kept: {error}"))
}

/// What would hold, tried on a thread that ends.
pub fn tried() -> Confined {
    let trial = std::thread::Builder::new().spawn(|| confine(&Rights::default()));
    let confined = trial.map(std::thread::JoinHandle::join);
    match confined {
        Ok(Ok(confined)) => confined,
        Ok(Err(_)) => Confined::not("the trial panicked"),
        Err(error) => Confined::not(format!("no thread: {error}")),
    }
}

impl Wall {
    fn of(built: Result<(), String>) -> Self {
        built.map_or_else(Self::Missing, |()| Self::Holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_is_told_in_a_line() {
        let mut confined = Confined { files: Wall::Holds, network: Wall::Holds, exec: Wall::Holds };
        assert_eq!((confined.to_string(), confined.is_whole()), ("yes".to_owned(), true));
        confined.files = Wall::Missing("the kernel has no Landlock".to_owned());
        assert_eq!(confined.to_string(), "files no (the kernel has no Landlock), network yes, exec yes");
        assert!(!confined.is_whole());
        assert_eq!(Confined::not("turned off").to_string(), "no (turned off)");
    }
}
