//! A call of given dtypes and shapes: where its inputs come to lie, and the tensors it writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyList, PyType};
use rust_ort::shm::{RecordHead, descriptors};
use rust_ort::tensor::{DType, TensorDesc};

use crate::blocks::{Block, Blocks, PyBlock, block_bytes};
use crate::device::{DeviceBlocks, Finder};
use crate::dlpack::{ElementType, Exchange, copy_in, fits};
use crate::segment::value_error;

/// Most of the inputs that are copied in each call share one block.
const POOLED_BYTES: usize = 4 << 20;
/// Kernels of a device read wide words without asking whether a tensor is aligned to them: its allocators align more. A
/// view that begins elsewhere is copied.
pub const DEVICE_ALIGN_BYTES: usize = 16;
/// What lies row-major, up to so much in a call, is copied here by one thread: torch's pool goes on spinning after a copy of
/// its own on the cores where the executor is about to run.
const COPIED_BYTES: usize = 8 << 20;

/// torch's types and its tensors' way in and out.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    pub exchange: Exchange,
}

/// Errors: where torch cannot be imported or is too old.
pub fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let tensor = torch.getattr("Tensor")?.cast_into::<PyType>()?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?;
        Ok(Torch { exchange: Exchange::of(&tensor)?, tensor: tensor.unbind(), parameter: parameter.unbind() })
    })
}

impl Torch {
    /// Whether a value is a tensor, or a parameter, and no subclass of either.
    fn is_plain(&self, value: &Bound<'_, PyAny>) -> bool {
        let kind = value.get_type_ptr();
        kind == self.tensor.as_ptr().cast() || kind == self.parameter.as_ptr().cast()
    }
}

/// What one input of a plan looks like.
struct Slot {
    desc: TensorDesc,
    element: ElementType,
    len_bytes: usize,
    /// Where in the block of pooled inputs it is copied to.
    pooled_at: Option<usize>,
    kind: Kind,
    /// Number of the device that it lies on; None: the host.
    device: Option<i32>,
}

enum Kind {
    Tensor,
    /// A parameter or a buffer, which may be moved into shared memory.
    State,
    /// A float, and its value where that decides the outputs' shapes.
    Float(Option<f64>),
    /// As Float.
    Int(Option<i64>),
}

/// One output. Dims: shape, then strides.
struct Output {
    dtype: DType,
    dims: Box<[i64]>,
    block_bytes: usize,
    is_empty: bool,
    /// The caller makes it: it lies on a device.
    on_device: bool,
}

/// What a plan is made of, and its calls keep.
pub struct Planned {
    /// Unlike any other plan's, and not 0.
    pub number: u64,
    /// Of every call's record.
    pub head: RecordHead,
    /// Of every call's record.
    pub descriptors: Vec<u8>,
    /// That the newest call was inside the runtime.
    pub run_ns: AtomicU64,
    slots: Vec<Slot>,
    outputs: Vec<Output>,
    pooled_bytes: usize,
    /// Blocks of pooled inputs that no call uses: one call uses one at a time, then the next, so that the executor finds
    /// what it bound.
    buffers: Mutex<Vec<Arc<Block>>>,
}

/// Everything about a call that depends on the inputs' dtypes and shapes alone.
#[pyclass(frozen)]
pub struct Plan(Arc<Planned>);

/// An input: ONNX code of its dtype, shape, "tensor", "state", "int" or "float", value of a number that decides shapes,
/// number of the device that it lies on.
type InputSpec<'py> = (i32, Vec<i64>, String, Option<Bound<'py, PyAny>>, Option<i32>);
/// An output: ONNX code of its dtype, shape, strides in elements, whether it lies on a device.
type OutputSpec = (i32, Vec<i64>, Vec<i64>, bool);

fn described(code: i32, shape: Vec<i64>) -> PyResult<TensorDesc> {
    let dtype = DType::from_onnx(code).map_err(value_error)?;
    TensorDesc::new(dtype, shape).map_err(value_error)
}

/// What was found where an input is to be.
enum Found {
    /// A tensor without elements.
    Nothing,
    Number([u8; 8]),
    /// as_is: its values are what its memory says.
    Tensor {
        as_is: bool,
        seen: Place,
    },
}

/// Where a tensor's elements are, until any Python code runs.
#[derive(Clone, Copy)]
struct Place {
    address: usize,
    row_major: bool,
}

