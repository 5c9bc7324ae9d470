//! The tensors of one call, proven to lie where they claim to: [`SegmentTable::lease`](super::SegmentTable::lease).

use std::ptr::NonNull;
use std::sync::Arc;

use super::device::DeviceSegment;
use super::segment::{OutOfRange, Segment, UnknownSegment};
use crate::base::ids::{DeviceUuid, SegmentId};
use crate::cuda::{CudaError, Device, Pinned, Span, Stream};
use crate::tensor::{SharedBytes, SharedBytesMut, SharedTensor, SharedTensorMut, TensorBuf, TensorDesc};

/// A tensor of a call.
#[derive(Clone, Copy, Debug, displaydoc::Display, PartialEq, Eq)]
pub enum Role {
    /// input {0}
    Input(usize),
    /// output {0}
    Output(usize),
}

/// Why the tensors of a call are not where they claim to be.
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub enum LeaseError {
    /// {0}
    Unknown(#[from] UnknownSegment),
    /// {0}
    OutOfRange(#[from] OutOfRange),
    /// {value}: {desc} at offset {offset} of segment {segment} is not aligned to {align} bytes
    Misaligned {
        /// The tensor's.
        value: Role,
        /// The tensor.
        desc: TensorDesc,
        /// Its segment.
        segment: SegmentId,
        /// Its offset.
        offset: u64,
        /// What the offset must be a multiple of.
        align: usize,
    },
    /// {value} lies on {device}: expected memory of the host; copy it there before
    OnDevice {
        /// The tensor's.
        value: Role,
        /// Where it lies.
        device: DeviceUuid,
    },
    /// {value} lies on {device}, a tensor before it on {other}; one call runs on one device
    TwoDevices {
        /// The tensor's.
        value: Role,
        /// Where it lies.
        device: DeviceUuid,
        /// Where the other one lies.
        other: DeviceUuid,
    },
    /// {output} overlaps {other} in segment {segment}; give every output memory of its own
    Overlap {
        /// The output.
        output: Role,
        /// What shares bytes with it.
        other: Role,
        /// Their segment.
        segment: SegmentId,
    },
}

/// A tensor that lies where it claims to.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    desc: TensorDesc,
    memory: Memory,
}

/// What keeps a tensor's bytes.
#[derive(Clone, Debug)]
enum Memory {
    /// There are none.
    Empty,
    /// From this offset on.
    Shared(Arc<Segment>, u64),
    /// On a device, from this offset on.
    Device(Arc<DeviceSegment>, u64),
    /// Of this process alone. Inputs only: nothing writes them.
    Private(Arc<TensorBuf>),
}

impl Placed {
    /// A tensor without elements: it needs no memory.
    pub(super) fn empty(desc: TensorDesc) -> Self {
        Self { desc, memory: Memory::Empty }
    }

    /// A tensor with elements. Errors: Misaligned, OutOfRange.
    pub(super) fn new(role: Role, segment: Arc<Segment>, offset: u64, desc: TensorDesc) -> Result<Self, LeaseError> {
        aligned(role, segment.id(), offset, &desc)?;
        segment.range(offset, desc.len_bytes())?;
        Ok(Self { desc, memory: Memory::Shared(segment, offset) })
    }

    /// A tensor with elements on a device. Errors: as of `new`.
    pub(super) fn on_device(
        role: Role,
        segment: Arc<DeviceSegment>,
        offset: u64,
        desc: TensorDesc,
    ) -> Result<Self, LeaseError> {
        aligned(role, segment.id(), offset, &desc)?;
        segment.range(offset, desc.len_bytes())?;
        Ok(Self { desc, memory: Memory::Device(segment, offset) })
    }

    fn device(&self) -> Option<&Arc<Device>> {
        match &self.memory {
            Memory::Device(segment, _) => Some(segment.device()),
            _ => None,
        }
    }

    /// The first bytes of it, `most` at most, on a device; None: it lies on the host. Errors: none that `on_device` has not
    /// met.
    fn span(&self, most: usize) -> Result<Option<Span<'_>>, CudaError> {
        match &self.memory {
            Memory::Device(segment, offset) => {
                segment.mapping.span(*offset, self.desc.len_bytes().min(most) as u64).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn start(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Shared(segment, offset) => segment.range(*offset, self.desc.len_bytes()).expect("`new` proved it"),
            Memory::Device(segment, offset) => segment.range(*offset, self.desc.len_bytes()).expect("`new` proved it"),
            Memory::Private(tensor) => NonNull::from(tensor.view().bytes()).cast(),
            // Never dereferenced, but a runtime may want it aligned and not null.
            Memory::Empty => NonNull::<u128>::dangling().cast(),
        }
    }

    /// The bytes that it takes of a segment.
    fn range(&self) -> Option<(SegmentId, u64, u64)> {
        match &self.memory {
            Memory::Shared(segment, start) => Some((segment.id(), *start, start + self.desc.len_bytes() as u64)),
            Memory::Device(segment, start) => Some((segment.id(), *start, start + self.desc.len_bytes() as u64)),
            Memory::Private(_) | Memory::Empty => None,
        }
    }

    fn raw(&self) -> RawTensor<'_> {
        RawTensor { start: self.start(), desc: &self.desc, device: self.device().map(|device| device.ordinal()) }
    }

    fn view(&self) -> SharedTensor<'_> {
        let bytes = match &self.memory {
            Memory::Shared(segment, offset) => segment.bytes(*offset, self.desc.len_bytes()).expect("`new` proved it"),
            Memory::Private(tensor) => SharedBytes::from(tensor.view().bytes()),
            Memory::Empty => SharedBytes::from(<&[u8]>::default()),
            Memory::Device(..) => unreachable!("{NO_VIEW}"),
        };
        SharedTensor::new(self.desc.dtype, &self.desc.shape, bytes).expect("the length is the description's")
    }

    fn view_mut(&mut self) -> SharedTensorMut<'_> {
        let bytes = match &self.memory {
            Memory::Shared(segment, offset) => {
                segment.bytes_mut(*offset, self.desc.len_bytes()).expect("`new` proved it")
            }
            Memory::Private(_) => unreachable!("private memory is of inputs"),
            Memory::Device(..) => unreachable!("{NO_VIEW}"),
            Memory::Empty => SharedBytesMut::from(<&mut [u8]>::default()),
        };
        SharedTensorMut { dtype: self.desc.dtype, shape: &self.desc.shape, bytes }
    }
}

