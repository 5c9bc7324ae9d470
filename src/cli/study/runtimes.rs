//! The runtimes of this program, in this process.

use std::path::PathBuf;

use super::arguments::Common;
use crate::cli::answer::warn;
use crate::cli::exit::Failure;
use crate::cli::library;
use crate::protocol::message::{CPU_PROVIDER, CUDA_PROVIDER};
use crate::runtime::ort::{OrtRuntime, ThreadPool};
use crate::runtime::{Runtime, RuntimeError};
use crate::study::{Libtorch, Runtimes};
use crate::tensor::{TensorBuf, TensorView};

/// What computes.
pub(super) struct Loaded {
    onnxruntime: OrtRuntime,
    /// Its library, absolute.
    pub(super) library: PathBuf,
    libtorch: Result<Torch, String>,
    provider: String,
    threads: u32,
}

/// libtorch and its F.linear.
struct Torch {
    runtime: Box<dyn Runtime>,
    linear: fn(&TensorView<'_>, &TensorView<'_>, &TensorView<'_>) -> Result<TensorBuf, RuntimeError>,
}

impl Loaded {
    /// None where the provider is not there, which is said. Errors: no library of ONNX Runtime is known, or it does not
    /// load.
    pub(super) fn new(common: &Common) -> Result<Option<Self>, Failure> {
        let library = common.onnxruntime.clone().or_else(library::of_environment);
        let library = library.or_else(library::of_installation).ok_or(
            "no onnxruntime library is known: none is installed beside this program; name one with --onnxruntime or \
             RUST_ORT_ONNXRUNTIME (in a wheel it is onnxruntime/capi/libonnxruntime.so.*)",
        )?;
        let library = std::path::absolute(library)?;
        let one_a_core = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let threads = if common.threads == 0 { one_a_core() } else { common.threads };
        let onnxruntime = OrtRuntime::load(&library, ThreadPool { threads, allow_spinning: false })?;
        let provider = match common.provider.to_ascii_lowercase().as_str() {
            "cpu" => CPU_PROVIDER.to_owned(),
            "cuda" => CUDA_PROVIDER.to_owned(),
            _ => common.provider.clone(),
        };
        if !onnxruntime.providers().contains(&provider) {
            let there = onnxruntime.providers().join(", ");
            warn(format_args!("not run: this onnxruntime library has no {provider}; it has {there}"));
            return Ok(None);
        }
        Ok(Some(Self { onnxruntime, library, libtorch: libtorch(threads), provider, threads }))
    }

    /// Why libtorch is not run; None where it is.
    pub(super) fn no_libtorch(&self) -> Option<&str> {
        self.libtorch.as_ref().err().map(String::as_str)
    }

    /// As a study takes them.
    pub(super) fn runtimes(&self) -> Runtimes<'_> {
        let libtorch = self.libtorch.as_ref().map_err(String::clone);
        Runtimes {
            onnxruntime: &self.onnxruntime,
            libtorch: libtorch.map(|torch| Libtorch { runtime: torch.runtime.as_ref(), linear: &torch.linear }),
            provider: self.provider.clone(),
            threads: self.threads,
            cpu: cpu(),
        }
    }
}

#[cfg(feature = "torch")]
fn libtorch(threads: u32) -> Result<Torch, String> {
    use crate::runtime::torch::{Precision, TorchRuntime, linear};

    let runtime = TorchRuntime::load(threads, Precision::AsDeclared).map_err(|error| error.to_string())?;
    Ok(Torch { runtime: Box::new(runtime), linear })
}

#[cfg(not(feature = "torch"))]
fn libtorch(_threads: u32) -> Result<Torch, String> {
    Err("built without libtorch; use rust-ort-torch, made by `make build-torch`".to_owned())
}

/// The processor's name, as the kernel tells it.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = |line: &str| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned());
    text.lines().find_map(name).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
