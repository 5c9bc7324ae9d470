//! Proof that the tensors of a call lie where they claim to.
//!
//! # When to use
//! Before anything reads or writes a tensor that a client placed: the table proves range, alignment and overlap once, and
//! the [`Lease`] keeps the memory mapped for as long as it lives. Daemon and executor each lease the same call, in their
//! own mapping.
//!
//! # When not
//! A lease is no lock. The same bytes may be leased twice, by another call or in another process, and the client may
//! write them at any time. Nothing here gives a reference to them: views copy out and in ([`crate::tensor::shared`]),
//! runtimes get raw pointers.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Segment, ShmError};
use crate::base::ids::SegmentId;
use crate::tensor::{SharedBytes, SharedBytesMut, SharedTensor, SharedTensorMut, TensorDesc, TensorRef};

/// The data segments of one client.
#[derive(Debug, Default)]
pub struct SegmentTable {
    segments: HashMap<SegmentId, Arc<Segment>>,
}

impl SegmentTable {
    /// Adds a segment. Errors: its id is taken, or its file is attached under another id ([`Segment::apart_from`]).
    pub fn attach(&mut self, segment: Segment) -> Result<(), ShmError> {
        let bad = |reason: String| Err(ShmError::BadSegment { segment: segment.id(), reason });
        if self.segments.contains_key(&segment.id()) {
            return bad("attached already; choose another id".to_owned());
        }
        segment.apart_from(self.iter())?;
        self.segments.insert(segment.id(), Arc::new(segment));
        Ok(())
    }

    /// Forgets a segment; it is unmapped when the last lease on it goes. Errors: [`ShmError::UnknownSegment`].
    pub fn detach(&mut self, segment: SegmentId) -> Result<(), ShmError> {
        self.segments.remove(&segment).map(drop).ok_or(ShmError::UnknownSegment { segment })
    }

    /// Ids of the attached segments with their lengths in bytes, sorted.
    pub fn segments(&self) -> Vec<(SegmentId, u64)> {
        let mut segments: Vec<_> = self.segments.values().map(|segment| (segment.id(), segment.len_bytes())).collect();
        segments.sort_unstable();
        segments
    }

    /// The attached segments, in any order.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values().map(|segment| &**segment)
    }

    /// Proves, for every tensor: its bytes (dtype × dims) lie inside an attached segment, it is aligned to its element,
    /// and no output shares a byte with any other tensor. A tensor without elements may name any location. Errors:
    /// UnknownSegment, OutOfRange, Misaligned, Overlap.
    pub fn lease(&self, inputs: &[TensorRef], outputs: &[TensorRef]) -> Result<Lease, ShmError> {
        let place = |kind: Kind, (index, reference): (usize, &TensorRef)| self.place(Role { kind, index }, reference);
        let values: Vec<Placed> = (inputs.iter().enumerate().map(|value| place(Kind::Input, value)))
            .chain(outputs.iter().enumerate().map(|value| place(Kind::Output, value)))
            .collect::<Result<_, _>>()?;
        refuse_overlap(&values, inputs.len())?;
        Ok(Lease { values, n_inputs: inputs.len() })
    }

    fn place(&self, role: Role, reference: &TensorRef) -> Result<Placed, ShmError> {
        let TensorRef { segment: id, offset, desc } = reference;
        let align = desc.dtype.align_bytes();
        if desc.len_bytes() == 0 {
            // Never dereferenced, but a runtime may want it aligned and not null.
            let start = NonNull::<u128>::dangling().cast();
            return Ok(Placed { start, desc: desc.clone(), segment: None, offset: 0 });
        }
        let segment = self.segments.get(id).ok_or(ShmError::UnknownSegment { segment: *id })?;
        if !offset.is_multiple_of(align as u64) {
            let (value, desc) = (role.to_string(), desc.clone());
            return Err(ShmError::Misaligned { value, desc, segment: *id, offset: *offset, align });
        }
        let start = segment.range(*offset, desc.len_bytes())?;
        Ok(Placed { start, desc: desc.clone(), segment: Some(Arc::clone(segment)), offset: *offset })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Input,
    Output,
}

#[derive(Clone, Copy)]
struct Role {
    kind: Kind,
    index: usize,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if matches!(self.kind, Kind::Input) { "input" } else { "output" }, self.index)
    }
}

