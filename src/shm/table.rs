//! The data segments of a client, and the proof that the tensors of a call lie where they claim to.

use std::collections::HashMap;
use std::sync::Arc;

use super::device::DeviceSegment;
use super::lease::{Lease, LeaseError, Placed, Role};
use super::segment::{BadSegment, Segment, SegmentFault, UnknownSegment};
use crate::base::ids::SegmentId;
use crate::tensor::TensorRef;

/// The data segments of one client.
#[derive(Debug, Default)]
pub struct SegmentTable {
    segments: HashMap<SegmentId, Arc<Segment>>,
    on_devices: HashMap<SegmentId, Arc<DeviceSegment>>,
}

impl SegmentTable {
    /// Adds a segment. Errors: its id is taken, or its file is attached under another id ([`Segment::apart_from`]).
    pub fn attach(&mut self, segment: Segment) -> Result<(), BadSegment> {
        if self.has(segment.id()) {
            return Err(segment.refused(SegmentFault::Attached));
        }
        segment.apart_from(self.iter())?;
        self.segments.insert(segment.id(), Arc::new(segment));
        Ok(())
    }

    /// Adds memory of a device. Errors: its id is taken.
    pub fn attach_device(&mut self, segment: DeviceSegment) -> Result<(), BadSegment> {
        if self.has(segment.id()) {
            return Err(BadSegment { segment: segment.id(), fault: SegmentFault::Attached });
        }
        self.on_devices.insert(segment.id(), Arc::new(segment));
        Ok(())
    }

    fn has(&self, id: SegmentId) -> bool {
        self.segments.contains_key(&id) || self.on_devices.contains_key(&id)
    }

    /// Forgets a segment; it is unmapped when the last lease on it goes. Errors: [`UnknownSegment`].
    pub fn detach(&mut self, segment: SegmentId) -> Result<(), UnknownSegment> {
        let on_host = self.segments.remove(&segment).is_some();
        let on_device = self.on_devices.remove(&segment).is_some();
        if on_host || on_device { Ok(()) } else { Err(UnknownSegment { segment }) }
    }

    /// Ids of the attached segments of the host with their lengths in bytes, sorted.
    pub fn segments(&self) -> Vec<(SegmentId, u64)> {
        let mut segments: Vec<_> = self.segments.values().map(|segment| (segment.id(), segment.len_bytes())).collect();
        segments.sort_unstable();
        segments
    }

