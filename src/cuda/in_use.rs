//! What this process holds of the memory of devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::device::Device;
use super::nvml;

/// What this process holds of the memory of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It has no context on any.
    Nothing,
    /// So many bytes, of all devices together: of contexts, sessions and what their runs keep.
    Bytes(u64),
    /// It has a context, and nobody tells how much it takes.
    Unknown,
}

/// See [`library_uses_devices`].
static UNSEEN: AtomicBool = AtomicBool::new(false);

/// A library of this process computes on devices that this room has not opened: what that takes is not known from now on.
pub fn library_uses_devices() {
    UNSEEN.store(true, Ordering::Relaxed);
}

impl InUse {
    /// Of this process now.
    pub fn now() -> Self {
        if UNSEEN.load(Ordering::Relaxed) {
            return Self::Unknown;
        }
        let devices = Device::open_here();
        if devices.is_empty() {
            return Self::Nothing;
        }
        let own = |device: &Arc<Device>| {
            let holders =
                nvml::holders(device.uuid()).map_err(|error| tracing::debug!(%error, "device memory")).ok()?;
            holders.iter().find(|holder| holder.pid == std::process::id())?.bytes
        };
        devices.iter().map(own).sum::<Option<u64>>().map_or(Self::Unknown, Self::Bytes)
    }
}