/// [`SegmentTable::lease`](super::SegmentTable::lease) refuses such tensors; who allows them asks for no views.
const NO_VIEW: &str = "what lies on a device has no view";

/// Of an output on a device: enough to see whether anybody wrote.
const ENOUGH_BYTES: usize = 4096;

fn aligned(value: Role, segment: SegmentId, offset: u64, desc: &TensorDesc) -> Result<(), LeaseError> {
    let align = desc.dtype.align_bytes();
    match offset.is_multiple_of(align as u64) {
        true => Ok(()),
        false => Err(LeaseError::Misaligned { value, desc: desc.clone(), segment, offset, align }),
    }
}

fn refuse_two_devices(values: &[Placed], n_inputs: usize) -> Result<(), LeaseError> {
    let mut first = None;
    for (value, placed) in values.iter().enumerate() {
        let Some(device) = placed.device().map(|device| device.uuid()) else { continue };
        let other = *first.get_or_insert(device);
        if other != device {
            return Err(LeaseError::TwoDevices { value: role(value, n_inputs), device, other });
        }
    }
    Ok(())
}

fn role(value: usize, n_inputs: usize) -> Role {
    value.checked_sub(n_inputs).map_or(Role::Input(value), Role::Output)
}

fn refuse_overlap(values: &[Placed], n_inputs: usize) -> Result<(), LeaseError> {
    // (segment, start, end, value), inputs of one place kept: they may overlap each other.
    let mut ranges: Vec<(SegmentId, u64, u64, usize)> = (values.iter().enumerate())
        .filter_map(|(value, placed)| {
            let (segment, start, end) = placed.range()?;
            Some((segment, start, end, value))
        })
        .collect();
    ranges.sort_unstable();
    let role = |value| role(value, n_inputs);
    // The ranges reaching farthest so far, of any tensor and of outputs.
    let mut farthest: [Option<(SegmentId, u64, usize)>; 2] = [None; 2];
    for &(segment, start, end, value) in &ranges {
        let is_output = value >= n_inputs;
        // An output must be clear of everything before it, an input of the outputs before it.
        if let Some((other_segment, other_end, other)) = farthest[usize::from(!is_output)]
            && other_segment == segment
            && other_end > start
        {
            let (output, other) = if is_output { (value, other) } else { (other, value) };
            return Err(LeaseError::Overlap { output: role(output), other: role(other), segment });
        }
        for (far, counts) in farthest.iter_mut().zip([true, is_output]) {
            if counts && far.is_none_or(|(far_segment, far_end, _)| far_segment != segment || far_end < end) {
                *far = Some((segment, end, value));
            }
        }
    }
    Ok(())
}

