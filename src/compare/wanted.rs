//! Whether anybody still waits for a comparison.

use std::fmt;

/// Looked at between blocks of a comparison. Once it says no, it says no.
#[derive(Clone, Copy)]
pub struct Wanted<'a>(&'a (dyn Fn() -> bool + Sync));

impl<'a> Wanted<'a> {
    /// Whoever asked waits to the end.
    pub const ALWAYS: Wanted<'static> = Wanted(&|| true);

    /// As long as `says` says so.
    pub fn while_so(says: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self(says)
    }

    /// Whether anybody waits.
    pub fn is(self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wanted")
    }
}
