//! ONNX Runtime, loaded from the client's own wheel.
//!
//! The C API is called directly where a call is bound and run: `ort` 2.0.0-rc.15's safe `IoBinding::bind_input` deadlocks
//! on borrowed tensors, its `Session::run` takes `&mut self` though the runtime allows concurrent runs, and costs twice as
//! much for a small model.
#![allow(unsafe_code)]

mod call;
mod libraries;
mod raw;
mod session;

use std::path::Path;
use std::sync::Arc;

use ort::environment::{Environment, GlobalThreadPoolOptions};
use ort::logging::LogLevel;

pub use self::libraries::custom_op_library;
pub use self::session::wrong_optimizers;

use self::session::OrtSession;
use super::{Executor, ExecutorError, Session};
use crate::protocol::message::SessionSpec;

/// The process's one ONNX Runtime.
pub struct OrtExecutor {
    environment: Environment,
    version: String,
    providers: Vec<String>,
    allow_spinning: bool,
    libraries: libraries::Libraries,
}

/// How the runtime's threads work.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadPool {
    /// Intra-op threads of the one pool that all sessions share; 0 = one a core.
    pub threads: u32,
    /// Idle threads of the pool spin: faster in a tight loop, but they starve everything else on the machine.
    pub allow_spinning: bool,
}

impl OrtExecutor {
    /// Loads the library at this path; once a process. Errors: RuntimeMissing, LoadedAlready.
    pub fn load(library: &Path, pool: ThreadPool) -> Result<Self, ExecutorError> {
        let missing = |reason: String| ExecutorError::RuntimeMissing { library: library.to_owned(), reason };
        // A relative path would be looked for beside the executable and on the system's library path.
        if !library.is_absolute() {
            return Err(missing("the path must be absolute".to_owned()));
        }
        let builder = ort::init_from(library).map_err(|error| missing(error.to_string()))?;
        let options = thread_pool(pool).map_err(|error| missing(error.to_string()))?;
        let environment = builder
            .with_name("rust-ort")
            .with_telemetry(false)
            .with_global_thread_pool(options)
            .build()
            .map_err(|_| ExecutorError::LoadedAlready { library: library.to_owned() })?;
        // `ort` asks for everything and filters afterwards; below Warning the runtime logs on every run.
        environment.set_log_level(LogLevel::Warning);
        let version = raw::version(library).map_err(|error| missing(error.to_string()))?;
        let providers = raw::available_providers();
        let libraries = libraries::Libraries::default();
        Ok(Self { environment, version, providers, allow_spinning: pool.allow_spinning, libraries })
    }

    /// Execution providers that the library has.
    pub fn providers(&self) -> &[String] {
        &self.providers
    }
}

fn thread_pool(ThreadPool { threads, allow_spinning }: ThreadPool) -> ort::Result<GlobalThreadPoolOptions> {
    // The runtime's own default also pins its threads to cores, which hurts next to other busy processes.
    let one_a_core = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if threads == 0 { one_a_core() } else { threads as usize };
    GlobalThreadPoolOptions::default()
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        .with_spin_control(allow_spinning)
}

impl Executor for OrtExecutor {
    fn version(&self) -> &str {
        &self.version
    }

    fn build(&self, model: &[u8], spec: &SessionSpec) -> Result<Arc<dyn Session>, ExecutorError> {
        Ok(Arc::new(OrtSession::build(self, model, spec)?))
    }

    fn optimized(&self, model: &[u8], spec: &SessionSpec) -> Result<Vec<u8>, ExecutorError> {
        session::optimized(self, model, spec)
    }
}
