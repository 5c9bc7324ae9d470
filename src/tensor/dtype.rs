//! The one table of element types.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($variant:ident = $onnx:literal, $size:literal, $align:literal, $torch:literal;)*) => {
        /// Element type of a tensor: those that ONNX Runtime and torch share.
        ///
        /// ```
        /// use rust_ort::tensor::DType;
        ///
        /// let dtype = DType::from_onnx(16)?;
        /// assert_eq!((dtype, dtype.torch_name(), dtype.size_bytes()), (DType::BF16, "bfloat16", 2));
        /// assert!(DType::from_onnx(8).is_err(), "strings are no tensors here");
        /// # Ok::<(), rust_ort::tensor::UnknownDType>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DType {
            $(
                #[doc = concat!("`torch.", $torch, "`, ", stringify!($size), " bytes.")]
                $variant = $onnx,
            )*
        }

        impl DType {
    /// A byte that, repeated, is NaN in a float, −1 or the largest number in an integer, and true.
    pub const fn spoiled_byte(self) -> u8 {
        match self {
            DType::Bool => 1,
            DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => 0x80, // their one NaN
            _ => 0xFF,
        }
    }

            /// Every element type, in the order of their ONNX codes.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Bytes of one element.
            pub const fn size_bytes(self) -> usize {
                match self { $(DType::$variant => $size),* }
            }

            /// Alignment of one element in bytes.
            pub const fn align_bytes(self) -> usize {
                match self { $(DType::$variant => $align),* }
            }

            /// Name in torch, without the `torch.` prefix.
            pub const fn torch_name(self) -> &'static str {
                match self { $(DType::$variant => $torch),* }
            }

            /// The type with this ONNX `TensorProto.DataType` code. Errors: [`UnknownDType`].
            pub const fn from_onnx(code: i32) -> Result<Self, UnknownDType> {
                match code {
                    $($onnx => Ok(DType::$variant),)*
                    _ => Err(UnknownDType(code)),
                }
            }
        }
    };
}

dtypes! {
    F32 = 1, 4, 4, "float32";
    U8 = 2, 1, 1, "uint8";
    I8 = 3, 1, 1, "int8";
    U16 = 4, 2, 2, "uint16";
    I16 = 5, 2, 2, "int16";
    I32 = 6, 4, 4, "int32";
    I64 = 7, 8, 8, "int64";
    Bool = 9, 1, 1, "bool";
    F16 = 10, 2, 2, "float16";
    F64 = 11, 8, 8, "float64";
    U32 = 12, 4, 4, "uint32";
    U64 = 13, 8, 8, "uint64";
    C64 = 14, 8, 4, "complex64";
    C128 = 15, 16, 8, "complex128";
    BF16 = 16, 2, 2, "bfloat16";
    F8E4M3FN = 17, 1, 1, "float8_e4m3fn";
    F8E4M3FNUZ = 18, 1, 1, "float8_e4m3fnuz";
    F8E5M2 = 19, 1, 1, "float8_e5m2";
    F8E5M2FNUZ = 20, 1, 1, "float8_e5m2fnuz";
}

impl DType {
    /// ONNX `TensorProto.DataType` code.
    pub const fn onnx_code(self) -> i32 {
        self as i32
    }

    /// f16, bf16, f32, f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Its elements are looked at as f64: all but complex and 8-bit float types.
    pub const fn widens(self) -> bool {
        use DType::*;
        !matches!(self, C64 | C128 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.torch_name())
    }
}

/// dtype code {0}: expected an ONNX TensorProto.DataType that torch has too (1 to 20, not 8); cast the tensor before
/// sending
#[derive(Clone, Copy, Debug, displaydoc::Display, thiserror::Error, PartialEq, Eq)]
pub struct UnknownDType(pub i32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_others_are_refused() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_onnx(dtype.onnx_code()), Ok(dtype));
            assert_eq!(dtype.size_bytes() % dtype.align_bytes(), 0);
        }
        for code in [-1, 0, 8, 21, 22, 255, i32::MAX] {
            assert_eq!(DType::from_onnx(code), Err(UnknownDType(code)));
        }
    }
}