/// A tensor that other leases may read (see [`Lease::reading`]): one of a call's inputs, or one of this process alone. It
/// keeps its memory.
#[derive(Clone, Debug)]
pub struct Readable(Placed);

impl Readable {
    /// A tensor of this process alone.
    pub fn private(tensor: &Arc<TensorBuf>) -> Self {
        let desc = tensor.desc().clone();
        match desc.len_bytes() {
            0 => Self(Placed::empty(desc)),
            _ => {
                let start = tensor.view().bytes().as_ptr().addr();
                assert!(
                    start.is_multiple_of(desc.dtype.align_bytes()),
                    "allocators align to more than any element needs"
                );
                Self(Placed { desc, memory: Memory::Private(Arc::clone(tensor)) })
            }
        }
    }

    /// dtype and shape.
    pub fn desc(&self) -> &TensorDesc {
        &self.0.desc
    }

    /// Its elements.
    pub fn view(&self) -> SharedTensor<'_> {
        self.0.view()
    }
}

/// The tensors of one call, proven. Views cannot outlive it; what must is copied by [`SharedTensor::to_owned`].
#[derive(Debug)]
pub struct Lease {
    values: Vec<Placed>,
    n_inputs: usize,
}

/// Place of a tensor for a runtime that takes raw pointers.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// First element; valid for `desc.len_bytes()` bytes while the lease lives. Dangling when that is 0.
    pub start: NonNull<u8>,
    /// dtype and shape.
    pub desc: &'a TensorDesc,
    /// Number of the device that it is an address of; None: the host's.
    pub device: Option<i32>,
}

impl Lease {
    /// Of inputs, then outputs. Errors: Overlap.
    pub(super) fn new(values: Vec<Placed>, n_inputs: usize) -> Result<Self, LeaseError> {
        refuse_overlap(&values, n_inputs)?;
        refuse_two_devices(&values, n_inputs)?;
        Ok(Self { values, n_inputs })
    }

