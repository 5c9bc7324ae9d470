//! What travels in the place of an allocation or an event: 64 bytes that another process opens.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::CudaError;

/// CUipcMemHandle or CUipcEventHandle: 64 bytes, opaque. One of an allocation is another after the address is used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IpcHandle([[u8; 32]; 2]); // serde knows no arrays of 64

impl IpcHandle {
    /// Bytes of a handle.
    pub const LEN: usize = 64;

    /// A handle as [`IpcHandle::bytes`] gives it. Errors: Handle, of another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CudaError> {
        let wrong = || CudaError::Handle {
            what: "handle",
            reason: format!(
                "expected 64 bytes, got {}; torch's default CUDA allocator is needed (not cudaMallocAsync)",
                bytes.len()
            ),
        };
        bytes.try_into().map(Self::of_array).map_err(|_| wrong())
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        std::array::from_fn(|at| self.0[at / 32][at % 32])
    }

    /// The memory handle inside what torch's `UntypedStorage._share_cuda_()` gives: 64 raw bytes, or a version byte (2 up
    /// to torch 2.12, 3 from 2.13: same payload), a type byte (`c` cudaMalloc, `e` expandable segment) and 64 bytes.
    ///
    /// Errors: NotExportable for an expandable segment, Handle for another length.
    pub fn memory_from_torch(bytes: &[u8]) -> Result<Self, CudaError> {
        match bytes {
            [_version, b'e', ..] if bytes.len() != Self::LEN => Err(CudaError::expandable_segment()),
            [_version, b'c', raw @ ..] if raw.len() == Self::LEN => Self::from_bytes(raw),
            _ => Self::from_bytes(bytes),
        }
    }

    pub(super) fn of_array(bytes: [u8; Self::LEN]) -> Self {
        Self([std::array::from_fn(|at| bytes[at]), std::array::from_fn(|at| bytes[32 + at])])
    }
}

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle(")?;
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> [u8; 64] {
        std::array::from_fn(|at| at as u8)
    }

    #[test]
    fn bytes_are_those_it_was_made_of() {
        assert_eq!(IpcHandle::from_bytes(&raw()).unwrap().bytes(), raw());
    }

    #[test]
    fn memory_handle_is_read_in_each_form_torch_writes() {
        let expected = IpcHandle::from_bytes(&raw()).unwrap();
        assert_eq!(IpcHandle::memory_from_torch(&raw()).unwrap(), expected);
        for version in [2, 3] {
            let wrapped = [&[version, b'c'][..], &raw()].concat();
            assert_eq!(IpcHandle::memory_from_torch(&wrapped).unwrap(), expected);
        }
    }

    #[test]
    fn raw_memory_handle_that_looks_like_an_expandable_segment_is_still_raw() {
        let mut raw = raw();
        raw[1] = b'e';
        assert!(IpcHandle::memory_from_torch(&raw).is_ok());
    }

    #[test]
    fn expandable_segment_is_refused_with_the_setting_to_change() {
        let error = IpcHandle::memory_from_torch(&[&[3, b'e'][..], &[0; 90]].concat()).unwrap_err();
        assert!(error.to_string().contains("without expandable_segments:True"), "{error}");
    }

    #[test]
    fn handle_of_another_length_is_refused() {
        for len in [0, 1, 2, 63, 65, 67, 1000] {
            assert!(IpcHandle::memory_from_torch(&vec![b'c'; len]).is_err(), "{len}");
            assert!(IpcHandle::from_bytes(&vec![b'c'; len]).is_err(), "{len}");
        }
    }
}