    /// The attached segments of the host, in any order.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values().map(|segment| &**segment)
    }

    /// The tensors of one call, proven to lie where they claim to.
    ///
    /// # What it proves
    /// Of every tensor: its bytes (dtype × dims) lie inside an attached segment, it is aligned to its element, and no
    /// output shares a byte with any other tensor. Inputs may share bytes with inputs. A tensor without elements may name
    /// any location.
    ///
    /// # When to use
    /// Before anything reads or writes a tensor that a client placed. Daemon and executor each lease the same call, in
    /// their own mapping: neither trusts the other's proof.
    ///
    /// # When not
    /// A lease is no lock. The same bytes may be leased twice, by another call or in another process, and the client may
    /// write them at any time. Nothing here gives a reference to them: views copy out and in ([`SharedBytes`]), runtimes
    /// get raw pointers.
    ///
    /// # What outlives what
    /// The lease keeps the mappings that it needs: it may outlive the table, and a segment that is detached is unmapped
    /// when the last lease on it goes. Views borrow from the lease.
    ///
    /// ```
    /// use rust_ort::base::ids::SegmentId;
    /// use rust_ort::shm::{LeaseError, Segment, SegmentTable};
    /// use rust_ort::tensor::{DType, Location, TensorDesc, TensorRef};
    ///
    /// let id = SegmentId(1);
    /// let mut table = SegmentTable::default();
    /// table.attach(Segment::create(id, "doc", 4096)?)?;
    /// let at = |offset| -> Result<_, Box<dyn std::error::Error>> {
    ///     Ok(TensorRef { location: Location::new(id, offset)?, desc: TensorDesc::new(DType::F32, [2])? })
    /// };
    ///
    /// let mut lease = table.lease(&[at(0)?], &[at(64)?])?;
    /// table.detach(id)?;
    /// let (inputs, mut outputs) = lease.split_mut();
    /// outputs[0].bytes.copy_from(inputs[0].bytes());
    /// drop((inputs, outputs));
    /// assert_eq!(lease.outputs()[0].flat_f64(0..2), Some(vec![0., 0.]));
    ///
    /// assert!(matches!(table.lease(&[at(0)?], &[]), Err(LeaseError::Unknown(_))), "it is detached");
    /// table.attach(Segment::create(id, "doc", 4096)?)?;
    /// assert!(matches!(table.lease(&[at(4092)?], &[]), Err(LeaseError::OutOfRange(_))));
    /// assert!(matches!(table.lease(&[at(2)?], &[]), Err(LeaseError::Misaligned { align: 4, .. })));
    /// assert!(matches!(table.lease(&[at(0)?], &[at(4)?]), Err(LeaseError::Overlap { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Errors: [`LeaseError`].
    ///
    /// [`SharedBytes`]: crate::tensor::SharedBytes
    pub fn lease(&self, inputs: &[TensorRef], outputs: &[TensorRef]) -> Result<Lease, LeaseError> {
        let lease = self.lease_anywhere(inputs, outputs)?;
        let Some(device) = lease.device().map(|device| device.uuid()) else { return Ok(lease) };
        Err(LeaseError::OnDevice { value: lease.first_on_device(), device })
    }

    /// As [`SegmentTable::lease`], of tensors that may lie on a device, too: such a lease has no views of them.
    pub fn lease_anywhere(&self, inputs: &[TensorRef], outputs: &[TensorRef]) -> Result<Lease, LeaseError> {
        let inputs_placed = inputs.iter().enumerate().map(|(index, tensor)| self.place(Role::Input(index), tensor));
        let outputs_placed = outputs.iter().enumerate().map(|(index, tensor)| self.place(Role::Output(index), tensor));
        Lease::new(inputs_placed.chain(outputs_placed).collect::<Result<_, _>>()?, inputs.len())
    }

    fn place(&self, role: Role, TensorRef { location, desc }: &TensorRef) -> Result<Placed, LeaseError> {
        if desc.len_bytes() == 0 {
            return Ok(Placed::empty(desc.clone()));
        }
        if let Some(segment) = self.on_devices.get(&location.segment()) {
            return Placed::on_device(role, Arc::clone(segment), location.offset(), desc.clone());
        }
        let segment = self.segments.get(&location.segment());
        let segment = segment.ok_or(UnknownSegment { segment: location.segment() })?;
        Placed::new(role, Arc::clone(segment), location.offset(), desc.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::{DType, Location, TensorDesc};

    const LEN_BYTES: u64 = 4096;

    fn table() -> SegmentTable {
        let mut table = SegmentTable::default();
        for id in [1, 2] {
            table.attach(Segment::create(SegmentId(id), "test", LEN_BYTES).unwrap()).unwrap();
        }
        table
    }

    fn tensor(segment: u32, offset: u64, dtype: DType, dims: &[i64]) -> TensorRef {
        let location = Location::new(SegmentId(segment), offset).unwrap();
        TensorRef { location, desc: TensorDesc::new(dtype, dims).unwrap() }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let table = table();
        let refused = |tensor: TensorRef| table.lease(&[tensor], &[]).unwrap_err();
        for (offset, n) in
            [(4096, 1), (4092, 2), (0, 1025), (Location::OFFSET_LIMIT - 4, 1), (8, 1 << 50), (1 << 39, 1)]
        {
            assert!(matches!(refused(tensor(1, offset, DType::F32, &[n])), LeaseError::OutOfRange(_)), "{offset} {n}");
        }
        assert_eq!(
            refused(tensor(3, 0, DType::F32, &[1])),
            LeaseError::Unknown(UnknownSegment { segment: SegmentId(3) })
        );
        assert!(matches!(refused(tensor(1, 2, DType::F32, &[1])), LeaseError::Misaligned { align: 4, .. }));
        assert!(table.lease(&[tensor(1, 4092, DType::F32, &[]), tensor(1, 2, DType::F16, &[1])], &[]).is_ok());
    }

    #[test]
    fn a_tensor_without_elements_may_be_anywhere() {
        let empty = tensor(9, Location::OFFSET_LIMIT - 1, DType::F64, &[3, 0]);
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
            assert!(matches!(table.attach(again(id)), Err(BadSegment { .. })));
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
        let range =
            |tensor: &TensorRef| tensor.location.offset()..tensor.location.offset() + tensor.desc.len_bytes() as u64;
        let fits = |tensor: &TensorRef| {
            let aligned = tensor.location.offset().is_multiple_of(tensor.desc.dtype.align_bytes() as u64);
            range(tensor).is_empty() || (tensor.location.segment().0 < 3 && aligned && range(tensor).end <= LEN_BYTES)
        };
        let meet = |one: &TensorRef, other: &TensorRef| {
            let (one_range, other_range) = (range(one), range(other));
            let both = one_range.start.max(other_range.start)..one_range.end.min(other_range.end);
            one.location.segment() == other.location.segment()
                && !one_range.is_empty()
                && !other_range.is_empty()
                && !both.is_empty()
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