    /// Where its tensors lie that are not the host's.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.values.iter().find_map(Placed::device)
    }

    /// The first tensor that does not lie in memory of the host. Panics where there is none.
    pub(super) fn first_on_device(&self) -> Role {
        let first = self.values.iter().position(|placed| placed.device().is_some());
        role(first.expect("one lies on a device"), self.n_inputs)
    }

    /// A feed's bytes on a device; None: they lie on the host, or there are none. Errors: none that making the lease has not
    /// met.
    pub fn device_span(&self, input: usize) -> Result<Option<Span<'_>>, CudaError> {
        self.values[..self.n_inputs][input].span(usize::MAX)
    }

    /// A feed that lies on the host. Panics where it lies on a device.
    pub fn host_input(&self, input: usize) -> SharedTensor<'_> {
        self.values[..self.n_inputs][input].view()
    }

    /// Writes one byte all over a fetch; on a device at its beginning, behind what is queued on its stream. Errors: CUDA's.
    pub fn fill_output(&mut self, output: usize, byte: u8, stream: Option<&Stream>) -> Result<(), CudaError> {
        let placed = &mut self.values[self.n_inputs + output];
        let Some((span, stream)) = placed.span(ENOUGH_BYTES)?.zip(stream) else {
            placed.view_mut().bytes.fill(byte);
            return Ok(());
        };
        let mut filled = Pinned::new(stream.device(), span.len_bytes())?;
        filled.bytes_mut().fill(byte);
        stream.write(span, filled)
    }

    /// Whether a fetch has bytes, and each is this one; on a device those at its beginning, after what is queued on its
    /// stream. Errors: CUDA's.
    pub fn output_holds_only(&self, output: usize, byte: u8, stream: Option<&Stream>) -> Result<bool, CudaError> {
        let placed = &self.values[self.n_inputs + output];
        let Some((span, stream)) = placed.span(ENOUGH_BYTES)?.zip(stream) else {
            let bytes = placed.view().bytes();
            return Ok(!bytes.is_empty() && bytes.holds_only(byte));
        };
        Ok(stream.read(span)?.bytes().iter().all(|&other| other == byte))
    }

    /// Makes every fetch what no computation gives: NaN, −1, true; on a device behind what is queued on its stream. Errors:
    /// CUDA's.
    pub fn spoil_outputs(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.values[self.n_inputs..].iter_mut().try_for_each(|placed| {
            let byte = placed.desc.dtype.spoiled_byte();
            match placed.span(usize::MAX)? {
                Some(span) => stream.fill(span, byte),
                None => {
                    placed.view_mut().bytes.fill(byte);
                    Ok(())
                }
            }
        })
    }

    /// What a feed and a fetch are.
    pub fn passed_through(&self, input: usize, output: usize) -> [&TensorDesc; 2] {
        [&self.values[..self.n_inputs][input].desc, &self.values[self.n_inputs + output].desc]
    }

    /// Copies a feed to a fetch; what lies on a device behind what is queued on its stream. Errors: CUDA's. Panics where
    /// they have not as many bytes.
    pub fn pass_through(&mut self, input: usize, output: usize, stream: Option<&Stream>) -> Result<(), CudaError> {
        let (inputs, outputs) = self.values.split_at_mut(self.n_inputs);
        let (source, target) = (&inputs[input], &mut outputs[output]);
        assert_eq!(source.desc.len_bytes(), target.desc.len_bytes(), "the fetch's length");
        let Some(stream) = stream else {
            target.view_mut().bytes.copy_from(source.view().bytes());
            return Ok(());
        };
        match (source.span(usize::MAX)?, target.span(usize::MAX)?) {
            (Some(from), Some(to)) => stream.copy(to, from),
            (Some(from), None) => {
                target.view_mut().bytes.copy_in(stream.read(from)?.bytes());
                Ok(())
            }
            (None, Some(to)) => {
                let mut host = Pinned::new(stream.device(), to.len_bytes())?;
                source.view().bytes().copy_out(host.bytes_mut());
                stream.write(to, host)?;
                stream.synchronize() // until then the stream keeps what it copies from
            }
            (None, None) => {
                target.view_mut().bytes.copy_from(source.view().bytes());
                Ok(())
            }
        }
    }

    /// A lease that reads these tensors and writes none, without a copy.
    pub fn reading(inputs: impl IntoIterator<Item = Readable>) -> Self {
        let values: Vec<_> = inputs.into_iter().map(|readable| readable.0).collect();
        Self { n_inputs: values.len(), values }
    }

    /// The feeds, for other leases. Whatever may write them while this lease lives may while those live.
    pub fn readable(&self) -> Vec<Readable> {
        self.values[..self.n_inputs].iter().cloned().map(Readable).collect()
    }

    /// The feeds.
    pub fn inputs(&self) -> Vec<SharedTensor<'_>> {
        self.values[..self.n_inputs].iter().map(Placed::view).collect()
    }

    /// The fetches, after the run.
    pub fn outputs(&self) -> Vec<SharedTensor<'_>> {
        self.values[self.n_inputs..].iter().map(Placed::view).collect()
    }

    /// Feeds and writable fetches.
    pub fn split_mut(&mut self) -> (Vec<SharedTensor<'_>>, Vec<SharedTensorMut<'_>>) {
        let (inputs, outputs) = self.values.split_at_mut(self.n_inputs);
        (inputs.iter().map(Placed::view).collect(), outputs.iter_mut().map(Placed::view_mut).collect())
    }

    /// Feeds, for a runtime that takes raw pointers.
    pub fn raw_inputs(&self) -> impl ExactSizeIterator<Item = RawTensor<'_>> {
        self.values[..self.n_inputs].iter().map(Placed::raw)
    }

    /// Fetches, for a runtime that takes raw pointers and writes to them.
    pub fn raw_outputs(&mut self) -> impl ExactSizeIterator<Item = RawTensor<'_>> {
        self.values[self.n_inputs..].iter().map(Placed::raw)
    }
}
