//! Tensors by handle, over memory of others or of libtorch's allocator, and the stream that work on them goes to.

use std::ffi::c_void;
use std::ptr;

use super::library::{Element, Handle, Libtorch, StreamGuard, check};

/// Sizes, and how many elements lie between two that are neighbours along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime::ort) struct Layout<const RANK: usize> {
    pub(in crate::runtime::ort) sizes: [i64; RANK],
    pub(in crate::runtime::ort) strides: [i64; RANK],
}

impl<const RANK: usize> Layout<RANK> {
    /// The last axis lies densest.
    pub(in crate::runtime::ort) fn contiguous(sizes: [i64; RANK]) -> Self {
        let mut strides = [1; RANK];
        for axis in (1..RANK).rev() {
            strides[axis - 1] = strides[axis] * sizes[axis].max(1);
        }
        Self { sizes, strides }
    }

    pub(super) fn swapped(mut self, one: usize, other: usize) -> Self {
        self.sizes.swap(one, other);
        self.strides.swap(one, other);
        self
    }
}

impl Layout<4> {
    /// [batch, heads, length, size] that lies as [batch, length, heads, size].
    pub(in crate::runtime::ort) fn by_row([batch, heads, length, size]: [i64; 4]) -> Self {
        Self::contiguous([batch, length, heads, size]).swapped(1, 2)
    }
}

/// Where tensors lie, and the stream that this thread's work on them goes to as long as this lives.
pub(in crate::runtime::ort) struct Device {
    pub(super) libtorch: &'static Libtorch,
    ordinal: i32,
    guard: *mut StreamGuard,
}

impl Device {
    /// Makes a stream of a device the current one of this thread; null is the default stream. Errors: libtorch's.
    ///
    /// # Safety
    /// The stream is live and of this device until what is put on it is done.
    pub(in crate::runtime::ort) unsafe fn enter(
        libtorch: &'static Libtorch,
        ordinal: i32,
        stream: *mut c_void,
    ) -> ort::Result<Self> {
        let mut guard = ptr::null_mut();
        // SAFETY: writes one pointer, which Device deletes once; the stream is as the caller says.
        unsafe { check!(libtorch, aoti_torch_create_cuda_stream_guard(stream, ordinal, &raw mut guard)) }?;
        Ok(Self { libtorch, ordinal, guard })
    }

    /// A tensor over memory of somebody else's. Errors: libtorch's.
    ///
    /// # Safety
    /// `start` is the device's memory of all that the layout names, and stays until the work on it that is put on the stream is
    /// done; nobody else writes to it meanwhile, nor reads it where that work writes.
    pub(in crate::runtime::ort) unsafe fn over<const RANK: usize>(
        &self,
        start: *mut c_void,
        layout: Layout<RANK>,
        element: Element,
    ) -> ort::Result<Tensor> {
        let Layout { sizes, strides } = layout;
        let (dtype, device_type) = (self.libtorch.dtype(element), self.libtorch.device_type());
        Tensor::made(self.libtorch, |made| {
            // SAFETY: both arrays have RANK numbers; writes one handle; the memory is as the caller says.
            unsafe {
                check!(
                    self.libtorch,
                    aoti_torch_create_tensor_from_blob(
                        start,
                        RANK as i64,
                        sizes.as_ptr(),
                        strides.as_ptr(),
                        0,
                        dtype,
                        device_type,
                        self.ordinal,
                        made,
                    )
                )
            }
        })
    }

    /// A tensor of libtorch's allocator, whose elements nobody wrote. Errors: libtorch's, for want of memory.
    pub(super) fn empty<const RANK: usize>(&self, layout: Layout<RANK>, element: Element) -> ort::Result<Tensor> {
        let Layout { sizes, strides } = layout;
        let (dtype, device_type) = (self.libtorch.dtype(element), self.libtorch.device_type());
        Tensor::made(self.libtorch, |made| {
            // SAFETY: both arrays have RANK numbers; writes one handle.
            unsafe {
                check!(
                    self.libtorch,
                    aoti_torch_empty_strided(
                        RANK as i64,
                        sizes.as_ptr(),
                        strides.as_ptr(),
                        dtype,
                        device_type,
                        self.ordinal,
                        made,
                    )
                )
            }
        })
    }

