//! Kernels of our own: what the operators here compute with. Pure; the caller says how tasks run in parallel.
//!
//! A kernel reads elements (float16, bfloat16, float32, float64) and computes in a [`Real`]: float32, or float64 for
//! float64. Each is compiled twice: for AVX2 with fused multiply-add, and for any processor.

mod backward;
mod channels;
mod element;
mod exponential;
mod forward;
mod half_product;
mod heads;
mod processor;
mod product;
mod region;
#[cfg(test)]
mod tests;
mod wide_sum;

pub(super) use backward::Backward;
pub(super) use channels::{Channels, Direction, Sizes, Window};
pub(super) use element::{Element, Real};
pub(super) use forward::Forward;
pub(super) use half_product::HalfProduct;
pub(super) use heads::{Heads, HeadsMut, Mask, Scores};
pub(super) use processor::{Parallel, run};
pub(super) use region::{DeviceRegion, Elements, KernelSource, Plan, Region, broadcast};
pub(super) use wide_sum::WideSum;