fn refuse_overlap(values: &[Placed], n_inputs: usize) -> Result<(), ShmError> {
    // (segment, start, end, value), inputs of one place kept: they may overlap each other.
    let mut ranges: Vec<(SegmentId, u64, u64, usize)> = (values.iter().enumerate())
        .filter_map(|(value, placed)| {
            let segment = placed.segment.as_ref()?.id();
            Some((segment, placed.offset, placed.offset + placed.desc.len_bytes() as u64, value))
        })
        .collect();
    ranges.sort_unstable();
    let role = |value: usize| match value.checked_sub(n_inputs) {
        None => Role { kind: Kind::Input, index: value },
        Some(index) => Role { kind: Kind::Output, index },
    };
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
            return Err(ShmError::Overlap {
                output: role(output).to_string(),
                other: role(other).to_string(),
                segment,
            });
        }
        for (far, counts) in farthest.iter_mut().zip([true, is_output]) {
            if counts && far.is_none_or(|(far_segment, far_end, _)| far_segment != segment || far_end < end) {
                *far = Some((segment, end, value));
            }
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Placed {
    start: NonNull<u8>,
    desc: TensorDesc,
    /// Keeps the mapping; None for a tensor without elements.
    segment: Option<Arc<Segment>>,
    offset: u64,
}

// SAFETY: `start` points into the mapping that `segment` keeps, which belongs to no thread.
unsafe impl Send for Placed {}
// SAFETY: through `&Placed` the memory is only read.
unsafe impl Sync for Placed {}

impl Placed {
    fn view(&self) -> SharedTensor<'_> {
        // SAFETY: `place` proved that these bytes lie in the mapping, which `segment` keeps for the borrow's length (there
        // are none without a segment). No Rust reference covers a mapping.
        let bytes = unsafe { SharedBytes::new(self.start, self.desc.len_bytes()) };
        SharedTensor::new(self.desc.dtype, &self.desc.shape, bytes).expect("the length is the description's")
    }

    fn view_mut(&mut self) -> SharedTensorMut<'_> {
        // SAFETY: as in `view`; mappings are writable.
        let bytes = unsafe { SharedBytesMut::new(self.start, self.desc.len_bytes()) };
        SharedTensorMut { dtype: self.desc.dtype, shape: &self.desc.shape, bytes }
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
}

