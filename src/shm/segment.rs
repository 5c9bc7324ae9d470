//! A mapped memfd: the one place of this room with unsafe code.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
use rustix::param::page_size;

use crate::base::ids::SegmentId;
use crate::cuda::HostMemory;
use crate::tensor::{Location, SharedBytes, SharedBytesMut};

/// A memfd mapped whole, shared, readable and writable; unmapped on drop. It cannot shrink, so that no access inside it
/// can fault. Other processes may write it at any time: its bytes are read as plain bytes, and nothing that Rust trusts
/// (lengths, tags) is used before it was copied out.
pub struct Segment {
    id: SegmentId,
    fd: OwnedFd,
    memory: MmapRaw,
    file: (u64, u64),
}

/// segment {segment}: {fault}
#[derive(Clone, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct BadSegment {
    /// As announced.
    pub segment: SegmentId,
    /// What is wrong with it.
    pub fault: SegmentFault,
}

/// Why a segment cannot be made, mapped or attached.
#[derive(Clone, Debug, displaydoc::Display, PartialEq, Eq)]
pub enum SegmentFault {
    /// ids are below {limit}
    Id {
        /// [`SegmentId::LIMIT`].
        limit: u32,
    },
    /// {len_bytes} bytes: expected 1 to {limit}
    Length {
        /// As announced.
        len_bytes: u64,
        /// [`Location::OFFSET_LIMIT`].
        limit: u64,
    },
    /// no memfd ({0}); make it by memfd_create
    NoMemfd(Errno),
    /// not sealed against shrinking; add F_SEAL_SHRINK before sending it
    Unsealed,
    /// {announced} bytes announced, {in_file} in the file
    OtherLength {
        /// By the peer.
        announced: u64,
        /// What there is.
        in_file: u64,
    },
    /// mmap of {len_bytes} bytes: {errno}
    Unmappable {
        /// As announced.
        len_bytes: u64,
        /// What the system said.
        errno: Errno,
    },
    /// {0}
    System(Errno),
    /// attached already; choose another id
    Attached,
    /// the same memory is attached as segment {other}; send another memfd
    SameMemory {
        /// The segment that is there.
        other: SegmentId,
    },
}

/// segment {segment} is not attached; attach it before naming it
#[derive(Clone, Copy, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct UnknownSegment {
    /// As named.
    pub segment: SegmentId,
}

/// segment {segment} has {len_bytes} bytes: {needed} bytes from offset {offset} do not fit
#[derive(Clone, Copy, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct OutOfRange {
    /// The segment.
    pub segment: SegmentId,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted.
    pub needed: u64,
    /// Bytes there are.
    pub len_bytes: u64,
}

impl Segment {
    /// Maps a segment that a peer made. Errors: [`BadSegment`] when the id or the length is out of range, the descriptor is
    /// no memfd, is not sealed against shrinking, or has another length.
    pub fn map(id: SegmentId, fd: OwnedFd, len_bytes: u64) -> Result<Self, BadSegment> {
        Self::checked(id, fd, len_bytes).map_err(|fault| BadSegment { segment: id, fault })
    }

