//! Hugging Face's `.safetensors`: a JSON header, and bytes.

use serde_json::{Map, Value};

use crate::tensor::{DType, Shape, TensorBuf, TensorDesc};

/// The tensors of a `.safetensors` file, by name. Errors: what of it is not as it should be.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(String, TensorBuf)>, String> {
    let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len)).ok_or("it is too short")?;
    let len = usize::try_from(len).map_err(|_| "its header is too long")?;
    let from = len.checked_add(8).ok_or("its header is too long")?;
    let header = bytes.get(8..from).ok_or("it ends in its header")?;
    let header: Map<String, Value> = serde_json::from_slice(header).map_err(|error| format!("its header: {error}"))?;
    let mut tensors = Vec::new();
    for (name, told) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let tensor = safe_tensor(told, &bytes[from..]).map_err(|why| format!("{name}: {why}"))?;
        tensors.push((name.clone(), tensor));
    }
    Ok(tensors)
}

fn safe_tensor(told: &Value, data: &[u8]) -> Result<TensorBuf, String> {
    use DType::*;
    let known = [
        ("F16", F16),
        ("F32", F32),
        ("F64", F64),
        ("I8", I8),
        ("I16", I16),
        ("I32", I32),
        ("I64", I64),
        ("U8", U8),
        ("U16", U16),
        ("U32", U32),
        ("U64", U64),
        ("BOOL", Bool),
        ("BF16", BF16),
        ("F8_E4M3", F8E4M3FN),
        ("F8_E5M2", F8E5M2),
        ("C64", C64),
    ];
    let dtype = told["dtype"].as_str().unwrap_or_default();
    let found = known.iter().find(|(name, _)| *name == dtype).map(|(_, dtype)| *dtype);
    let dtype = found.ok_or_else(|| format!("dtype {dtype:?} is none of ONNX's and torch's"))?;
    let numbers = |key: &str| {
        let list = told[key].as_array().ok_or_else(|| format!("it has no {key}"))?;
        list.iter().map(|n| n.as_i64().ok_or_else(|| format!("{key}: {n}"))).collect::<Result<Vec<i64>, String>>()
    };
    let offsets: Vec<usize> = numbers("data_offsets")?.into_iter().filter_map(|n| usize::try_from(n).ok()).collect();
    let content = match offsets.as_slice() {
        [from, to] => data.get(*from..*to).ok_or("its bytes are not in the file")?,
        _ => return Err("data_offsets: expected two numbers".to_owned()),
    };
    let shape = Shape::new(numbers("shape")?).map_err(|error| error.to_string())?;
    TensorBuf::new(TensorDesc { dtype, shape }, content.to_vec()).map_err(|error| error.to_string())
}
