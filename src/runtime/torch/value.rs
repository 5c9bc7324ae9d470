//! Values of a run: libtorch's tensors, with the element types that ONNX gives them.

use tch::{Device, Kind, TchError, Tensor};

use super::failure::{Failure, fail};
use crate::tensor::{DType, SharedTensor, TensorBuf, TensorDesc, TensorView};

/// In which types floats are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// As the model says.
    #[default]
    AsDeclared,
    /// float16, bfloat16, float32 and float64 all in float64, complex numbers in complex128; a Cast among them rounds
    /// nothing.
    Float64,
}

impl Precision {
    /// The type that libtorch holds elements in. uint16, uint32 and uint64, of which it has hardly a kernel, are in the
    /// next wider signed type, the last in int64's bits.
    pub(super) fn kind(self, dtype: DType) -> Kind {
        let wide = self == Self::Float64;
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 if wide => Kind::Double,
            DType::C64 if wide => Kind::ComplexDouble,
            DType::F16 => Kind::Half,
            DType::BF16 => Kind::BFloat16,
            DType::F32 => Kind::Float,
            DType::F64 => Kind::Double,
            DType::C64 => Kind::ComplexFloat,
            DType::C128 => Kind::ComplexDouble,
            DType::U8 => Kind::Uint8,
            DType::I8 => Kind::Int8,
            DType::I16 => Kind::Int16,
            DType::U16 | DType::I32 => Kind::Int,
            DType::U32 | DType::U64 | DType::I64 => Kind::Int64,
            DType::Bool => Kind::Bool,
            DType::F8E4M3FN => Kind::Float8e4m3fn,
            DType::F8E4M3FNUZ => Kind::Float8e4m3fnuz,
            DType::F8E5M2 => Kind::Float8e5m2,
            DType::F8E5M2FNUZ => Kind::Float8e5m2fnuz,
        }
    }
}

/// A tensor and its element type in the model. libtorch's is [`Precision::kind`] of it.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) tensor: Tensor,
    pub(super) dtype: DType,
    /// What a sequence holds, which has no tensor of its own.
    pub(super) parts: Vec<Value>,
}

impl Clone for Value {
    /// The same memory, which nothing writes.
    fn clone(&self) -> Self {
        Self { tensor: self.tensor.shallow_clone(), dtype: self.dtype, parts: self.parts.clone() }
    }
}

impl Value {
    /// Of a result: converted to the type that holds the dtype, and wrapped around where that is wider.
    pub(super) fn new(tensor: Tensor, dtype: DType, precision: Precision) -> Result<Self, Failure> {
        let kind = precision.kind(dtype);
        let tensor = match tensor.f_kind()? {
            same if same == kind => tensor,
            float if is_float(float) && dtype == DType::U64 => uint64_bits(&tensor)?,
            _ => tensor.f_totype(kind)?,
        };
        let tensor = match dtype {
            DType::U16 => tensor.f_bitwise_and(0xffff)?,
            DType::U32 => tensor.f_bitwise_and(0xffff_ffff)?,
            _ => tensor,
        };
        Ok(Self { tensor, dtype, parts: Vec::new() })
    }

