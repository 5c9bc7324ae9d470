//! One step of a program over a tile.

use super::functions::{erf, exp, log, sigmoid, tanh, to_bf16, to_f16};
use crate::onnx::Op;

/// What a step reads: a value for each element of a tile, one for each row, or one.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Each(&'a [f32]),
    Rows(&'a [f32]),
    One(f32),
}

impl<'a> Source<'a> {
    /// Of one row.
    #[inline(always)]
    fn row(self, row: usize, n: usize) -> Self {
        match self {
            Self::Each(values) => Self::Each(&values[row * n..][..n]),
            Self::Rows(values) => Self::One(values[row]),
            one => one,
        }
    }

    fn is_by_row(&self) -> bool {
        matches!(self, Self::Rows(_))
    }
}

/// Writes what the step gives: a value for each element of the rows of n, or of a row's step for each row, whose sources
/// then have no Rows.
#[inline(always)]
pub(super) fn compute<const FMA: bool>(op: Op, sources: [Source<'_>; 3], n: usize, out: &mut [f32]) {
    let [a, b, c] = sources;
    let flag = |holds: bool| if holds { 1.0 } else { 0.0 };
    match op {
        Op::Add => binary(a, b, n, out, |a, b| a + b),
        Op::Sub => binary(a, b, n, out, |a, b| a - b),
        Op::Mul | Op::And => binary(a, b, n, out, |a, b| a * b),
        Op::Div => binary(a, b, n, out, |a, b| a / b),
        // NaN of either is NaN.
        Op::Max | Op::Or => binary(a, b, n, out, larger),
        Op::Min => binary(a, b, n, out, |a, b| if a < b || a.is_nan() { a } else { b }),
        Op::Greater => binary(a, b, n, out, |a, b| flag(a > b)),
        Op::GreaterOrEqual => binary(a, b, n, out, |a, b| flag(a >= b)),
        Op::Less => binary(a, b, n, out, |a, b| flag(a < b)),
        Op::LessOrEqual => binary(a, b, n, out, |a, b| flag(a <= b)),
        Op::Equal => binary(a, b, n, out, |a, b| flag(a == b)),
        Op::Neg => unary(a, out, |a| -a),
        Op::Abs => unary(a, out, f32::abs),
        Op::Exp => unary(a, out, exp::<FMA>),
        Op::Log => unary(a, out, log::<FMA>),
        Op::Sqrt => unary(a, out, f32::sqrt),
        Op::Reciprocal => unary(a, out, |a| 1.0 / a),
        Op::Sigmoid => unary(a, out, sigmoid::<FMA>),
        Op::Tanh => unary(a, out, tanh::<FMA>),
        Op::Erf => unary(a, out, erf::<FMA>),
        // NaN and -0.0 stay.
        Op::Relu => unary(a, out, |a| if a < 0.0 { 0.0 } else { a }),
        Op::Not => unary(a, out, |a| 1.0 - a),
        Op::Square => unary(a, out, |a| a * a),
        Op::Cube => unary(a, out, |a| a * a * a),
        Op::RoundBFloat16 => unary(a, out, to_bf16),
        Op::RoundFloat16 => unary(a, out, to_f16),
        Op::Spread => binary(a, a, n, out, |a, _| a),
        Op::Where => select([a, b, c], n, out),
        Op::ReduceSum => reduce(a, n, out, sum),
        Op::ReduceMean => reduce(a, n, out, |row| sum(row) / row.len() as f32),
        Op::ReduceMax => reduce(a, n, out, largest),
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

#[inline(always)]
fn unary(a: Source<'_>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match a {
        Source::Each(a) | Source::Rows(a) => {
            for (out, &a) in out.iter_mut().zip(a) {
                *out = f(a);
            }
        }
        Source::One(a) => out.fill(f(a)),
    }
}

#[inline(always)]
fn binary(a: Source<'_>, b: Source<'_>, n: usize, out: &mut [f32], f: impl Fn(f32, f32) -> f32 + Copy) {
    match (a, b) {
        (Source::Each(a), Source::Each(b)) => {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = f(a, b);
            }
        }
        (Source::Each(a), Source::One(b)) => {
            for (out, &a) in out.iter_mut().zip(a) {
                *out = f(a, b);
            }
        }
        (Source::One(a), Source::Each(b)) => {
            for (out, &b) in out.iter_mut().zip(b) {
                *out = f(a, b);
            }
        }
        (Source::Each(a), Source::Rows(b)) => {
            for ((out, a), &b) in out.chunks_exact_mut(n.max(1)).zip(a.chunks_exact(n.max(1))).zip(b) {
                for (out, &a) in out.iter_mut().zip(a) {
                    *out = f(a, b);
                }
            }
        }
        (Source::Rows(a), Source::Each(b)) => {
            for ((out, b), &a) in out.chunks_exact_mut(n.max(1)).zip(b.chunks_exact(n.max(1))).zip(a) {
                for (out, &b) in out.iter_mut().zip(b) {
                    *out = f(a, b);
                }
            }
        }
        (a, b) => {
            let number = |of: Source<'_>| match of {
                Source::One(value) => value,
                Source::Each(values) | Source::Rows(values) => values.first().copied().unwrap_or(0.0),
            };
            for (row, out) in out.chunks_exact_mut(n.max(1)).enumerate() {
                out.fill(f(number(a.row(row, n)), number(b.row(row, n))));
            }
        }
    }
}