    fn checked(id: SegmentId, fd: OwnedFd, len_bytes: u64) -> Result<Self, SegmentFault> {
        if id.0 >= SegmentId::LIMIT {
            return Err(SegmentFault::Id { limit: SegmentId::LIMIT });
        }
        if len_bytes == 0 || len_bytes > Location::OFFSET_LIMIT {
            return Err(SegmentFault::Length { len_bytes, limit: Location::OFFSET_LIMIT });
        }
        let seals = fcntl_get_seals(&fd).map_err(SegmentFault::NoMemfd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SegmentFault::Unsealed);
        }
        let stat = fstat(&fd).map_err(SegmentFault::System)?;
        let in_file = stat.st_size as u64;
        if in_file != len_bytes {
            return Err(SegmentFault::OtherLength { announced: len_bytes, in_file });
        }
        // All of the file and nothing beyond it, which it keeps, sealed.
        let memory = MmapOptions::new().len(len_bytes as usize).map_raw(&fd).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
            SegmentFault::Unmappable { len_bytes, errno }
        })?;
        Ok(Self { id, fd, memory, file: (stat.st_dev, stat.st_ino) })
    }

    /// Makes a sealed, zeroed segment. For clients written in Rust and for tests. Errors: the kernel's.
    pub fn create(id: SegmentId, name: &str, len_bytes: u64) -> Result<Self, BadSegment> {
        let failed = |errno| BadSegment { segment: id, fault: SegmentFault::System(errno) };
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&fd, len_bytes).map_err(failed)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Self::map(id, fd, len_bytes)
    }

    /// As given by the client.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Length of the mapping.
    pub fn len_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// The memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor of the memfd, to be sent. Errors: out of descriptors.
    pub fn try_clone_fd(&self) -> std::io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Copies `bytes` to `offset`. Errors: [`OutOfRange`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.bytes_mut(offset, bytes.len())?.copy_in(bytes);
        Ok(())
    }

    /// Copies `len_bytes` from `offset`. Errors: [`OutOfRange`].
    pub fn read(&self, offset: u64, len_bytes: usize) -> Result<Vec<u8>, OutOfRange> {
        Ok(self.bytes(offset, len_bytes)?.to_vec())
    }

    /// `len_bytes` from `offset`, to be copied out. Errors: [`OutOfRange`].
    pub(super) fn bytes(&self, offset: u64, len_bytes: usize) -> Result<SharedBytes<'_>, OutOfRange> {
        let at = self.range(offset, len_bytes)?;
        // SAFETY: `range` proved that the bytes lie in the mapping, which self keeps; no Rust reference covers it.
        Ok(unsafe { SharedBytes::new(at, len_bytes) })
    }

    /// `len_bytes` from `offset`, to be copied in. Errors: [`OutOfRange`].
    pub(super) fn bytes_mut(&self, offset: u64, len_bytes: usize) -> Result<SharedBytesMut<'_>, OutOfRange> {
        let at = self.range(offset, len_bytes)?;
        // SAFETY: as in `bytes`; the mapping is writable.
        Ok(unsafe { SharedBytesMut::new(at, len_bytes) })
    }

    /// The word at `offset`, a multiple of 4, for both sides to synchronize by. Panics where there is none.
    pub(super) fn word(&self, offset: u64) -> &AtomicU32 {
        let at = self.aligned::<AtomicU32>(offset);
        // SAFETY: `aligned` proved that the word lies in the mapping, which self keeps, and is aligned. Both sides access it
        // whole; nothing else in this process covers it while it is a word.
        unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }
    }

    /// The double word at `offset`, a multiple of 8. As [`Segment::word`].
    pub(super) fn word64(&self, offset: u64) -> &AtomicU64 {
        let at = self.aligned::<AtomicU64>(offset);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    fn aligned<T>(&self, offset: u64) -> NonNull<u8> {
        let at = self.range(offset, size_of::<T>()).expect("callers name words inside the segment");
        assert!(at.cast::<T>().is_aligned(), "a word at offset {offset}");
        at
    }

    /// Address of `offset`, when `len_bytes` from there lie in the mapping. Errors: [`OutOfRange`].
    pub(super) fn range(&self, offset: u64, len_bytes: usize) -> Result<NonNull<u8>, OutOfRange> {
        let (segment, needed) = (self.id, len_bytes as u64);
        if offset.checked_add(needed).is_none_or(|end| end > self.len_bytes()) {
            return Err(OutOfRange { segment, offset, needed, len_bytes: self.len_bytes() });
        }
        let at = self.memory.as_mut_ptr().wrapping_add(offset as usize);
        Ok(NonNull::new(at).expect("mmap never maps at 0 unless asked to"))
    }

    /// Where the mapping begins in this process.
    pub fn address(&self) -> usize {
        self.memory.as_mut_ptr().addr()
    }

    /// The bytes from `offset` on as a pointer, for whoever hands them to another library. Errors: [`OutOfRange`].
    pub fn at(&self, offset: u64, len_bytes: usize) -> Result<NonNull<u8>, OutOfRange> {
        self.range(offset, len_bytes)
    }

    /// Bytes of memory behind the segment. Errors: the kernel's.
    pub fn resident_bytes(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.fd)?.st_blocks as u64 * 512)
    }

    /// Gives the whole pages of a range back to the system; they read as zeros then. Errors: the kernel's.
    pub fn punch(&self, offset: u64, len_bytes: u64) -> Result<(), Errno> {
        let page = page_size() as u64;
        let (start, end) = (offset.next_multiple_of(page), (offset + len_bytes) / page * page);
        if start >= end {
            return Ok(());
        }
        fallocate(&self.fd, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, start, end - start)
    }

    /// In a forked child: puts memory of its own in place of the shared, with copies of these (offset, bytes) of it and
    /// zeros elsewhere. Errors: the kernel's, and INVAL for a range outside.
    pub fn make_private(&self, ranges: &[(u64, u64)]) -> Result<(), Errno> {
        let len = self.memory.len();
        for &(offset, len_bytes) in ranges {
            self.range(offset, len_bytes as usize).map_err(|_| Errno::INVAL)?;
        }
        // SAFETY: a new mapping where the kernel chooses.
        let copy = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let filled = ranges.iter().try_for_each(|&(offset, len_bytes)| {
            // SAFETY: inside the new mapping, as checked, which is zeroed and which nobody else knows.
            let target =
                unsafe { std::slice::from_raw_parts_mut(copy.cast::<u8>().add(offset as usize), len_bytes as usize) };
            self.read_exactly(offset, target)
        });
        if let Err(errno) = filled {
            // SAFETY: the new mapping, to which no slice is left.
            let _ = unsafe { munmap(copy, len) };
            return Err(errno);
        }
        // SAFETY: it takes the place of self's mapping, as long and as writable; whoever has its address finds the same
        // bytes where the ranges are, and self unmaps what is there at its end.
        unsafe { mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, self.memory.as_mut_ptr().cast()) }?;
        Ok(())
    }

    fn read_exactly(&self, offset: u64, mut target: &mut [u8]) -> Result<(), Errno> {
        let mut at = offset;
        while !target.is_empty() {
            let read = match pread(&self.fd, &mut *target, at) {
                Ok(0) => return Err(Errno::INVAL), // the file ends before the mapping: it is sealed, so it does not
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            target = &mut target[read..];
            at += read as u64;
        }
        Ok(())
    }

    /// Errors: [`SegmentFault::SameMemory`] when one of the others maps the same file. Two locations would name one byte
    /// then, and neither the proof that outputs overlap nothing would hold, nor that no call writes into lanes.
    pub fn apart_from<'a>(&self, others: impl IntoIterator<Item = &'a Segment>) -> Result<(), BadSegment> {
        match others.into_iter().find(|other| other.file == self.file) {
            None => Ok(()),
            Some(other) => Err(self.refused(SegmentFault::SameMemory { other: other.id })),
        }
    }

    pub(super) fn refused(&self, fault: SegmentFault) -> BadSegment {
        BadSegment { segment: self.id, fault }
    }
}

