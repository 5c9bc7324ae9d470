//! What this process holds of the memory of devices.

use std::sync::Arc;

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

impl InUse {
    /// Of this process now.
    pub fn now() -> Self {
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
