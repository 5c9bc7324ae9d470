//! torch's tensors through DLPack's C exchange API (DLPack 1.2: `dlpack.h`), the one place of this crate with unsafe code.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rust_ort::tensor::DType;

use crate::blocks::Block;

const CAPSULE: &CStr = c"dlpack_exchange_api";
/// The version that this file spells out; a provider of another major version has other structs.
const VERSION: Version = Version { major: 1, minor: 0 };
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct Api {
    version: Version,
    previous: *const Api,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    object_from_managed: unsafe extern "C" fn(*mut Managed, *mut *mut c_void) -> c_int,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: *const c_void,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        let code = match dtype {
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
            DType::F16 | DType::F32 | DType::F64 => 2,
            DType::BF16 => 4,
            DType::C64 | DType::C128 => 5,
            DType::Bool => 6,
            DType::F8E4M3FN => 10,
            DType::F8E4M3FNUZ => 11,
            DType::F8E5M2 => 12,
            DType::F8E5M2FNUZ => 13,
        };
        Self { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
    }
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`, and behind it what its deleter lets go of.
#[repr(C)]
struct Managed {
    version: Version,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: Tensor,
    /// Not DLPack's: nobody else looks behind the struct.
    owned: Owned,
}

/// What a tensor is made over.
struct Owned {
    _block: Arc<Block>,
    dims: Box<[i64]>,
}

/// What torch says of a tensor, for as long as nothing runs in between.
pub struct Seen<'a> {
    /// Address of the first element; 0 where it has no memory.
    pub address: usize,
    /// Of the elements.
    pub dtype: ElementType,
    /// In elements.
    pub shape: &'a [i64],
    /// In elements.
    pub strides: &'a [i64],
}

impl Seen<'_> {
    /// Row-major and without gaps. A dimension of one element may have any stride.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        }) || self.shape.contains(&0)
    }
}

/// torch's side of the exchange.
#[derive(Clone, Copy)]
pub struct Exchange {
    api: NonNull<Api>,
}

// SAFETY: torch's table is static and constant.
unsafe impl Send for Exchange {}
// SAFETY: as for Send.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// Of `torch.Tensor`. Errors: RuntimeError where its DLPack is another.
    pub fn of(tensor_type: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsule = tensor_type.getattr("__dlpack_c_exchange_api__")?.cast_into::<PyCapsule>()?;
        let mut api: NonNull<Api> = capsule.pointer_checked(Some(CAPSULE))?.cast();
        loop {
            // SAFETY: DLPack promises a table that lives as long as the process and begins so in every version.
            let table = unsafe { ptr::read(api.as_ptr().cast::<(Version, *const Api)>()) };
            if table.0.major == VERSION.major {
                break;
            }
            api = NonNull::new(table.1.cast_mut()).ok_or_else(|| {
                let Version { major, minor } = table.0;
                PyRuntimeError::new_err(format!(
                    "torch's DLPack is {major}.{minor}, expected {}.x; install a torch that this rust_ort names",
                    VERSION.major
                ))
            })?;
        }
        let found = Self { api };
        if found.table().tensor_from_object.is_none() {
            return Err(PyRuntimeError::new_err("torch's DLPack exchange cannot show a tensor without owning it"));
        }
        Ok(found)
    }

    fn table(&self) -> &Api {
        // SAFETY: of the version that `Api` spells out, as `of` checked, and static.
        unsafe { self.api.as_ref() }
    }

    /// What `look` makes of a tensor of the type that the exchange is of; None where torch cannot show it, as a sparse or a
    /// wrapped one, or where it is not in memory of the host, or of CUDA's device of this number. `look` must not run Python
    /// code.
    pub fn see<R>(
        &self,
        tensor: &Bound<'_, PyAny>,
        device: Option<i32>,
        look: impl FnOnce(&Seen<'_>) -> R,
    ) -> Option<R> {
        let mut seen = Tensor {
            data: ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            dtype: ElementType { code: 0, bits: 0, lanes: 0 },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let show = self.table().tensor_from_object?;
        // SAFETY: the caller gives a torch.Tensor; torch fills the struct, or sets a Python error and says so.
        if unsafe { show(tensor.as_ptr().cast(), &raw mut seen) } != 0 {
            drop(PyErr::take(tensor.py()));
            return None;
        }
        let on_host = seen.device_type == CPU || seen.device_type == CUDA_HOST;
        let is_there = match device {
            None => on_host,
            Some(_) if rust_ort::cuda::on_host() => on_host,
            Some(ordinal) => seen.device_type == CUDA && seen.device_id == ordinal,
        };
        if !is_there {
            return None;
        }
        let dims = |at: *mut i64| {
            if at.is_null() || seen.ndim <= 0 {
                return &[][..];
            }
            // SAFETY: torch's own arrays of ndim numbers, which stay as long as nothing changes the tensor: the GIL is
            // held and `look` runs no Python.
            unsafe { slice::from_raw_parts(at, seen.ndim as usize) }
        };
        Some(look(&Seen {
            address: if seen.data.is_null() { 0 } else { seen.data.addr() + seen.byte_offset as usize },
            dtype: seen.dtype,
            shape: dims(seen.shape),
            strides: dims(seen.strides),
        }))
    }

    /// A torch tensor over a block from `offset` bytes on; it keeps the block. dims: shape, then strides in elements, of a
    /// tensor that fits the block. Errors: torch's.
    pub fn tensor<'py>(
        &self,
        py: Python<'py>,
        block: Arc<Block>,
        offset: usize,
        dtype: DType,
        dims: &[i64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let ndim = dims.len() / 2;
        let room = block.len_bytes().saturating_sub(offset);
        assert!(fits(&dims[..ndim], &dims[ndim..], dtype.size_bytes(), room), "a tensor over a block that holds it");
        let managed = Box::into_raw(Box::new(Managed {
            version: VERSION,
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete),
            flags: 0,
            tensor: Tensor {
                data: block.memory().as_ptr().wrapping_add(offset).cast(),
                device_type: CPU,
                device_id: 0,
                ndim: ndim as i32,
                dtype: dtype.into(),
                shape: ptr::null_mut(),
                strides: ptr::null_mut(),
                byte_offset: 0,
            },
            owned: Owned { _block: block, dims: dims.into() },
        }));
        let mut made = ptr::null_mut();
        // SAFETY: `managed` is ours until torch has it, which calls the deleter at most once: where it fails it may never.
        // What the tensor describes lies in the block, as asserted, and its dims stay where they are.
        let failed = unsafe {
            let dims = (*managed).owned.dims.as_mut_ptr();
            (*managed).tensor.shape = dims;
            (*managed).tensor.strides = dims.add(ndim);
            (self.table().object_from_managed)(managed, &raw mut made) != 0
        };
        if failed {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, which is ours.
        unsafe { Bound::from_owned_ptr_or_err(py, made.cast()) }
    }
}

/// Whether every element lies within so many bytes.
pub fn fits(shape: &[i64], strides: &[i64], itemsize: usize, len_bytes: usize) -> bool {
    if shape.contains(&0) {
        return shape.iter().all(|&size| size >= 0);
    }
    let last = shape.iter().zip(strides).try_fold(0_i64, |last, (&size, &stride)| {
        (size > 0 && stride >= 0).then(|| last.checked_add((size - 1).checked_mul(stride)?)).flatten()
    });
    last.and_then(|last| (last as usize).checked_add(1)?.checked_mul(itemsize)).is_some_and(|bytes| bytes <= len_bytes)
}

/// From any thread, with or without the GIL.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: from `Exchange::tensor`'s Box, and called once.
    drop(unsafe { Box::from_raw(managed) });
}

/// Copies `len_bytes` of memory that torch showed into a block.
///
/// Errors: none; panics where the block ends before.
pub fn copy_in(block: &Block, offset: usize, address: usize, len_bytes: usize) {
    assert!(offset + len_bytes <= block.len_bytes());
    // SAFETY: `Exchange::see` gave the address and the caller the length of a row-major tensor there, which lives as long
    // as its Python object; the target is inside the block, which nobody else writes while a call is being prepared. A
    // tensor may lie in the same block: `copy` allows it.
    unsafe {
        ptr::copy(ptr::with_exposed_provenance::<u8>(address), block.memory().as_ptr().wrapping_add(offset), len_bytes);
    }
}
