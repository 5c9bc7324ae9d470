//! Making sessions.

use std::ffi::CString;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use ort::environment::Environment;
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider as _};
use ort::logging::LogLevel;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use prost::Message as _;

use super::OrtExecutor;
use super::call::{self, OrtCall};
use super::raw::{self, Declared, MemoryInfo};
use crate::onnx::{self, proto::ModelProto};
use crate::protocol::message::{CPU_PROVIDER as CPU, Optimization, Provider, RunStats, SessionSpec, ValueSpec};
use crate::runtime::{BoundCall, ExecutorError, Session, StopToken, check_values};
use crate::shm::Lease;
use crate::tensor::{DType, TensorBuf};

/// Graph optimizers that stay off whatever is asked, since ONNX Runtime 1.31.1 on the CPU gives wrong values with them:
/// MatmulTransposeFusion takes `Transpose → MatMul(·, 1-D)` for a FusedMatMul; MatMulScaleFusion makes a float64 factor
/// an attribute, which is float32.
pub fn wrong_optimizers(model: &ModelProto) -> &'static [&'static str] {
    let all = &["MatmulTransposeFusion", "MatMulScaleFusion"];
    if onnx::mentions(model, DType::F64) { all } else { &all[..1] }
}

const DISABLED_OPTIMIZERS: &str = "optimization.disable_specified_optimizers";
/// With these the runtime keeps pointing into the model's bytes, which are gone after the build.
const REFUSED_CONFIG: &[&str] =
    &["session.use_ort_model_bytes_directly", "session.use_ort_model_bytes_for_initializers"];
const SPINNING_CONFIG: &[&str] = &["session.intra_op.allow_spinning", "session.inter_op.allow_spinning"];

const CUDA: &str = "CUDAExecutionProvider";

/// A session, and what is known of its model's values.
pub(super) struct OrtSession {
    /// Goes before its environment.
    pub(super) session: raw::Session,
    _environment: Environment,
    pub(super) inputs: Vec<ValueSpec>,
    pub(super) outputs: Vec<ValueSpec>,
    pub(super) input_names: Vec<CString>,
    pub(super) output_names: Vec<CString>,
    /// Outputs that are inputs: (output, input). The runtime hands back the input's own tensor for them and leaves the
    /// preallocated one as it was.
    pub(super) passed_through: Vec<(usize, usize)>,
    /// No other provider: tensors can be bound once, since binding copies nothing.
    pub(super) cpu_only: bool,
    pub(super) memory: MemoryInfo,
}

/// See [`Executor::optimized`](crate::runtime::Executor::optimized).
pub(super) fn optimized(executor: &OrtExecutor, model: &[u8], spec: &SessionSpec) -> Result<Vec<u8>, ExecutorError> {
    let bad_model = |reason: String| ExecutorError::BadModel { reason };
    // The runtime writes to a path only; this one is memory, and gone with the descriptor.
    let file = rustix::fs::memfd_create("rust-ort-optimized", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| bad_model(format!("no memory for the optimized model: {error}")))?;
    let mut builder = options(executor, model, spec)?
        .with_optimized_model_path(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|error| bad_model(error.to_string()))?;
    raw::Session::of_model(&executor.environment, &mut builder, model).map_err(|error| bad_model(error.to_string()))?;
    let mut bytes = Vec::new();
    let mut file = std::fs::File::from(file);
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(|error| bad_model(error.to_string()))?;
    Ok(bytes)
}

impl OrtSession {
    pub(super) fn build(executor: &OrtExecutor, model: &[u8], spec: &SessionSpec) -> Result<Self, ExecutorError> {
        let mut builder = options(executor, model, spec)?;
        let bad_model = |error: ort::Error| ExecutorError::BadModel { reason: error.to_string() };
        let session = raw::Session::of_model(&executor.environment, &mut builder, model).map_err(bad_model)?;
        let inputs = values("input", session.inputs().map_err(bad_model)?)?;
        let outputs = values("output", session.outputs().map_err(bad_model)?)?;
        let passed_through = (outputs.iter().enumerate())
            .filter_map(|(output, spec)| Some((output, inputs.iter().position(|input| input.name == spec.name)?)))
            .collect();
        Ok(Self {
            input_names: names(&inputs)?,
            output_names: names(&outputs)?,
            session,
            _environment: executor.environment.clone(),
            inputs,
            outputs,
            passed_through,
            cpu_only: spec.cpu_only(),
            memory: MemoryInfo::cpu(),
        })
    }
}

