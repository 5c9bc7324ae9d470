//! What operators mean, one family a file: tables of (domain, operator, kernel). "" is ONNX's own domain.
//!
//! Semantics are ONNX's of opset 13 and later, with older forms (attributes that became inputs) where they say the same.

mod activation;
mod attention;
mod comparison;
mod constant;
mod contrib;
mod control;
mod convolution;
mod elementwise;
mod index;
mod loss;
mod matrix;
mod normalization;
mod ours;
mod pooling;
mod quantization;
mod recurrent;
mod reduction;
mod resize;
mod scatter;
mod sequence;
mod shape;
mod spectral;
mod windows;

use std::collections::HashMap;
use std::sync::OnceLock;

pub(super) use self::constant::constant;
use super::call::{Kernel, Table};

const TABLES: &[Table] = &[
    activation::TABLE,
    attention::TABLE,
    comparison::TABLE,
    contrib::TABLE,
    control::TABLE,
    convolution::TABLE,
    elementwise::TABLE,
    index::TABLE,
    loss::TABLE,
    matrix::TABLE,
    normalization::TABLE,
    ours::TABLE,
    pooling::TABLE,
    quantization::TABLE,
    recurrent::TABLE,
    reduction::TABLE,
    resize::TABLE,
    scatter::TABLE,
    sequence::TABLE,
    shape::TABLE,
    spectral::TABLE,
];

/// What computes an operator; None where nothing here does.
pub(super) fn find(domain: &str, operator: &str) -> Option<Kernel> {
    static FOUND: OnceLock<HashMap<(&str, &str), Kernel>> = OnceLock::new();
    let all =
        || TABLES.iter().copied().flatten().map(|&(domain, operator, kernel)| ((domain, operator), kernel)).collect();
    FOUND.get_or_init(all).get(&(domain, operator)).copied()
}
