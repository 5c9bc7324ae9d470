//! What is made a region for a provider.

/// What pays on a provider.
pub(super) struct Policy {
    /// The operator has inputs and outputs of any of its types, and nodes may compute in half precision.
    pub(super) is_typed: bool,
    /// Elements of a row, and rows, with which a sum is left to ONNX Runtime, whose threads share a row.
    pub(super) long_row: i64,
    pub(super) few_rows: i64,
    /// What convolutions of constant weights read and give stays ONNX Runtime's, which lays it out otherwise.
    pub(super) leaves_convolutions: bool,
}

pub(super) const ON_CPU: Policy = Policy { is_typed: false, long_row: 1 << 15, few_rows: 4, leaves_convolutions: true };
/// A block has a row, and a device has more than a hundred places for blocks.
pub(super) const ON_CUDA: Policy =
    Policy { is_typed: true, long_row: 1 << 16, few_rows: 64, leaves_convolutions: false };
