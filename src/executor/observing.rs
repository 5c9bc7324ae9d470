//! What observed calls ask of tensors on a device: copies on the host, and metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::failure;
use super::tenant::Tenant;
use crate::base::ids::DeviceUuid;
use crate::base::sync::lock;
use crate::compare::{DeviceMeter, DevicePair, Measured, Range};
use crate::cuda::{CudaError, Device, Span, Stream};
use crate::link::message::Comparison;
use crate::protocol::message::WireError;
use crate::shm::{Counter, Segment, SegmentTable};
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

    /// Copies each first tensor to the second, wherever they lie, where no other reads or writes. Errors: those of a lease,
    /// CUDA's.
    pub fn copy(&self, copies: &[[TensorRef; 2]], tenant: &Tenant) -> Result<(), WireError> {
        let (from, to): (Vec<_>, Vec<_>) = copies.iter().cloned().map(|[from, to]| (from, to)).unzip();
        let mut lease = tenant.lease_anywhere(&from, &to)?;
        let side = lease.device().map(|device| self.side(device)).transpose().map_err(failure::unless_lost)?;
        let stream = side.as_ref().map(|side| &side.stream);
        let mut copy = || {
            (0..copies.len()).try_for_each(|index| lease.pass_through(index, index, stream))?;
            stream.map_or(Ok(()), Stream::synchronize)
        };
        Ok(copy().map_err(failure::unless_lost)?)
    }

    /// What each pair's passes find, where all its tensors lie on a device. Nobody writes them meanwhile. Errors: those of a
    /// lease, CUDA's.
    pub fn measure(&self, pairs: &[Comparison], tenant: &Tenant) -> Result<Vec<Option<Measured>>, WireError> {
        let tensors: Vec<TensorRef> = pairs.iter().flat_map(tensors).cloned().collect();
        let lease = tenant.lease_read(&tensors)?;
        let mut asked = Vec::new();
        let mut measured = vec![None; pairs.len()];
        let mut at = 0;
        for (index, pair) in pairs.iter().enumerate() {
            let n_tensors = tensors_of(pair);
            let spans =
                (at..at + n_tensors).map(|input| lease.device_span(input)).collect::<Result<Option<Vec<_>>, _>>();
            at += n_tensors;
            if let Some(spans) = spans.map_err(failure::unless_lost)? {
                asked.push((index, device_pair(pair, &spans)));
            }
        }
        let Some(device) = lease.device() else { return Ok(measured) };
        let side = self.side(device).map_err(failure::unless_lost)?;
        let Some(meter) = side.meter() else { return Ok(measured) };
        let (places, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let found = meter.measure(&side.stream, &asked).map_err(failure::unless_lost)?;
        places.into_iter().zip(found).for_each(|(place, found)| measured[place] = Some(found));
        Ok(measured)
    }

    /// What tensors hold that lie on a device. Otherwise as [`Observing::measure`].
    pub fn ranges(&self, tensors: &[TensorRef], tenant: &Tenant) -> Result<Vec<Option<Range>>, WireError> {
        let lease = tenant.lease_read(tensors)?;
        let mut ranges = vec![None; tensors.len()];
        let Some(device) = lease.device() else { return Ok(ranges) };
        let side = self.side(device).map_err(failure::unless_lost)?;
        let Some(meter) = side.meter() else { return Ok(ranges) };
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for (index, tensor) in tensors.iter().enumerate() {
            if let Some(span) = lease.device_span(index).map_err(failure::unless_lost)? {
                places.push(index);
                asked.push((&tensor.desc, span));
            }
        }
        let found = meter.ranges(&side.stream, &asked).map_err(failure::unless_lost)?;
        places.into_iter().zip(found).for_each(|(place, found)| ranges[place] = found);
        Ok(ranges)
    }
}

/// Of a pair, in the order of [`device_pair`].
fn tensors(pair: &Comparison) -> impl Iterator<Item = &TensorRef> {
    let of_exact = pair.exact.iter().flat_map(|(exact, explained)| [exact].into_iter().chain(explained.terms()));
    [&pair.reference, &pair.candidate].into_iter().chain(&pair.terms).chain(of_exact)
}

fn tensors_of(pair: &Comparison) -> usize {
    tensors(pair).count()
}

/// The question of a pair whose tensors lie here.
fn device_pair<'a>(pair: &'a Comparison, spans: &[Span<'a>]) -> DevicePair<'a> {
    let mut spans = spans.iter().copied();
    let mut next = || spans.next().expect("one a tensor");
    let (reference, candidate) = (next(), next());
    let terms = pair.terms.as_ref().map(|_| next());
    let exact = pair.exact.as_ref().map(|(_, explained)| {
        let value = next();
        (value, explained.as_ref().map(|_| next()))
    });
    let (desc, tolerance, signatures) = (&pair.reference.desc, pair.tolerance, pair.signatures);
    DevicePair { desc, reference, candidate, tolerance, terms, exact, signatures }
}
