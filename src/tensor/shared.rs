//! Bytes that another process may be writing, and tensors over them.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use super::{DType, Shape, TensorBuf, TensorDesc, TensorView};

/// What is copied at a time where a tensor is read whole.
pub const BLOCK_BYTES: usize = 16 << 10;

/// The widest plain value that the target reads at once.
#[cfg(target_arch = "x86_64")]
type Wide = std::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Wide = std::arch::aarch64::uint8x16_t;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Wide = u64;

const WIDE: usize = size_of::<Wide>();

/// Bytes that another process may be writing; read by copying out.
///
/// # When to use
/// For every byte of a segment that a client and the daemon, or the executor, both map. A client may write there at any
/// time, against the protocol or by an accident of its own, so a `&[u8]` over such memory would be a lie to the compiler:
/// it may read a byte twice and get two values, after a check of the first. This gives no reference. What is read is
/// copied out ([`SharedBytes::copy_out`]) and then judged, hashed or written from the copy, so that all of them see one
/// value. A peer that writes meanwhile gets a nonsensical verdict, and costs nobody else anything.
///
/// Large tensors are read block by block into a buffer that stays in a processor's own cache ([`BLOCK_BYTES`]): comparing
/// widens such a block to float64, the store hashes and writes one of its own size. [`SharedTensor::to_owned`] is the
/// copy that outlives the call; a dump's copies are files already (`dump/message.rs`).
///
/// # When not
/// Not for words that both sides synchronize by (the doorbells of lanes, counters): those are atomics, in `shm`. Not
/// where ONNX Runtime computes: it gets raw pointers, for no Rust code reads those bytes at that time. Private memory
/// needs none of this, but is taken where shared memory is (`From<&TensorView>`): there is one code for both.
///
/// # Why this is sound
/// The memory is a mapping that no Rust allocation and no Rust reference ever covered; it is accessed by volatile reads
/// and writes of plain integers alone, for which every bit pattern is a value. What a race leaves in a copy is a mixture
/// of old and new bytes, nothing worse. As in firecracker's `vm-memory`.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a ()>,
}

// SAFETY: reading by volatile copies needs no thread in particular; whoever made it promised that the memory stays.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// `len` bytes from `start` stay mapped and readable for `'a`, and during `'a` no Rust code writes them but through
    /// [`SharedBytesMut`].
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of them. Panics when the range leaves them.
    pub fn slice(&self, range: Range<usize>) -> SharedBytes<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        // SAFETY: the range lies in the bytes that `new` was promised.
        Self { start: unsafe { self.start.add(range.start) }, len: range.end - range.start, memory: PhantomData }
    }

    /// Copies all of them. Panics when the target has another length.
    #[inline]
    pub fn copy_out(&self, target: &mut [u8]) {
        assert_eq!(self.len, target.len(), "the target's length");
        // SAFETY: as many bytes are readable here and writable there; the target is private, so the two do not overlap.
        unsafe { copy(self.start.as_ptr(), target.as_mut_ptr(), self.len, Side::Source) };
    }

    /// A private copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_out(&mut bytes);
        bytes
    }

    /// Whether every byte is this one.
    pub fn holds_only(&self, byte: u8) -> bool {
        self.for_each_block(|block| if block.iter().all(|&other| other == byte) { Ok(()) } else { Err(()) }).is_ok()
    }

    /// Whether the other ones are the same.
    pub fn equals(&self, other: &SharedBytes<'_>) -> bool {
        if self.len != other.len {
            return false;
        }
        let (mut from, mut theirs) = (0, vec![0; BLOCK_BYTES.min(self.len)]);
        let same = self.for_each_block(|block| {
            let theirs = &mut theirs[..block.len()];
            other.slice(from..from + block.len()).copy_out(theirs);
            from += block.len();
            if *theirs == *block { Ok(()) } else { Err(()) }
        });
        same.is_ok()
    }

    /// Copies block by block, in order; ends at the first error. `visit` gets up to [`BLOCK_BYTES`] private bytes.
    pub fn for_each_block<E>(&self, mut visit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut block = vec![0; BLOCK_BYTES.min(self.len)];
        for from in (0..self.len).step_by(BLOCK_BYTES) {
            let to = (from + BLOCK_BYTES).min(self.len);
            let block = &mut block[..to - from];
            self.slice(from..to).copy_out(block);
            visit(block)?;
        }
        Ok(())
    }
}