impl Session for OrtSession {
    fn inputs(&self) -> &[ValueSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[ValueSpec] {
        &self.outputs
    }

    fn fetch(&self, feeds: &Lease) -> Result<(Vec<TensorBuf>, RunStats), ExecutorError> {
        check_values("input", &self.inputs, feeds.raw_inputs())?;
        call::fetch(self, feeds)
    }

    fn bind(self: Arc<Self>, mut lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, ExecutorError> {
        check_values("input", &self.inputs, lease.raw_inputs())?;
        check_values("output", &self.outputs, lease.raw_outputs())?;
        Ok(Box::new(OrtCall::bind(self, lease, stop)?))
    }
}

fn values(kind: &'static str, declared: Vec<Declared>) -> Result<Vec<ValueSpec>, ExecutorError> {
    let value = |Declared { name, kind: number, tensor }| match tensor {
        None => {
            let declared = format!("no tensor (ONNX Runtime's kind of value {number})");
            Err(ExecutorError::UnsupportedValue { kind, name, declared })
        }
        Some((code, dims)) => match DType::from_onnx(code) {
            Ok(dtype) => Ok(ValueSpec { name, dtype, dims }),
            Err(_) => {
                let declared = format!("a tensor of ONNX Runtime's element type {code}");
                Err(ExecutorError::UnsupportedValue { kind, name, declared })
            }
        },
    };
    declared.into_iter().map(value).collect()
}

fn names(values: &[ValueSpec]) -> Result<Vec<CString>, ExecutorError> {
    let name = |value: &ValueSpec| {
        let reason = || format!("the name {:?} holds a NUL", value.name);
        CString::new(value.name.as_str()).map_err(|_| ExecutorError::BadModel { reason: reason() })
    };
    values.iter().map(name).collect()
}

fn options(executor: &OrtExecutor, model: &[u8], spec: &SessionSpec) -> Result<SessionBuilder, ExecutorError> {
    let bad = |name: &str, reason: String| ExecutorError::BadOption { name: name.to_owned(), reason };
    let level = match spec.optimization {
        Optimization::All => GraphOptimizationLevel::All,
        Optimization::Extended => GraphOptimizationLevel::Level2,
        Optimization::Basic => GraphOptimizationLevel::Level1,
        Optimization::Disable => GraphOptimizationLevel::Disable,
    };
    let builder =
        ort::session::Session::builder(&executor.environment).map_err(|error| bad("session", error.to_string()))?;
    let mut builder =
        builder.with_optimization_level(level).map_err(|error| bad("ort_optimization", error.to_string()))?;
    builder = builder.with_log_level(LogLevel::Warning).map_err(|error| bad("session", error.to_string()))?;
    for (key, value) in config(executor, model, spec)? {
        builder = builder.with_config_entry(&key, value).map_err(|error| bad(&key, error.to_string()))?;
    }
    for provider in &spec.providers {
        builder = add_provider(executor, builder, provider)?;
    }
    executor.libraries.register(builder, &spec.custom_op_libraries)
}

fn config(executor: &OrtExecutor, model: &[u8], spec: &SessionSpec) -> Result<Vec<(String, String)>, ExecutorError> {
    if let Some(&name) = REFUSED_CONFIG.iter().find(|&&key| spec.config.contains_key(key)) {
        let reason = "models are handed over in memory that does not outlive the build; leave it out".to_owned();
        return Err(ExecutorError::BadOption { name: name.to_owned(), reason });
    }
    // What cannot be parsed, the runtime refuses by itself.
    let parsed = ModelProto::decode(model).unwrap_or_default();
    let mut config = spec.config.clone();
    let asked = config.remove(DISABLED_OPTIMIZERS);
    let disabled: Vec<&str> = (spec.disabled_optimizers.iter().chain(&asked).map(String::as_str))
        .chain(wrong_optimizers(&parsed).iter().copied())
        .collect();
    config.insert(DISABLED_OPTIMIZERS.to_owned(), disabled.join(";"));
    for &key in SPINNING_CONFIG {
        let allowed = if executor.allow_spinning { "1" } else { "0" };
        config.entry(key.to_owned()).or_insert_with(|| allowed.to_owned());
    }
    Ok(config.into_iter().collect())
}

fn add_provider(
    executor: &OrtExecutor,
    builder: SessionBuilder,
    (name, options): &Provider,
) -> Result<SessionBuilder, ExecutorError> {
    let bad = |reason: String| ExecutorError::BadOption { name: name.clone(), reason };
    if !executor.providers.contains(name) {
        let available = executor.providers.clone();
        return Err(ExecutorError::UnknownProvider { name: name.clone(), available });
    }
    match name.as_str() {
        // Always there, behind all others.
        CPU if options.is_empty() => Ok(builder),
        CPU => Err(bad("it takes no options".to_owned())),
        CUDA => {
            let with_option = |cuda: ep::CUDA, (key, value): (&String, &String)| cuda.with_arbitrary_config(key, value);
            let cuda = options.iter().fold(ep::CUDA::default(), with_option);
            builder.with_execution_providers([cuda.build().error_on_failure()]).map_err(|error| bad(error.to_string()))
        }
        _ => {
            let mut builder = builder;
            raw::append_provider(&mut builder, name, options).map_err(|error| bad(error.to_string()))?;
            Ok(builder)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_torch_has_no_type_for_is_an_error_with_its_number() {
        let declared = |kind, tensor| vec![Declared { name: "x".to_owned(), kind, tensor }];
        // string, uint4, and what no runtime has yet.
        for code in [0, 8, 21, 26, 27, 1000, -1] {
            let text = values("input", declared(1, Some((code, vec![2])))).unwrap_err().to_string();
            assert!(text.contains("input \"x\"") && text.contains(&format!("element type {code}:")), "{text}");
        }
        let text = values("output", declared(7, None)).unwrap_err().to_string();
        assert!(text.contains("no tensor (ONNX Runtime's kind of value 7)"), "{text}");
        assert_eq!(values("input", declared(1, Some((16, vec![-1])))).unwrap()[0].dtype, DType::BF16);
    }
}