impl Slot {
    fn new((code, shape, kind, value, device): InputSpec<'_>) -> PyResult<Self> {
        let desc = described(code, shape)?;
        let kind = match kind.as_str() {
            "tensor" => Kind::Tensor,
            "state" => Kind::State,
            "float" => Kind::Float(value.map(|value| value.extract()).transpose()?),
            "int" => Kind::Int(value.map(|value| value.extract()).transpose()?),
            other => return Err(PyValueError::new_err(format!("a kind of input called {other:?}"))),
        };
        Ok(Self { element: desc.dtype.into(), len_bytes: desc.len_bytes(), desc, pooled_at: None, kind, device })
    }

    /// A number; None for another kind or value, or an int beyond 64 bits.
    fn number(&self, value: &Bound<'_, PyAny>) -> Option<Found> {
        match self.kind {
            Kind::Float(wanted) => {
                let given = value.cast_exact::<PyFloat>().ok()?.value();
                let same = wanted.is_none_or(|wanted| wanted.to_bits() == given.to_bits());
                same.then(|| Found::Number(given.to_le_bytes()))
            }
            Kind::Int(wanted) => {
                let given: i64 = value.cast_exact::<PyInt>().ok()?.extract().ok()?;
                wanted.is_none_or(|wanted| wanted == given).then(|| Found::Number(given.to_le_bytes()))
            }
            Kind::Tensor | Kind::State => None,
        }
    }

    /// What a value is as this input; None where it is another's, or has no memory. Nothing is copied. Errors: torch's.
    fn find(&self, torch: &Torch, value: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
        if !torch.is_plain(value) {
            return Ok(self.number(value));
        }
        if matches!(self.kind, Kind::Float(_) | Kind::Int(_)) {
            return Ok(None);
        }
        // Asked first: a mode of the user's is Python code.
        let as_is = !is_view_by_bit(value, self.desc.dtype)?;
        Ok(match self.see(torch, value) {
            Some(_) if self.len_bytes == 0 => Some(Found::Nothing),
            None | Some(Place { address: 0, .. }) => None,
            Some(seen) => Some(Found::Tensor { as_is, seen }),
        })
    }

    /// Where a tensor of this input's dtype and shape is.
    fn see(&self, torch: &Torch, value: &Bound<'_, PyAny>) -> Option<Place> {
        let seen = torch.exchange.see(value, self.device, |seen| {
            let same = seen.dtype == self.element && seen.shape == self.desc.shape.dims();
            same.then(|| Place { address: seen.address, row_major: seen.is_contiguous() })
        });
        seen.flatten()
    }

    /// Where in the arena a tensor of this input's dtype is that begins at an address.
    fn location(&self, blocks: &Blocks, devices: &mut Finder<'_>, address: usize) -> Option<u64> {
        let (location, align) = match self.device {
            None => (blocks.location_of(address), self.desc.dtype.size_bytes()),
            Some(_) => (devices.location(address), DEVICE_ALIGN_BYTES),
        };
        location.filter(|location| location.is_multiple_of(align as u64))
    }

    fn is_state(&self) -> bool {
        matches!(self.kind, Kind::State)
    }
}

impl Output {
    fn new((code, shape, strides, on_device): OutputSpec) -> PyResult<(TensorDesc, Self)> {
        if shape.len() != strides.len() {
            return Err(PyValueError::new_err("an output has as many strides as dims"));
        }
        let dims = [&shape[..], &strides].concat().into();
        let desc = described(code, shape)?;
        let bytes = desc.len_bytes();
        if !fits(desc.shape.dims(), &strides, desc.dtype.size_bytes(), bytes) {
            return Err(PyValueError::new_err("an output whose strides reach beyond its elements"));
        }
        let output = Self { dtype: desc.dtype, dims, block_bytes: block_bytes(bytes), is_empty: bytes == 0, on_device };
        Ok((desc, output))
    }
}

