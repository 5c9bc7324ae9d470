//! libtorch as a runtime.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::session::TorchSession;
use super::value::Precision;
use crate::protocol::message::SessionSpec;
use crate::runtime::{Constant, Model, Runtime, RuntimeError, Session};

/// The torch that `tch` is made for. Between minor versions libtorch's C++ interface changes.
const MADE_FOR: &str = "2.13";

/// The process's libtorch, which was linked when it began.
///
/// # When to use
/// For a second opinion on a model, in the words of torch's own kernels: a node of ONNX Runtime's against it, or, with
/// [`Precision::Float64`], both against numbers that hardly round. It runs a node at a time and copies what goes in and
/// out: it is no faster way to run a model.
pub struct TorchRuntime {
    version: String,
    precision: Precision,
}

impl TorchRuntime {
    /// The libtorch that is in this process. threads: of its pool, 0 = one a core. Errors: RuntimeMissing when it is of
    /// another torch than this program was built for.
    pub fn load(threads: u32, precision: Precision) -> Result<Self, RuntimeError> {
        let library = library();
        let version = library.as_deref().and_then(version_beside);
        if let Some(version) = &version
            && !version.starts_with(&format!("{MADE_FOR}."))
        {
            let reason = format!(
                "it is of torch {version}, this program was built for {MADE_FOR}; put that torch's lib folder on LD_LIBRARY_PATH, or build it again (`make build-torch`)"
            );
            return Err(RuntimeError::LibtorchMissing { library: library.unwrap_or_default(), reason });
        }
        let one_a_core = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if threads == 0 { one_a_core() } else { threads as usize };
        tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
        let unknown = || format!("{MADE_FOR} (by its interface)");
        Ok(Self { version: version.unwrap_or_else(unknown), precision })
    }

    /// Where its libtorch was found; None where the system does not tell.
    pub fn library() -> Option<PathBuf> {
        library()
    }

    /// As [`Runtime::build`], with the session's own type, which gives float64 unrounded. Errors: as there.
    pub fn session(
        &self,
        model: &Model,
        spec: &SessionSpec,
        constants: &[Constant],
    ) -> Result<TorchSession, RuntimeError> {
        check(spec)?;
        TorchSession::build(model, constants, self.precision)
    }
}

impl Runtime for TorchRuntime {
    fn version(&self) -> &str {
        &self.version
    }

    fn build_with(
        &self,
        model: &Model,
        spec: &SessionSpec,
        constants: Vec<Constant>,
    ) -> Result<Arc<dyn Session>, RuntimeError> {
        Ok(Arc::new(self.session(model, spec, &constants)?))
    }

    /// The model as it is: nothing is optimized. Errors: as `build`.
    fn optimized(&self, model: &Model, spec: &SessionSpec) -> Result<Vec<u8>, RuntimeError> {
        self.session(model, spec, &[])?;
        Ok(model.bytes.to_vec())
    }
}

/// What of a session is ONNX Runtime's alone is refused. Levels and names of optimizers are not: there are none here to be
/// turned on or off. Errors: UnknownProvider, BadOption.
fn check(spec: &SessionSpec) -> Result<(), RuntimeError> {
    const CPU: &str = crate::protocol::message::CPU_PROVIDER;
    let bad = |name: &str, reason: String| Err(RuntimeError::BadOption { name: name.to_owned(), reason });
    for (name, options) in &spec.providers {
        if name != CPU {
            return Err(RuntimeError::UnknownProvider { name: name.clone(), available: vec![CPU.to_owned()] });
        }
        if let Some(option) = options.keys().next() {
            return bad(option, "libtorch's CPU kernels have no options".to_owned());
        }
    }
    if let Some(entry) = spec.config.keys().next() {
        return bad(entry, "session config entries are ONNX Runtime's: libtorch has none".to_owned());
    }
    match spec.custom_op_libraries.first() {
        Some(library) => {
            let path = library.path.display();
            bad(
                "custom_op_libraries",
                format!("{path} is of ONNX Runtime's operators: libtorch has no kernels of them"),
            )
        }
        None => Ok(()),
    }
}

/// The file of libtorch that is mapped into this process.
fn library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.contains("libtorch_cpu.so")));
    path.map(PathBuf::from)
}

/// The version that a wheel (`torch/version.py`), or a libtorch of its own (`build-version`), says.
fn version_beside(library: &Path) -> Option<String> {
    let torch = library.parent()?.parent()?;
    if let Ok(text) = std::fs::read_to_string(torch.join("version.py")) {
        let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        return Some(line.trim().trim_matches(['\'', '"']).to_owned());
    }
    let text = std::fs::read_to_string(torch.join("build-version")).ok()?;
    Some(text.trim().to_owned())
}
