//! A mapped memfd.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::ShmError;
use crate::base::ids::SegmentId;
use crate::tensor::{SharedBytes, SharedBytesMut, TensorRef};

/// A memfd mapped whole, shared, readable and writable; unmapped on drop. It cannot shrink, so that no access inside it
/// can fault. Other processes may write it at any time: its bytes are read as plain bytes, and nothing that Rust trusts
/// (lengths, tags) is used before it was copied out.
pub struct Segment {
    id: SegmentId,
    fd: OwnedFd,
    start: NonNull<u8>,
    len_bytes: usize,
    file: (u64, u64),
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives until drop.
unsafe impl Send for Segment {}
// SAFETY: through `&Segment` one gets only raw pointers and atomics.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps a segment that a peer made. Errors: the id or the length is out of range, the descriptor is no memfd, is not
    /// sealed against shrinking, or has another length.
    pub fn map(id: SegmentId, fd: OwnedFd, len_bytes: u64) -> Result<Self, ShmError> {
        let bad = |reason: String| ShmError::BadSegment { segment: id, reason };
        if id.0 >= SegmentId::LIMIT {
            return Err(bad(format!("ids are below {}", SegmentId::LIMIT)));
        }
        if len_bytes == 0 || len_bytes > TensorRef::OFFSET_LIMIT {
            return Err(bad(format!("{len_bytes} bytes: expected 1 to {}", TensorRef::OFFSET_LIMIT)));
        }
        let seals =
            fcntl_get_seals(&fd).map_err(|error| bad(format!("no memfd ({error}); make it by memfd_create")))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("not sealed against shrinking; add F_SEAL_SHRINK before sending it".to_owned()));
        }
        let stat = fstat(&fd).map_err(|error| bad(error.to_string()))?;
        if stat.st_size as u64 != len_bytes {
            return Err(bad(format!("{len_bytes} bytes announced, {} in the file", stat.st_size)));
        }
        let len = len_bytes as usize;
        // SAFETY: a fresh shared mapping at an address the kernel chooses touches no existing memory; the file has
        // `len` bytes and, sealed, keeps them.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) }
                .map_err(|error| bad(format!("mmap of {len_bytes} bytes: {error}")))?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { id, fd, start, len_bytes: len, file: (stat.st_dev, stat.st_ino) })
    }

    /// Makes a sealed, zeroed segment. For clients written in Rust and for tests. Errors: the kernel's.
    pub fn create(id: SegmentId, name: &str, len_bytes: u64) -> Result<Self, ShmError> {
        let failed = |error: rustix::io::Errno| ShmError::BadSegment { segment: id, reason: error.to_string() };
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        ftruncate(&fd, len_bytes).map_err(failed)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        Self::map(id, fd, len_bytes)
    }

    /// As given by the client.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Length of the mapping.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    /// The memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor of the memfd, to be sent. Errors: out of descriptors.
    pub fn try_clone_fd(&self) -> std::io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Copies `bytes` to `offset`. Errors: [`ShmError::OutOfRange`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ShmError> {
        let at = self.range(offset, bytes.len())?;
        // SAFETY: `range` proved that the target lies in the mapping, which self keeps; no Rust reference covers it.
        unsafe { SharedBytesMut::new(at, bytes.len()) }.copy_in(bytes);
        Ok(())
    }

    /// Copies `len_bytes` from `offset`. Errors: [`ShmError::OutOfRange`].
    pub fn read(&self, offset: u64, len_bytes: usize) -> Result<Vec<u8>, ShmError> {
        Ok(self.bytes(offset, len_bytes)?.to_vec())
    }

    /// `len_bytes` from `offset`, to be copied out. Errors: [`ShmError::OutOfRange`].
    pub(super) fn bytes(&self, offset: u64, len_bytes: usize) -> Result<SharedBytes<'_>, ShmError> {
        let at = self.range(offset, len_bytes)?;
        // SAFETY: `range` proved that the bytes lie in the mapping, which self keeps; no Rust reference covers it.
        Ok(unsafe { SharedBytes::new(at, len_bytes) })
    }

    /// Address of `offset`, when `len_bytes` from there lie in the mapping. Errors: [`ShmError::OutOfRange`].
    pub(super) fn range(&self, offset: u64, len_bytes: usize) -> Result<NonNull<u8>, ShmError> {
        match offset.checked_add(len_bytes as u64) {
            Some(end) if end <= self.len_bytes as u64 => {
                // SAFETY: offset ≤ end ≤ length of the mapping.
                Ok(unsafe { self.start.add(offset as usize) })
            }
            _ => Err(ShmError::OutOfRange {
                segment: self.id,
                offset,
                needed: len_bytes as u64,
                len_bytes: self.len_bytes as u64,
            }),
        }
    }

    /// Errors: [`ShmError::BadSegment`] when one of the others maps the same file. Two locations would name one byte then,
    /// and neither the proof that outputs overlap nothing would hold, nor that no call writes into lanes.
    pub fn apart_from<'a>(&self, others: impl IntoIterator<Item = &'a Segment>) -> Result<(), ShmError> {
        match others.into_iter().find(|other| other.file == self.file) {
            None => Ok(()),
            Some(other) => {
                let reason = format!("the same memory is attached as segment {}; send another memfd", other.id.0);
                Err(ShmError::BadSegment { segment: self.id, reason })
            }
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone; every pointer into it is used only while an Arc of this segment is held.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "start and length are those of mmap");
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("id", &self.id).field("len_bytes", &self.len_bytes).finish_non_exhaustive()
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
        let text = |result: Result<Segment, ShmError>| result.unwrap_err().to_string();
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