#[pymethods]
impl Plan {
    /// Errors: ValueError.
    #[new]
    fn new(inputs: Vec<InputSpec<'_>>, outputs: Vec<OutputSpec>) -> PyResult<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut slots: Vec<_> = inputs.into_iter().map(Slot::new).collect::<PyResult<_>>()?;
        let (descs, outputs): (Vec<_>, Vec<_>) =
            outputs.into_iter().map(Output::new).collect::<PyResult<Vec<_>>>()?.into_iter().unzip();
        let mut pooled_bytes = 0;
        let mut by_size: Vec<&mut Slot> =
            slots.iter_mut().filter(|slot| slot.len_bytes > 0 && slot.device.is_none()).collect();
        by_size.sort_by_key(|slot| slot.len_bytes);
        for slot in by_size {
            let size = block_bytes(slot.len_bytes);
            if pooled_bytes + size <= POOLED_BYTES {
                slot.pooled_at = Some(pooled_bytes);
                pooled_bytes += size;
            }
        }
        let descriptors = descriptors(slots.iter().map(|slot| &slot.desc).chain(&descs));
        let head = RecordHead::new(slots.len(), outputs.len(), descriptors.len());
        Ok(Self(Arc::new(Planned {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            head: head.map_err(value_error)?,
            descriptors,
            run_ns: AtomicU64::new(0),
            slots,
            outputs,
            pooled_bytes: if pooled_bytes == 0 { 0 } else { block_bytes(pooled_bytes) },
            buffers: Mutex::default(),
        })))
    }

    /// A call with these inputs, as far as it goes without Python; `Call.left` are those that are not placed. None where
    /// they are not the plan's, or only the caller can make plain tensors and numbers of them. move_state: whether states
    /// that are outside of shared memory are left to the caller. Errors: the arena's.
    fn gather(
        &self,
        py: Python<'_>,
        arena: &Bound<'_, PyAny>,
        blocks: &Blocks,
        devices: &DeviceBlocks,
        inputs: &Bound<'_, PyAny>,
        move_state: bool,
    ) -> PyResult<Option<Call>> {
        let planned = &self.0;
        if inputs.len()? != planned.slots.len() {
            return Ok(None);
        }
        let torch = torch(py)?;
        let values = inputs.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        // All of them first: of another plan's inputs none is copied.
        let mut found = Vec::with_capacity(values.len());
        for (slot, value) in planned.slots.iter().zip(&values) {
            let Some(one) = slot.find(torch, value)? else { return Ok(None) };
            found.push(one);
        }
        let mut call = Call {
            locations: vec![0; planned.slots.len() + planned.outputs.len()],
            buffer: None,
            own: HashMap::new(),
            kept: Vec::new(),
            held: Vec::new(),
            outputs: None,
            left: Vec::new(),
            copied: Vec::new(),
            copied_bytes: 0,
            planned: Arc::clone(planned),
        };
        // Then the blocks, since cutting one is Python code, and lets other threads run: who replaces a tensor's memory
        // meanwhile is met by what follows, which looks again at each input and has done with it before it goes on.
        let mut devices = devices.finder(); // `values` keeps the tensors
        let blocks_of_outputs = call.take_blocks(arena, (blocks, &mut devices), &found, move_state)?;
        for (index, (value, found)) in values.iter().zip(&found).enumerate() {
            if !call.place_input(torch, (blocks, &mut devices), (index, value), found, move_state) {
                return Ok(None);
            }
        }
        let outputs = PyList::empty(py);
        for (output, block) in planned.outputs.iter().zip(blocks_of_outputs) {
            match block {
                Some(block) => outputs.append(torch.exchange.tensor(py, block, 0, output.dtype, &output.dims)?)?,
                None => outputs.append(py.None())?,
            }
        }
        call.outputs = Some(outputs.unbind());
        Ok(Some(call))
    }
}

/// One call: where its inputs and outputs lie, and what keeps them.
#[pyclass]
pub struct Call {
    planned: Arc<Planned>,
    /// Of inputs, then outputs.
    locations: Vec<u64>,
    buffer: Option<Arc<Block>>,
    /// Blocks of inputs that are copied and are not pooled.
    own: HashMap<usize, Arc<Block>>,
    /// What the executor reads and is not the call's own.
    kept: Vec<Arc<Block>>,
    /// Tensors on a device, likewise.
    held: Vec<Py<PyAny>>,
    outputs: Option<Py<PyList>>,
    /// Inputs that are not placed yet.
    #[pyo3(get)]
    left: Vec<usize>,
    /// Inputs of which the executor reads a copy, in the order of copying.
    #[pyo3(get)]
    copied: Vec<usize>,
    copied_bytes: usize,
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.planned.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }
}

impl Planned {
    fn slot(&self, index: usize) -> PyResult<&Slot> {
        self.slots.get(index).ok_or_else(|| PyValueError::new_err("no such input"))
    }
}

impl Call {
    pub fn plan(&self) -> &Arc<Planned> {
        &self.planned
    }