impl<'a> From<&'a [u8]> for SharedBytes<'a> {
    /// Private bytes, which nobody writes.
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for SharedBytesMut<'a> {
    /// Private bytes, which nobody else reads or writes.
    fn from(bytes: &'a mut [u8]) -> Self {
        Self(SharedBytes { len: bytes.len(), start: NonNull::from(bytes).cast(), memory: PhantomData })
    }
}

/// Bytes that another process may be reading or writing; written by copying in. See [`SharedBytes`].
#[derive(Debug)]
pub struct SharedBytesMut<'a>(SharedBytes<'a>);

impl<'a> SharedBytesMut<'a> {
    /// # Safety
    /// As of [`SharedBytes::new`], and the bytes are writable. Two of them may overlap: they give no reference.
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { SharedBytes::new(start, len) })
    }

    /// To read them.
    pub fn as_shared(&self) -> SharedBytes<'_> {
        self.0
    }

    /// Copies into all of them. Panics when the source has another length.
    pub fn copy_in(&mut self, source: &[u8]) {
        assert_eq!(self.0.len, source.len(), "the source's length");
        // SAFETY: as many bytes are writable here and readable there; the source is private, so the two do not overlap.
        unsafe { copy(source.as_ptr(), self.0.start.as_ptr(), source.len(), Side::Target) };
    }

    /// Copies into those from `offset` on. Panics when the source reaches beyond the end.
    pub fn copy_in_at(&mut self, offset: usize, source: &[u8]) {
        Self(self.0.slice(offset..offset + source.len())).copy_in(source);
    }

    /// Writes one byte everywhere.
    pub fn fill(&mut self, byte: u8) {
        let block = vec![byte; BLOCK_BYTES.min(self.0.len)];
        for from in (0..self.0.len).step_by(BLOCK_BYTES) {
            let to = (from + BLOCK_BYTES).min(self.0.len);
            Self(self.0.slice(from..to)).copy_in(&block[..to - from]);
        }
    }

    /// Copies from other shared bytes, block by block. Panics when they have another length.
    pub fn copy_from(&mut self, source: SharedBytes<'_>) {
        assert_eq!(self.0.len, source.len(), "the source's length");
        let mut from = 0;
        let Ok(()) = source.for_each_block(|block| {
            let to = from + block.len();
            Self(self.0.slice(from..to)).copy_in(block);
            from = to;
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

/// Which end of a copy is shared, and so volatile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, which do not overlap. The end that is not `shared` is
/// private.
#[inline(always)]
unsafe fn copy(source: *const u8, target: *mut u8, len: usize, shared: Side) {
    let aligned = match shared {
        Side::Source => source.align_offset(WIDE),
        Side::Target => target.align_offset(WIDE),
    };
    let head = aligned.min(len);
    let wide_end = head + (len - head) / WIDE * WIDE;
    let mut at = 0;
    while at < head {
        // SAFETY: at < len.
        unsafe { copy_one::<u8>(source.add(at), target.add(at), shared) };
        at += 1;
    }
    while at < wide_end {
        // SAFETY: at + WIDE ≤ len, and the shared end is aligned here.
        unsafe { copy_one::<Wide>(source.add(at), target.add(at), shared) };
        at += WIDE;
    }
    while at < len {
        // SAFETY: at < len.
        unsafe { copy_one::<u8>(source.add(at), target.add(at), shared) };
        at += 1;
    }
}

/// # Safety
/// A `T`, for which every bit pattern is a value, is readable and writable; the shared end is aligned for it.
#[inline(always)]
unsafe fn copy_one<T>(source: *const u8, target: *mut u8, shared: Side) {
    let (source, target) = (source.cast::<T>(), target.cast::<T>());
    match shared {
        // SAFETY: the caller's promise.
        Side::Source => unsafe { target.write_unaligned(source.read_volatile()) },
        // SAFETY: the caller's promise.
        Side::Target => unsafe { target.write_volatile(source.read_unaligned()) },
    }
}

/// A dense row-major tensor over shared bytes.
#[derive(Clone, Copy, Debug)]
pub struct SharedTensor<'a> {
    dtype: DType,
    shape: &'a Shape,
    bytes: SharedBytes<'a>,
}

impl<'a> SharedTensor<'a> {
    /// None when the bytes are not as many as dtype and shape need.
    pub fn new(dtype: DType, shape: &'a Shape, bytes: SharedBytes<'a>) -> Option<Self> {
        (bytes.len() == shape.len_bytes(dtype)).then_some(Self { dtype, shape, bytes })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// dtype and shape, owned.
    pub fn desc(&self) -> TensorDesc {
        TensorDesc { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// The elements, little-endian, row-major.
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// The one copy: what must outlive the call.
    pub fn to_owned(&self) -> TensorBuf {
        TensorBuf::new(self.desc(), self.bytes.to_vec()).expect("the length was checked by `new`")
    }

    /// Elements of a range, widened: as [`TensorView::flat_f64`].
    pub fn flat_f64(&self, range: Range<usize>) -> Option<Vec<f64>> {
        let size = self.dtype.size_bytes();
        let bytes = self.bytes.slice(range.start * size..range.end * size);
        let (mut few, mut many) = ([0; 2048], Vec::new());
        let copy = match few.get_mut(..bytes.len()) {
            Some(few) => few,
            None => {
                many.resize(bytes.len(), 0);
                many.as_mut_slice()
            }
        };
        bytes.copy_out(copy);
        widen(self.dtype, copy)
    }
}

/// As [`super::view::widen`], with the widest vectors that the processor has.
fn widen(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the features that `widen_avx2` is compiled for were just found on this processor.
        return unsafe { widen_avx2(dtype, bytes) };
    }
    super::view::widen(dtype, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn widen_avx2(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    super::view::widen(dtype, bytes)
}

impl<'a> From<&TensorView<'a>> for SharedTensor<'a> {
    fn from(view: &TensorView<'a>) -> Self {
        Self { dtype: view.dtype(), shape: view.shape(), bytes: view.bytes().into() }
    }
}

impl TensorBuf {
    /// Borrowed, as what may lie in shared memory.
    pub fn shared(&self) -> SharedTensor<'_> {
        SharedTensor::from(&self.view())
    }
}

/// A dense row-major tensor over shared bytes that are to be written.
#[derive(Debug)]
pub struct SharedTensorMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: &'a Shape,
    /// Exactly `shape.len_bytes(dtype)` bytes.
    pub bytes: SharedBytesMut<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_is_copied_whole_both_ways() {
        let source: Vec<u8> = (0..200).map(|n| n as u8).collect();
        for from in 0..40 {
            for to in from..source.len() {
                let shared = SharedBytes::from(source.as_slice()).slice(from..to);
                assert_eq!(shared.to_vec(), source[from..to]);
                let mut memory = vec![255; 240];
                SharedBytesMut::from(&mut memory[from..to]).copy_in(&source[from..to]);
                assert_eq!(memory[from..to], source[from..to]);
                assert!(memory[..from].iter().chain(&memory[to..]).all(|&byte| byte == 255));
            }
        }
    }

    #[test]
    fn blocks_are_the_whole_in_order() {
        for len in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5] {
            let source: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let mut seen = Vec::new();
            let shared = SharedBytes::from(source.as_slice());
            let collect = |block: &[u8]| {
                seen.extend_from_slice(block);
                Ok::<(), ()>(())
            };
            shared.for_each_block(collect).unwrap();
            assert_eq!(seen, source);
            let mut memory = vec![0; len];
            SharedBytesMut::from(memory.as_mut_slice()).copy_from(shared);
            assert_eq!(memory, source);
            SharedBytesMut::from(memory.as_mut_slice()).fill(7);
            assert!(memory.iter().all(|&byte| byte == 7));
            assert!(SharedBytes::from(memory.as_slice()).holds_only(7));
            if let Some(last) = memory.last_mut() {
                *last = 8;
                assert!(!SharedBytes::from(memory.as_slice()).holds_only(7));
            }
        }
        let failed = SharedBytes::from(&[0_u8; 3 * BLOCK_BYTES][..]).for_each_block(|block| Err(block.len()));
        assert_eq!(failed, Err(BLOCK_BYTES));
    }

    #[test]
    #[should_panic(expected = "of 4 bytes")]
    fn a_range_beyond_the_bytes_panics() {
        SharedBytes::from(&[0_u8; 4][..]).slice(2..5);
    }
}