impl Lease {
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
        self.values[..self.n_inputs].iter().map(|value| RawTensor { start: value.start, desc: &value.desc })
    }

    /// Fetches, for a runtime that takes raw pointers and writes to them.
    pub fn raw_outputs(&mut self) -> impl ExactSizeIterator<Item = RawTensor<'_>> {
        self.values[self.n_inputs..].iter().map(|value| RawTensor { start: value.start, desc: &value.desc })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::DType;

    const LEN_BYTES: u64 = 4096;

    fn table() -> SegmentTable {
        let mut table = SegmentTable::default();
        for id in [1, 2] {
            table.attach(Segment::create(SegmentId(id), "test", LEN_BYTES).unwrap()).unwrap();
        }
        table
    }

    fn tensor(segment: u32, offset: u64, dtype: DType, dims: &[i64]) -> TensorRef {
        TensorRef { segment: SegmentId(segment), offset, desc: TensorDesc::new(dtype, dims).unwrap() }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let table = table();
        let refused = |tensor: TensorRef| table.lease(&[tensor], &[]).unwrap_err();
        for (offset, n) in [(4096, 1), (4092, 2), (0, 1025), (u64::MAX - 3, 1), (8, 1 << 50), (1 << 39, 1)] {
            assert!(
                matches!(refused(tensor(1, offset, DType::F32, &[n])), ShmError::OutOfRange { .. }),
                "{offset} {n}"
            );
        }
        assert_eq!(refused(tensor(3, 0, DType::F32, &[1])), ShmError::UnknownSegment { segment: SegmentId(3) });
        assert!(matches!(refused(tensor(1, 2, DType::F32, &[1])), ShmError::Misaligned { align: 4, .. }));
        assert!(table.lease(&[tensor(1, 4092, DType::F32, &[]), tensor(1, 2, DType::F16, &[1])], &[]).is_ok());
    }

    #[test]
    fn a_tensor_without_elements_may_be_anywhere() {
        let empty = tensor(9, u64::MAX, DType::F64, &[3, 0]);
        let mut lease = table().lease(std::slice::from_ref(&empty), &[empty.clone(), empty.clone()]).unwrap();
        assert_eq!(lease.raw_inputs().next().unwrap().start.as_ptr() as usize % 16, 0);
        assert!(lease.split_mut().1.iter().all(|output| output.bytes.as_shared().is_empty()));
    }

    #[test]
    fn views_read_and_write_the_segment_also_after_it_was_detached() {
        let mut table = table();
        let (x, y) = (tensor(1, 64, DType::U8, &[3]), tensor(2, 0, DType::U8, &[3]));
        let mut lease = table.lease(&[x.clone(), x], &[y]).unwrap();
        let watcher = Arc::clone(&table.segments[&SegmentId(2)]);
        table.detach(SegmentId(2)).unwrap();
        assert!(table.detach(SegmentId(2)).is_err());
        lease.split_mut().1[0].bytes.copy_in(&[1, 2, 3]);
        assert_eq!((watcher.read(0, 3).unwrap(), lease.outputs()[0].bytes().to_vec()), (vec![1, 2, 3], vec![1, 2, 3]));
        assert_eq!(lease.inputs().len(), 2);
    }

    #[test]
    fn bytes_that_are_leased_twice_give_copies_and_no_references() {
        let table = table();
        let y = tensor(1, 0, DType::U8, &[3]);
        let [mut one, mut other] = [(); 2].map(|()| table.lease(&[], std::slice::from_ref(&y)).unwrap());
        let (mut first, mut second) = (one.split_mut().1, other.split_mut().1);
        first[0].bytes.copy_in(&[1, 2, 3]);
        second[0].bytes.copy_in(&[4, 5, 6]);
        assert_eq!(first[0].bytes.as_shared().to_vec(), [4, 5, 6]);
    }

    #[test]
    fn one_file_is_attached_once() {
        let mut table = table();
        let segment = Segment::create(SegmentId(5), "test", LEN_BYTES).unwrap();
        let again = |id| Segment::map(SegmentId(id), segment.try_clone_fd().unwrap(), LEN_BYTES).unwrap();
        table.attach(again(5)).unwrap();
        for id in [5, 6] {
            assert!(matches!(table.attach(again(id)), Err(ShmError::BadSegment { .. })));
        }
        assert_eq!(table.segments(), [1, 2, 5].map(|id| (SegmentId(id), LEN_BYTES)));
    }

    fn any_tensor() -> impl Strategy<Value = TensorRef> {
        let dtype = prop::sample::select(DType::ALL);
        (1..4_u32, 0..520_u64, dtype, prop::collection::vec(0..6_i64, 0..4))
            .prop_map(|(segment, eighth, dtype, dims)| tensor(segment, eighth * 8 + eighth % 3 / 2, dtype, &dims))
    }

    /// Whether the rules hold, tensor by tensor and pair by pair.
    fn holds(inputs: &[TensorRef], outputs: &[TensorRef]) -> bool {
        let range = |tensor: &TensorRef| tensor.offset..tensor.offset + tensor.desc.len_bytes() as u64;
        let fits = |tensor: &TensorRef| {
            let aligned = tensor.offset.is_multiple_of(tensor.desc.dtype.align_bytes() as u64);
            range(tensor).is_empty() || (tensor.segment.0 < 3 && aligned && range(tensor).end <= LEN_BYTES)
        };
        let meet = |one: &TensorRef, other: &TensorRef| {
            let (one_range, other_range) = (range(one), range(other));
            let both = one_range.start.max(other_range.start)..one_range.end.min(other_range.end);
            one.segment == other.segment && !one_range.is_empty() && !other_range.is_empty() && !both.is_empty()
        };
        let clear = |index: usize, output: &TensorRef| {
            !inputs.iter().chain(&outputs[index + 1..]).any(|other| meet(output, other))
        };
        inputs.iter().chain(outputs).all(fits) && outputs.iter().enumerate().all(|(index, output)| clear(index, output))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_lease_is_given_exactly_when_the_rules_hold(
            inputs in prop::collection::vec(any_tensor(), 0..4),
            outputs in prop::collection::vec(any_tensor(), 0..3),
        ) {
            let lease = table().lease(&inputs, &outputs);
            prop_assert_eq!(lease.is_ok(), holds(&inputs, &outputs), "{:?}", lease.err());
            if let Ok(mut lease) = lease {
                for mut output in lease.split_mut().1 {
                    let ones = vec![1; output.bytes.as_shared().len()];
                    output.bytes.copy_in(&ones);
                }
                prop_assert!(lease.inputs().iter().all(|input| input.bytes().to_vec().iter().all(|&byte| byte == 0)));
            }
        }
    }
}