/// Bit by bit.
#[inline(always)]
fn select(sources: [Source<'_>; 3], n: usize, out: &mut [f32]) {
    if !sources.iter().any(Source::is_by_row) {
        return select_row(sources, out);
    }
    for (row, out) in out.chunks_exact_mut(n.max(1)).enumerate() {
        select_row(sources.map(|source| source.row(row, n)), out);
    }
}

#[inline(always)]
fn select_row([condition, x, y]: [Source<'_>; 3], out: &mut [f32]) {
    let condition = match condition {
        Source::One(holds) => {
            return unary(if holds != 0.0 { x } else { y }, out, |value| value);
        }
        Source::Each(condition) | Source::Rows(condition) => condition,
    };
    let choose = |holds: f32, x: f32, y: f32| if holds != 0.0 { x } else { y };
    let out = out.iter_mut().zip(condition);
    match (x, y) {
        (Source::One(x), Source::One(y)) => out.for_each(|(out, &holds)| *out = choose(holds, x, y)),
        (Source::One(x), Source::Each(y) | Source::Rows(y)) => {
            out.zip(y).for_each(|((out, &holds), &y)| *out = choose(holds, x, y));
        }
        (Source::Each(x) | Source::Rows(x), Source::One(y)) => {
            out.zip(x).for_each(|((out, &holds), &x)| *out = choose(holds, x, y));
        }
        (Source::Each(x) | Source::Rows(x), Source::Each(y) | Source::Rows(y)) => {
            out.zip(x).zip(y).for_each(|(((out, &holds), &x), &y)| *out = choose(holds, x, y));
        }
    }
}

#[inline(always)]
fn reduce(a: Source<'_>, n: usize, out: &mut [f32], f: impl Fn(&[f32]) -> f32) {
    let Source::Each(a) = a else { unreachable!("a plan reduces what is full") };
    for (row, out) in out.iter_mut().enumerate() {
        *out = f(&a[row * n..][..n]);
    }
}

/// Values that are added up side by side.
const LANES: usize = 32;
/// Elements whose sum is made in float32; sums of blocks are added in float64.
const BLOCK: usize = 1024;

#[inline(always)]
fn sum(row: &[f32]) -> f32 {
    if row.len() <= BLOCK {
        return sum_of_block(row);
    }
    let mut total = 0.0;
    for block in row.chunks(BLOCK) {
        total += f64::from(sum_of_block(block));
    }
    total as f32
}

#[inline(always)]
fn sum_of_block(block: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, value);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, larger)
}
