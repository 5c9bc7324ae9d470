//! Elements in blocks, for what widens them.

use std::ops::Range;

const BLOCK: usize = 4096;

/// Ranges of elements, one after the other.
pub(super) fn blocks(n_elements: usize) -> impl Iterator<Item = Range<usize>> {
    // A tensor without elements still tells whether its dtype widens.
    (0..n_elements.max(1)).step_by(BLOCK).map(move |from| from..(from + BLOCK).min(n_elements))
}
