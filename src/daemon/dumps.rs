//! Dumps that are open, by path: several connections of one process may have the same.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use crate::base::sync::lock;
use crate::dump::{DumpError, Run, RunSpec};

/// A dump, as long as somebody has it and it has not been left by all. Locked while it is opened.
type Slot = Arc<Mutex<Weak<Run>>>;

/// The dumps of all clients.
#[derive(Default)]
pub struct Dumps(Mutex<HashMap<PathBuf, Slot>>);

impl Dumps {
    /// The open dump that `spec` asks for, or one that is opened. `take` is called with it before anybody can find that
    /// nobody has it. Errors: those of [`Run::open`].
    pub fn shared_or_opened(&self, spec: &RunSpec, take: impl FnOnce(&Arc<Run>)) -> Result<Arc<Run>, DumpError> {
        let slot = self.slot(spec.path()?);
        let mut open = lock(&slot);
        let run = match open.upgrade().filter(|run| run.is_of(spec)) {
            Some(run) => run,
            None => Arc::new(Run::open(spec)?),
        };
        *open = Arc::downgrade(&run);
        take(&run);
        Ok(run)
    }

    /// Whether nobody but who asks has it; then nobody else comes to have it, else `leave` is called before the next who
    /// asks. `others`: whether others have it.
    pub fn is_left_by_all(&self, run: &Arc<Run>, others: impl FnOnce() -> bool, leave: impl FnOnce()) -> bool {
        let slot = self.slot(run.path().to_owned());
        let mut open = lock(&slot);
        if others() {
            leave();
            return false;
        }
        if std::ptr::eq(open.as_ptr(), Arc::as_ptr(run)) {
            *open = Weak::new();
        }
        true
    }

    fn slot(&self, path: PathBuf) -> Slot {
        let mut slots = lock(&self.0);
        // Whoever is at one holds it, too.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || lock(slot).strong_count() > 0);
        Arc::clone(slots.entry(path).or_default())
    }
}
