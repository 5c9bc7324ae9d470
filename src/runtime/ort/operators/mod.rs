//! Operators of our own: in the place of ONNX's where ONNX Runtime's kernel on the CPU is wrong, and of functions of ours
//! where one kernel is faster than their nodes.

mod attention;
mod bits;
mod broadcast;
mod by_row;
mod channel_conv;
mod cuda_attention;
mod cuda_calls;
mod device_region;
mod half_product;
mod in_place;
mod region;
mod row_reductions;
mod select;
mod wide_sum;

use std::sync::{Arc, Mutex};

use ort::operator::OperatorDomain;
use ort::session::builder::SessionBuilder;

use super::device_kernels::DeviceKernels;
use crate::base::sync::lock;
use crate::onnx::DOMAIN;

pub(super) use cuda_attention::is_of_libtorch;
pub(super) use in_place::{Place, in_place};

/// The operators. A session whose model [`in_place`] changed holds them for as long as it lives.
#[derive(Clone)]
pub(super) struct Operators(Arc<OperatorDomain>);

// SAFETY: nothing writes to the domain once it is made, and what the runtime calls of it, from any thread, only reads
// operators that are plain data, but for the kernels of a device, which may be shared.
unsafe impl Send for Operators {}
// SAFETY: as above.
unsafe impl Sync for Operators {}

fn on_cpu() -> ort::Result<OperatorDomain> {
    let domain = wide_sum::add(channel_conv::add(attention::add(select::add(OperatorDomain::new(DOMAIN)?)?)?)?)?;
    cuda_attention::add(half_product::add(region::add(row_reductions::add(domain)?)?)?)
}

impl Operators {
    #[expect(clippy::arc_with_non_send_sync, reason = "ort takes an Arc, and this type says why it may be shared")]
    pub(super) fn new() -> ort::Result<Self> {
        Ok(Self(Arc::new(on_cpu()?)))
    }

    /// Those, and the ones that run on a device.
    #[expect(clippy::arc_with_non_send_sync, reason = "as above")]
    pub(super) fn on(kernels: &Arc<DeviceKernels>) -> ort::Result<Self> {
        Ok(Self(Arc::new(device_region::add(on_cpu()?, Arc::clone(kernels))?)))
    }

    /// What `build` makes of a session that has them. ONNX Runtime asks whether the process knows our domain, and makes it
    /// known, with nothing that holds the two together: of the first two sessions at once, one would be refused.
    pub(super) fn built<T, E>(build: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        static IS_KNOWN: Mutex<bool> = Mutex::new(false);
        let mut is_known = lock(&IS_KNOWN);
        if *is_known {
            drop(is_known);
            return build();
        }
        let built = build();
        *is_known = built.is_ok();
        built
    }

    /// The builder of a session that has them.
    pub(super) fn register(&self, builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        Ok(builder.with_operators(Arc::clone(&self.0))?)
    }
}