    /// A copy of a tensor's elements.
    pub(super) fn read(tensor: SharedTensor<'_>, precision: Precision) -> Result<Self, Failure> {
        let mut bytes = tensor.bytes().to_vec();
        let dtype = tensor.dtype();
        match dtype {
            DType::U16 => bytes = widened::<2, 4>(&bytes),
            DType::U32 => bytes = widened::<4, 8>(&bytes),
            // A bool is not zero.
            DType::Bool => bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0)),
            _ => {}
        }
        let kind = Precision::AsDeclared.kind(dtype);
        let read = match bytes.is_empty() {
            // No memory, no address.
            true => Tensor::f_zeros(tensor.shape().dims(), (kind, Device::Cpu))?,
            false => Tensor::f_from_data_size(&bytes, tensor.shape().dims(), kind)?,
        };
        let wanted = precision.kind(dtype);
        let tensor = if wanted == kind { read } else { read.f_totype(wanted)? };
        Ok(Self { tensor, dtype, parts: Vec::new() })
    }

    /// As [`Value::read`].
    pub(super) fn read_view(tensor: &TensorView<'_>, precision: Precision) -> Result<Self, Failure> {
        Self::read(SharedTensor::from(tensor), precision)
    }

    /// Its elements in its own dtype, to which they are rounded.
    pub(super) fn write(&self) -> Result<TensorBuf, Failure> {
        self.write_as(self.dtype)
    }

    /// Its elements in another dtype, of a type as wide.
    pub(super) fn write_as(&self, dtype: DType) -> Result<TensorBuf, Failure> {
        let tensor = self.tensor.f_totype(Precision::AsDeclared.kind(dtype))?.f_contiguous()?;
        let n_elements = tensor.numel();
        let mut bytes = vec![0; n_elements * tensor.f_kind()?.elt_size_in_bytes()];
        if n_elements > 0 {
            tensor.f_copy_data_u8(&mut bytes, n_elements)?;
        }
        let bytes = match dtype {
            DType::U16 => narrowed::<4, 2>(&bytes),
            DType::U32 => narrowed::<8, 4>(&bytes),
            _ => bytes,
        };
        let desc = TensorDesc::new(dtype, tensor.size()).map_err(|error| Failure::Said(error.to_string()))?;
        TensorBuf::new(desc, bytes).map_err(|error| Failure::Said(error.to_string()))
    }

    /// Dimensions.
    pub(super) fn dims(&self) -> Vec<i64> {
        self.tensor.size()
    }

    /// Its elements as integers. Errors: it holds no integers.
    pub(super) fn to_ints(&self) -> Result<Vec<i64>, Failure> {
        if self.dtype.is_float() {
            return fail(format!("expected integers, got {} {:?}", self.dtype, self.dims()));
        }
        let tensor = self.tensor.f_totype(Kind::Int64)?.f_contiguous()?;
        let mut ints = vec![0_i64; tensor.numel()];
        if !ints.is_empty() {
            let n_elements = ints.len();
            tensor.f_copy_data(&mut ints, n_elements)?;
        }
        Ok(ints)
    }

    /// In another of libtorch's types. A uint64 that becomes a float is what it is, not what int64's bits say.
    pub(super) fn to_kind(&self, kind: Kind) -> Result<Tensor, Failure> {
        if self.dtype != DType::U64 || !is_float(kind) {
            return Ok(self.tensor.f_totype(kind)?);
        }
        let ints = self.to_ints()?.into_iter().map(|int| int as u64);
        let floats = match kind {
            Kind::Double => Tensor::f_from_slice(&ints.map(|int| int as f64).collect::<Vec<_>>())?,
            // Rounded once: not by way of float64.
            _ => Tensor::f_from_slice(&ints.map(|int| int as f32).collect::<Vec<_>>())?,
        };
        Ok(floats.f_reshape(self.dims())?.f_totype(kind)?)
    }

    /// In floats: in its own type, or integers in float64.
    pub(super) fn in_floats(&self) -> Result<Tensor, Failure> {
        let kind = self.tensor.f_kind()?;
        self.to_kind(if is_float(kind) { kind } else { Kind::Double })
    }

    /// Its elements as floats.
    pub(super) fn to_floats(&self) -> Result<Vec<f64>, Failure> {
        let tensor = self.to_kind(Kind::Double)?.f_contiguous()?;
        let mut floats = vec![0_f64; tensor.numel()];
        if !floats.is_empty() {
            let n_elements = floats.len();
            tensor.f_copy_data(&mut floats, n_elements)?;
        }
        Ok(floats)
    }
}

fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double)
}

/// Floats as uint64, in int64's bits: libtorch converts none from 2^63 on.
fn uint64_bits(x: &Tensor) -> Result<Tensor, TchError> {
    let wide = x.f_totype(Kind::Double)?;
    let wrapped = wide.f_sub_scalar(2_f64.powi(64))?;
    wrapped.f_where_self(&wide.f_ge(2_f64.powi(63))?, &wide)?.f_totype(Kind::Int64)
}

/// A tensor whose elements libtorch orders as the dtype does: uint64, held in int64's bits, with the highest bit turned
/// over. Twice, it is undone.
pub(super) fn in_order(x: &Tensor, dtype: DType) -> Result<Tensor, TchError> {
    match dtype {
        DType::U64 => x.f_bitwise_xor(i64::MIN),
        _ => Ok(x.shallow_clone()),
    }
}

/// Each little-endian number of N bytes with zeros up to M.
fn widened<const N: usize, const M: usize>(bytes: &[u8]) -> Vec<u8> {
    let wide = |chunk: &[u8; N]| std::array::from_fn::<u8, M, _>(|at| chunk.get(at).copied().unwrap_or(0));
    bytes.as_chunks::<N>().0.iter().flat_map(wide).collect()
}

/// The lower M of each N bytes.
fn narrowed<const N: usize, const M: usize>(bytes: &[u8]) -> Vec<u8> {
    bytes.as_chunks::<N>().0.iter().flat_map(|chunk| chunk[..M].to_vec()).collect()
}