    /// What stands for a tensor that is not given. Errors: libtorch's.
    pub(super) fn undefined(&self) -> ort::Result<Tensor> {
        Tensor::made(self.libtorch, |made| {
            // SAFETY: writes one handle.
            unsafe { check!(self.libtorch, aoti_torch_new_uninitialized_tensor(made)) }
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made by `enter` on this thread (a pointer is not sent to another), deleted once.
        if let Err(error) = unsafe { check!(self.libtorch, aoti_torch_delete_cuda_stream_guard(self.guard)) } {
            tracing::warn!(%error, "libtorch did not set the stream of before");
        }
    }
}

/// A handle of libtorch's; deleted when it drops. Memory of libtorch's allocator goes back then, and to those alone who come
/// behind on the same stream.
pub(in crate::runtime::ort) struct Tensor {
    libtorch: &'static Libtorch,
    raw: Handle,
}

impl Tensor {
    fn made(libtorch: &'static Libtorch, make: impl FnOnce(*mut Handle) -> ort::Result<()>) -> ort::Result<Self> {
        let mut raw = ptr::null_mut();
        make(&raw mut raw)?;
        // SAFETY: what libtorch gave, to its receiver alone.
        unsafe { Self::given(libtorch, raw) }
    }

    /// Errors: null, which libtorch does not give where it succeeds.
    ///
    /// # Safety
    /// `raw` is a live handle that nobody else deletes, or null.
    pub(super) unsafe fn given(libtorch: &'static Libtorch, raw: Handle) -> ort::Result<Self> {
        if raw.is_null() {
            return Err(ort::Error::new("libtorch gave no tensor where its function succeeded"));
        }
        Ok(Self { libtorch, raw })
    }

    pub(super) fn handle(&self) -> Handle {
        self.raw
    }

    /// Has the stream write what `from` holds, element by element, broadcast to this one's sizes. Errors: libtorch's.
    pub(in crate::runtime::ort) fn copy_from(&self, from: &Self) -> ort::Result<()> {
        // SAFETY: both handles are live.
        unsafe { check!(self.libtorch, aoti_torch_copy_(self.raw, from.raw, 1)) }
    }

    pub(super) fn fill(&self, value: f64) -> ort::Result<()> {
        // SAFETY: the handle is live.
        unsafe { check!(self.libtorch, aoti_torch_cuda_fill__Scalar(self.raw, value)) }
    }

    /// Its layout, of this rank. Errors: another rank, libtorch's.
    pub(super) fn layout<const RANK: usize>(&self) -> ort::Result<Layout<RANK>> {
        let (mut rank, mut sizes, mut strides) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handle is live; writes a number.
        unsafe { check!(self.libtorch, aoti_torch_get_dim(self.raw, &raw mut rank)) }?;
        if rank != RANK as i64 {
            return Err(ort::Error::new(format!("libtorch gave a tensor of rank {rank}, expected {RANK}")));
        }
        // SAFETY: the handle is live; each writes one pointer to `rank` numbers, which stay as long as the tensor.
        unsafe {
            check!(self.libtorch, aoti_torch_get_sizes(self.raw, &raw mut sizes))?;
            check!(self.libtorch, aoti_torch_get_strides(self.raw, &raw mut strides))?;
            Ok(Layout { sizes: *sizes.cast(), strides: *strides.cast() })
        }
    }

    /// The same elements in another layout, which names none that this one has not. Errors: libtorch's.
    pub(super) fn viewed<const RANK: usize>(&self, layout: Layout<RANK>) -> ort::Result<Self> {
        let (Layout { sizes, strides }, mut offset) = (layout, 0);
        // SAFETY: the handle is live; writes a number.
        unsafe { check!(self.libtorch, aoti_torch_get_storage_offset(self.raw, &raw mut offset)) }?;
        Self::made(self.libtorch, |made| {
            let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
            // SAFETY: the handle is live; both arrays have RANK numbers; writes one handle, which shares the memory.
            unsafe {
                check!(
                    self.libtorch,
                    aoti_torch__reinterpret_tensor(self.raw, RANK as i64, sizes, strides, offset, made)
                )
            }
        })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: live, and deleted once.
        if let Err(error) = unsafe { check!(self.libtorch, aoti_torch_delete_tensor_object(self.raw)) } {
            tracing::warn!(%error, "libtorch did not delete a tensor");
        }
    }
}