    /// Lets go of tensors on a device: what comes on the stream of the call comes behind it.
    pub fn let_go_of_device(&mut self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut self.held)
    }

    pub fn placed(&self) -> &[u64] {
        &self.locations
    }

    /// Takes the blocks of pooled inputs, of large ones that will be copied, and of outputs, which it returns. Errors: the
    /// arena's.
    fn take_blocks(
        &mut self,
        arena: &Bound<'_, PyAny>,
        (blocks, devices): (&Blocks, &mut Finder<'_>),
        found: &[Found],
        move_state: bool,
    ) -> PyResult<Vec<Option<Arc<Block>>>> {
        let planned = Arc::clone(&self.planned);
        if planned.pooled_bytes > 0 {
            let kept = planned.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            self.buffer = Some(kept.map_or_else(|| blocks.block(arena, planned.pooled_bytes), Ok)?);
        }
        for (index, (slot, found)) in planned.slots.iter().zip(found).enumerate() {
            let copied = match found {
                Found::Nothing => false,
                Found::Number(_) => true,
                Found::Tensor { .. } if slot.device.is_some() => false,
                Found::Tensor { as_is, seen } => {
                    let state = slot.is_state() && move_state;
                    *as_is && seen.row_major && !state && slot.location(blocks, devices, seen.address).is_none()
                }
            };
            if copied && slot.pooled_at.is_none() && self.may_copy(slot) {
                self.make_place(arena, blocks, index)?;
            }
        }
        let mut of_outputs = Vec::with_capacity(planned.outputs.len());
        for (index, output) in planned.outputs.iter().enumerate() {
            let block =
                (!output.is_empty && !output.on_device).then(|| blocks.block(arena, output.block_bytes)).transpose()?;
            self.locations[planned.slots.len() + index] = block.as_ref().map_or(0, |block| block.location());
            of_outputs.push(block);
        }
        Ok(of_outputs)
    }

    /// Places an input, or leaves it; false where it is not the plan's any more.
    fn place_input(
        &mut self,
        torch: &Torch,
        (blocks, devices): (&Blocks, &mut Finder<'_>),
        (index, value): (usize, &Bound<'_, PyAny>),
        found: &Found,
        move_state: bool,
    ) -> bool {
        let planned = Arc::clone(&self.planned);
        let slot = &planned.slots[index];
        let as_is = match found {
            Found::Nothing => return true, // location 0: nothing is read
            Found::Number(bytes) => return self.copy(index, bytes.as_ptr().expose_provenance()),
            Found::Tensor { as_is, .. } => *as_is,
        };
        // From here on no Python code runs, so that the memory stays what it is.
        let Some(Place { address, row_major }) = slot.see(torch, value).filter(|seen| seen.address != 0) else {
            return false;
        };
        let plain = as_is && row_major;
        if plain && let Some(location) = slot.location(blocks, devices, address) {
            self.locations[index] = location;
            if slot.device.is_none() {
                self.kept.extend(blocks.keeper(location));
            }
        } else if slot.device.is_some() || !plain || slot.is_state() && move_state || !self.copy(index, address) {
            self.left.push(index);
        }
        true
    }

    fn may_copy(&self, slot: &Slot) -> bool {
        slot.pooled_at.is_some() || self.copied_bytes + slot.len_bytes <= COPIED_BYTES
    }

    /// Copies what lies row-major at an address to the input's place. Whether it has one.
    fn copy(&mut self, index: usize, address: usize) -> bool {
        let Some((block, at)) = self.place_of(index) else { return false };
        copy_in(&block, at, address, self.planned.slots[index].len_bytes);
        self.is_copied_to(index, &block, at);
        true
    }

    fn is_copied_to(&mut self, index: usize, block: &Block, at: usize) {
        self.locations[index] = block.location() + at as u64;
        self.copied.push(index);
    }

    /// Where an input's values are copied to: among the pooled ones, or to a block of its own.
    fn place_of(&self, index: usize) -> Option<(Arc<Block>, usize)> {
        match (&self.buffer, self.planned.slots[index].pooled_at) {
            (Some(buffer), Some(at)) => Some((Arc::clone(buffer), at)),
            _ => self.own.get(&index).map(|own| (Arc::clone(own), 0)),
        }
    }

    /// The input's place, made where there is none. Errors: the arena's.
    fn make_place(&mut self, arena: &Bound<'_, PyAny>, blocks: &Blocks, index: usize) -> PyResult<(Arc<Block>, usize)> {
        if let Some(place) = self.place_of(index) {
            return Ok(place);
        }
        let len_bytes = self.planned.slots[index].len_bytes;
        let own = blocks.block(arena, block_bytes(len_bytes))?;
        self.copied_bytes += len_bytes;
        self.own.insert(index, Arc::clone(&own));
        Ok((own, 0))
    }
}

/// Whether a tensor's values are not what its memory says: negated or conjugated when they are read.
fn is_view_by_bit(value: &Bound<'_, PyAny>, dtype: DType) -> PyResult<bool> {
    let py = value.py();
    if value.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        return Ok(true);
    }
    Ok(matches!(dtype, DType::C64 | DType::C128) && value.call_method0(intern!(py, "is_conj"))?.is_truthy()?)
}

#[pymethods]
impl Call {
    /// The tensors that the executor writes, in order, once: they are the caller's from then on. None stands for one without
    /// elements.
    fn take_outputs(&mut self) -> Option<Py<PyList>> {
        self.outputs.take()
    }

    /// Where inputs and then outputs lie.
    #[getter]
    fn locations(&self) -> Vec<u64> {
        self.locations.clone()
    }

    /// Places an input whose values are in the arena. keep: what it must not lose before the call is done.
    fn place(&mut self, index: usize, location: u64, keep: Option<&PyBlock>) -> PyResult<()> {
        debug_assert!(self.planned.slot(index)?.len_bytes > 0);
        self.locations[index] = location;
        self.kept.extend(keep.map(|block| Arc::clone(&block.0)));
        Ok(())
    }

    /// Keeps a tensor that the executor reads.
    fn hold(&mut self, tensor: Py<PyAny>) {
        self.held.push(tensor);
    }

    /// The tensor of an output that lies on a device, and its location.
    fn set_output(&mut self, py: Python<'_>, index: usize, tensor: Py<PyAny>, location: u64) -> PyResult<()> {
        let planned = Arc::clone(&self.planned);
        let output = planned.outputs.get(index).filter(|output| output.on_device);
        output.ok_or_else(|| PyValueError::new_err("no such output on a device"))?;
        self.locations[planned.slots.len() + index] = location;
        let outputs = self.outputs.as_ref().ok_or_else(|| PyValueError::new_err("the call has no outputs yet"))?;
        outputs.bind(py).set_item(index, tensor)
    }

    /// Copies an input that was left to its place. Whether that is to be done here: it is row-major and not too large.
    fn copied_here(
        &mut self,
        arena: &Bound<'_, PyAny>,
        blocks: &Blocks,
        index: usize,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let planned = Arc::clone(&self.planned);
        let slot = planned.slot(index)?;
        let torch = torch(value.py())?;
        let Some(Found::Tensor { as_is: true, seen: Place { row_major: true, .. } }) = slot.find(torch, value)? else {
            return Ok(false);
        };
        if !self.may_copy(slot) {
            return Ok(false);
        }
        self.make_place(arena, blocks, index)?;
        // Making a place may be Python code; between this look and the copy there is none.
        let seen = slot.see(torch, value).filter(|seen| seen.row_major && seen.address != 0);
        Ok(seen.is_some_and(|seen| self.copy(index, seen.address)))
    }

    /// A tensor for the values of an input that was left: over its place among the pooled ones, or over a block for this
    /// call. Made in inference mode it could not be written outside of it. Errors: the arena's.
    fn target<'py>(
        &mut self,
        py: Python<'py>,
        arena: &Bound<'_, PyAny>,
        blocks: &Blocks,
        index: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let planned = Arc::clone(&self.planned);
        let slot = planned.slot(index)?;
        let (block, at) = self.make_place(arena, blocks, index)?;
        self.is_copied_to(index, &block, at);
        let shape = slot.desc.shape.dims();
        let dims = [shape, &row_major(shape)].concat();
        torch(py)?.exchange.tensor(py, block, at, slot.desc.dtype, &dims)
    }
}

/// Strides in elements, as torch gives them: a dimension of size 0 counts as 1.
fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

/// A tensor over a block. shape, strides in elements. Errors: ValueError for a dtype that torch has not, torch's.
#[pyfunction]
pub fn tensor<'py>(
    py: Python<'py>,
    block: &PyBlock,
    code: i32,
    shape: Vec<i64>,
    strides: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let dtype = DType::from_onnx(code).map_err(value_error)?;
    let dims = [shape, strides].concat();
    torch(py)?.exchange.tensor(py, Arc::clone(&block.0), 0, dtype, &dims)
}
