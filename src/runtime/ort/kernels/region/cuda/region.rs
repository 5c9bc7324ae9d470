//! What a kernel of a region is written and launched from.

use crate::onnx::{Extent, HIGHEST_RANK, TypedProgram};

/// Outer axes of a task, at most.
pub(super) const AXES: usize = HIGHEST_RANK;
/// Threads that run side by side.
pub(super) const WARP: usize = 32;
/// Threads of a block of those that have elements each, or of rows that a warp has.
pub(super) const BLOCK: usize = 256;
/// Elements of a row at most: places in it are numbers of 32 bits.
pub(super) const LONGEST_ROW: usize = 1 << 31;
/// Registers in which a thread keeps what it has of a row, at most; half of what it may have in the largest block.
pub(super) const KEPT: usize = 32;

/// A program, and what its kernel is to know of it.
pub(in crate::runtime::ort) struct DeviceRegion {
    pub(super) typed: TypedProgram,
    /// Of each register. Where all are values of rows, these are the elements.
    pub(super) extents: Vec<Extent>,
    /// Reductions that a register comes after, one behind the other.
    pub(super) levels: Vec<usize>,
    /// Registers that an output needs.
    pub(super) live: Vec<bool>,
    /// A row is taken for a whole.
    pub(super) by_row: bool,
    /// Elements that a thread takes at once: 16 bytes, or 32 of float32 beside half precision.
    pub(super) width: usize,
}

/// How a kernel goes over its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// wide: their number has more than 32 bits.
    Elements {
        wide: bool,
    },
    Rows(Rows),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    /// Of a row.
    pub(super) threads: usize,
    /// How often a thread takes elements of a row, where it keeps them.
    pub(super) kept: Option<usize>,
    /// Elements of a row, where that is known.
    pub(super) n: Option<usize>,
}

impl Rows {
    /// Of a block.
    pub(super) fn block(&self) -> usize {
        if self.threads == WARP { BLOCK } else { self.threads }
    }
}