// SAFETY: the mapping stays where it is, readable and writable, until the segment is dropped.
unsafe impl HostMemory for Segment {
    fn range(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(self.memory.as_mut_ptr()).expect("mmap never maps at 0 unless asked to"), self.memory.len())
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Segment");
        shown.field("id", &self.id).field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SegmentId = SegmentId(3);

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let ours = Segment::create(ID, "test", 8192).unwrap();
        let theirs = Segment::map(SegmentId(4), ours.try_clone_fd().unwrap(), 8192).unwrap();
        ours.write(8184, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(theirs.read(8184, 8).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(ours.apart_from([&theirs]).is_err());
        assert!(ours.write(8185, &[0; 8]).is_err());
        assert!(ours.read(u64::MAX, 2).is_err());
    }

    #[test]
    fn what_is_no_sealed_memfd_of_that_length_is_refused() {
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 4096).unwrap();
        let text = |result: Result<Segment, BadSegment>| result.unwrap_err().to_string();
        assert!(text(Segment::map(ID, unsealed, 4096)).contains("F_SEAL_SHRINK"));
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(text(Segment::map(ID, file.into(), 4096)).contains("memfd"));
        let segment = Segment::create(ID, "test", 4096).unwrap();
        for len_bytes in [4095, 8192] {
            let error = text(Segment::map(ID, segment.try_clone_fd().unwrap(), len_bytes));
            assert!(error.contains("4096 in the file"), "{error}");
        }
        for (id, len_bytes) in [(ID, 0), (ID, u64::MAX), (SegmentId(SegmentId::LIMIT), 4096)] {
            assert!(Segment::map(id, segment.try_clone_fd().unwrap(), len_bytes).is_err());
        }
    }
}
