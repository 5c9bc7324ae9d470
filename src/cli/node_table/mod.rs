//! Every node of a part against eager, side by side: rows, columns, text and CSV.
//!
//! The columns are those of onnx-diagnostic's `sbs`, with the numbers that it leaves empty, and without its agreement of
//! devices: a dump does not tell them, both sides run on the CPU.

mod brief;
mod columns;
mod from_dump;
mod legend;
mod mark;
mod rows;
mod text;

pub(super) use brief::brief;
pub(super) use columns::csv;
pub(super) use from_dump::Found;
pub(super) use legend::legend;
pub(super) use mark::Mark;
pub(super) use rows::Rows;
pub(super) use text::text_of;
