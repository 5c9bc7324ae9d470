//! What observed calls ask of tensors on a device: copies on the host, and metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::failure;
use super::tenant::Tenant;
use crate::base::ids::DeviceUuid;
use crate::base::sync::lock;
use crate::compare::{DeviceMeter, Measured};
use crate::cuda::{CudaError, Device, Stream};
use crate::link::message::Comparison;
use crate::protocol::message::WireError;
use crate::shm::{Counter, Lease, Segment, SegmentTable};
use crate::tensor::TensorRef;

/// Devices that calls were observed on. Outlives clients.
#[derive(Default)]
pub(super) struct Observing(Mutex<HashMap<DeviceUuid, Arc<Side>>>);

/// Beside the stream that calls run on: they go on while something is copied or measured.
struct Side {
    stream: Stream,
    meter: Mutex<Meter>,
}

enum Meter {
    /// None was needed, or there was no memory for one.
    NotYet,
    Made(Arc<DeviceMeter>),
    /// None can be made here, which was logged.
    Never,
}

impl Side {
    /// What measures on the device; None: nothing does here, or now, which is logged.
    fn meter(&self) -> Option<Arc<DeviceMeter>> {
        let mut meter = lock(&self.meter);
        if let Meter::NotYet = *meter {
            let device = self.stream.device();
            match DeviceMeter::new(device).map_err(failure::unless_lost) {
                Ok(made) => *meter = Meter::Made(Arc::new(made)),
                Err(error) => {
                    let device = device.uuid();
                    tracing::warn!(%error, %device, "tensors are compared on the host: each call copies them there");
                    if !matches!(error, CudaError::OutOfMemory { .. }) {
                        *meter = Meter::Never;
                    }
                }
            }
        }
        match &*meter {
            Meter::Made(meter) => Some(Arc::clone(meter)),
            Meter::NotYet | Meter::Never => None,
        }
    }
}

impl Observing {
    fn side(&self, device: &Arc<Device>) -> Result<Arc<Side>, CudaError> {
        let mut sides = lock(&self.0);
        if let Some(side) = sides.get(&device.uuid()) {
            return Ok(Arc::clone(side));
        }
        let stream = Stream::new(device)?;
        let side = Arc::new(Side { stream, meter: Mutex::new(Meter::NotYet) });
        sides.insert(device.uuid(), Arc::clone(&side));
        Ok(side)
    }

    /// Copies each first tensor to the second, which lies in `target`. Nobody writes the first ones meanwhile. Errors: those
    /// of a lease, CUDA's.
    pub fn copy_out(&self, copies: &[[TensorRef; 2]], target: Segment, tenant: &Tenant) -> Result<(), WireError> {
        let (from, to): (Vec<_>, Vec<_>) = copies.iter().cloned().map(|[from, to]| (from, to)).unzip();
        let source = tenant.lease_read(&from)?;
        let mut table = SegmentTable::default();
        table.attach(target)?;
        let mut target = table.lease(&[], &to)?;
        let side = source.device().map(|device| self.side(device)).transpose().map_err(failure::unless_lost)?;
        let (_, written) = target.split_mut();
        for (index, mut written) in written.into_iter().enumerate() {
            let span = source.device_span(index)?;
            match (span, &side) {
                (Some(span), Some(side)) => {
                    let copied =
                        side.stream.read_in_pieces(span, |offset, piece| written.bytes.copy_in_at(offset, piece));
                    copied.map_err(failure::unless_lost)?;
                    tenant.counters.add(Counter::HostBytes, span.len_bytes() as u64);
                }
                _ => written.bytes.copy_from(source.host_input(index).bytes()),
            }
        }
        Ok(())
    }

    /// What each pair's passes find, where both tensors lie on a device. Nobody writes them meanwhile. Errors: those of a
    /// lease, CUDA's.
    pub fn measure(&self, pairs: &[Comparison], tenant: &Tenant) -> Result<Vec<Option<Measured>>, WireError> {
        let tensors = pairs.iter().flat_map(|pair| [pair.reference.clone(), pair.candidate.clone()]);
        let lease = tenant.lease_read(&tensors.collect::<Vec<_>>())?;
        let Some(device) = lease.device() else { return Ok(vec![None; pairs.len()]) };
        let side = self.side(device).map_err(failure::unless_lost)?;
        let Some(meter) = side.meter() else { return Ok(vec![None; pairs.len()]) };
        let measure = |(index, pair)| measure(&meter, &side.stream, &lease, 2 * index, pair);
        pairs
            .iter()
            .enumerate()
            .map(measure)
            .collect::<Result<_, _>>()
            .map_err(|error| failure::unless_lost(error).into())
    }
}

/// Of the tensors of `lease` from `first` on.
fn measure(
    meter: &DeviceMeter,
    stream: &Stream,
    lease: &Lease,
    first: usize,
    pair: &Comparison,
) -> Result<Option<Measured>, CudaError> {
    let spans = lease.device_span(first)?.zip(lease.device_span(first + 1)?);
    let Some((reference, candidate)) = spans else { return Ok(None) };
    meter.measure(stream, &pair.reference.desc, [reference, candidate], &pair.tolerance).map(Some)
}
