//! How fast two tensors of 256 MB are judged: `cargo run --release --example compare_speed`.

use std::error::Error;
use std::time::Instant;

use rust_ort::compare::{judge, signature};
use rust_ort::tensor::{DType, TensorBuf, TensorDesc};

const LEN_BYTES: usize = 256 << 20;

fn tensor(dtype: DType, factor: f64) -> Result<TensorBuf, Box<dyn Error>> {
    let n = LEN_BYTES / dtype.size_bytes();
    let value = |i: usize| ((i % 4093) as f64 / 4093. - 0.5) * factor;
    let bytes = match dtype {
        DType::F32 => (0..n).flat_map(|i| (value(i) as f32).to_le_bytes()).collect(),
        DType::F64 => (0..n).flat_map(|i| value(i).to_le_bytes()).collect(),
        DType::F16 => (0..n).flat_map(|i| half::f16::from_f64(value(i)).to_le_bytes()).collect(),
        _ => (0..n).flat_map(|i| half::bf16::from_f64(value(i)).to_le_bytes()).collect(),
    };
    Ok(TensorBuf::new(TensorDesc::new(dtype, [n as i64])?, bytes)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let reference = tensor(dtype, 1.)?;
        let start = Instant::now();
        std::hint::black_box(signature(&reference.view()));
        println!("{dtype:>9} signature: {:.2} GB/s", LEN_BYTES as f64 / 1e9 / start.elapsed().as_secs_f64());
        for (what, factor) in
            [("equal", 1.), ("inside", 1. + if dtype == DType::F64 { 1e-14 } else { 1e-6 }), ("outside", 1.1)]
        {
            let candidate = tensor(dtype, factor)?;
            let best = (0..3)
                .map(|_| {
                    let start = Instant::now();
                    std::hint::black_box(judge("x", &reference.view(), &candidate.view(), None));
                    start.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            let gigabytes = 2. * LEN_BYTES as f64 / 1e9;
            println!("{dtype:>9} {what:>8}: {best:.3} s, {:.2} GB/s (both tensors counted)", gigabytes / best);
        }
    }
    Ok(())
}
