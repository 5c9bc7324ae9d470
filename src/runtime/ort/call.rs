//! Running a session on leased tensors: bound once and run often, or fetched once.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use ort::sys;

use super::raw::{Binding, RunOptions, Value, check};
use super::session::OrtSession;
use crate::protocol::message::{RunStats, ValueSpec};
use crate::runtime::{BoundCall, RuntimeError, Session, StopToken, Terminate};
use crate::shm::{Lease, RawTensor};
use crate::tensor::TensorBuf;

impl Session for OrtSession {
    fn inputs(&self) -> &[ValueSpec] {
        &self.inputs.specs
    }

    fn outputs(&self) -> &[ValueSpec] {
        &self.outputs.specs
    }

    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        self.inputs.check("input", feeds.raw_inputs())?;
        fetch(self, feeds, stop)
    }

    fn bind(self: Arc<Self>, mut lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
        self.inputs.check("input", lease.raw_inputs())?;
        self.outputs.check("output", lease.raw_outputs())?;
        Ok(Box::new(OrtCall::bind(self, lease, stop)?))
    }
}

/// Options of a run, and whether it was told to end.
struct Control {
    options: RunOptions,
    terminated: AtomicBool,
}

impl Control {
    /// Of runs that `stop` ends.
    fn under(stop: &StopToken) -> ort::Result<Arc<Self>> {
        let control = Arc::new(Self { options: RunOptions::new()?, terminated: AtomicBool::new(false) });
        let weak: Weak<Self> = Arc::downgrade(&control);
        stop.register(weak);
        Ok(control)
    }

    /// Why a run ended.
    fn failed(&self, error: &ort::Error) -> RuntimeError {
        match self.terminated.load(Ordering::SeqCst) {
            true => RuntimeError::Stopped,
            false => RuntimeError::run_failed(error.to_string()),
        }
    }
}

impl Terminate for Control {
    fn terminate(&self) {
        self.terminated.store(true, Ordering::SeqCst);
        self.options.terminate();
    }
}

/// A session bound to leased tensors. Fields drop in this order: what points before what is pointed at.
pub(super) struct OrtCall {
    control: Arc<Control>,
    target: Target,
    session: Arc<OrtSession>,
    lease: Lease,
}

enum Target {
    /// Bound once: on the CPU binding copies nothing, so later changes of the inputs are seen.
    Binding { binding: Binding, _values: Vec<Value> },
    /// Handed over with every run: other providers copy inputs to their device when they are bound.
    Values { inputs: Vec<Value>, outputs: Vec<Value> },
}

impl OrtCall {
    pub(super) fn bind(session: Arc<OrtSession>, mut lease: Lease, stop: &StopToken) -> Result<Self, RuntimeError> {
        let failed = |error: ort::Error| RuntimeError::run_failed(error.to_string());
        let target = Target::bind(&session, &mut lease).map_err(failed)?;
        let control = Control::under(stop).map_err(failed)?;
        Ok(Self { control, target, session, lease })
    }
}

impl Target {
    fn bind(session: &OrtSession, lease: &mut Lease) -> ort::Result<Self> {
        fn value(session: &OrtSession, tensor: RawTensor<'_>) -> ort::Result<Value> {
            // SAFETY: the values are kept beside the lease and dropped before it, so the leased memory outlives them.
            unsafe { Value::over(&session.memory, tensor) }
        }
        let inputs = lease.raw_inputs().map(|tensor| value(session, tensor)).collect::<ort::Result<Vec<_>>>()?;
        let outputs = lease.raw_outputs().map(|tensor| value(session, tensor)).collect::<ort::Result<Vec<_>>>()?;
        if !session.cpu_only {
            return Ok(Self::Values { inputs, outputs });
        }
        let mut binding = Binding::new(&session.session)?;
        for (name, value) in session.input_names.iter().zip(&inputs) {
            binding.bind_input(name, value)?;
        }
        for (name, value) in session.output_names.iter().zip(&outputs) {
            binding.bind_output(name, value)?;
        }
        Ok(Self::Binding { binding, _values: inputs.into_iter().chain(outputs).collect() })
    }
}

impl BoundCall for OrtCall {
    fn run(&mut self) -> Result<RunStats, RuntimeError> {
        if self.session.writes_outputs.load(Ordering::Relaxed) { self.run_once() } else { self.run_watched() }
    }
}

/// What memory of outputs holds before a run that is watched, one after the other.
const UNTOUCHED: [u8; 2] = [0xA5, 0x5A];

impl OrtCall {
    /// A session's first run: optimizers have taken nodes away that give an output, and then nothing writes it and nothing
    /// says so. Memory that is as it was is no proof, as these may be the output's own numbers: then once more, with others.
    fn run_watched(&mut self) -> Result<RunStats, RuntimeError> {
        let mut left: Vec<usize> = (0..self.session.outputs.specs.len()).collect();
        for byte in UNTOUCHED {
            let (_, mut outputs) = self.lease.split_mut();
            outputs.iter_mut().for_each(|output| output.bytes.fill(byte));
            let stats = self.run_once()?;
            let (_, outputs) = self.lease.split_mut();
            left.retain(|&at| {
                let bytes = outputs[at].bytes.as_shared();
                !bytes.is_empty() && bytes.holds_only(byte)
            });
            if left.is_empty() {
                self.session.writes_outputs.store(true, Ordering::Relaxed);
                return Ok(stats);
            }
        }
        Err(RuntimeError::NotWritten { output: self.session.outputs.specs[left[0]].name.clone() })
    }

    fn run_once(&mut self) -> Result<RunStats, RuntimeError> {
        let start = Instant::now();
        let outcome = match &self.target {
            Target::Binding { binding, .. } => self.run_binding(binding),
            Target::Values { inputs, outputs } => self.run_values(inputs, outputs),
        };
        outcome.map_err(|error| self.control.failed(&error))?;
        if !self.session.passed_through.is_empty() {
            let (inputs, mut outputs) = self.lease.split_mut();
            for &(output, input) in &self.session.passed_through {
                let (source, target) = (inputs[input].bytes(), &mut outputs[output].bytes);
                if source.len() != target.as_shared().len() {
                    let (output, input) = (outputs[output].shape, inputs[input].shape());
                    return Err(RuntimeError::run_failed(format!(
                        "an output is the input {input}: its memory is {output}"
                    )));
                }
                target.copy_from(source);
            }
        }
        Ok(RunStats { run_ns: start.elapsed().as_nanos() as u64 })
    }

    fn run_binding(&self, binding: &Binding) -> ort::Result<()> {
        // SAFETY: all handles are alive; the runtime allows concurrent runs of one session; the tensors of the binding lie
        // in the lease, which `&mut self` of `run` makes ours alone.
        check(unsafe {
            let session = self.session.session.ptr();
            (ort::api().RunWithBinding)(session, self.control.options.ptr(), binding.ptr())
        })
    }

    fn run_values(&self, inputs: &[Value], outputs: &[Value]) -> ort::Result<()> {
        let mut outputs: Vec<*mut sys::OrtValue> = outputs.iter().map(Value::ptr).collect();
        run(&self.session, &self.control.options, inputs, &mut outputs)
    }
}

/// See [`Session::fetch_until`](crate::runtime::Session::fetch_until).
fn fetch(session: &OrtSession, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
    let failed = |error: ort::Error| RuntimeError::run_failed(error.to_string());
    let value = |tensor: RawTensor<'_>| {
        // SAFETY: the values are dropped at the end of this function, before the lease that it borrows.
        unsafe { Value::over(&session.memory, tensor) }
    };
    let inputs = feeds.raw_inputs().map(value).collect::<ort::Result<Vec<_>>>().map_err(failed)?;
    let control = Control::under(stop).map_err(failed)?;
    let mut outputs = vec![ptr::null_mut(); session.output_names.len()];
    let start = Instant::now();
    let ran = run(session, &control.options, &inputs, &mut outputs);
    let stats = RunStats { run_ns: start.elapsed().as_nanos() as u64 };
    // Owned before anything can return, so that none is lost.
    let outputs: Vec<Option<Value>> = outputs.into_iter().map(Value::made).collect();
    ran.map_err(|error| control.failed(&error))?;
    let null = || RuntimeError::run_failed("the runtime gave no tensor for an output".to_owned());
    let copies = outputs.into_iter().map(|output| output.ok_or_else(null)?.copy());
    Ok((copies.collect::<Result<_, _>>()?, stats))
}

/// One run. `outputs`: those that are not null are written in place, the runtime makes the others, on the CPU.
fn run(
    session: &OrtSession,
    options: &RunOptions,
    inputs: &[Value],
    outputs: &mut [*mut sys::OrtValue],
) -> ort::Result<()> {
    let pointers = |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
    let (input_names, output_names) = (pointers(&session.input_names), pointers(&session.output_names));
    let inputs: Vec<*const sys::OrtValue> = inputs.iter().map(|value| value.ptr().cast_const()).collect();
    // SAFETY: all handles are alive; the runtime allows concurrent runs of one session; whoever made `inputs` and
    // `outputs` holds their memory; the arrays have the lengths given.
    check(unsafe {
        (ort::api().Run)(
            session.session.ptr(),
            options.ptr(),
            input_names.as_ptr(),
            inputs.as_ptr(),
            inputs.len(),
            output_names.as_ptr(),
            outputs.len(),
            outputs.as_mut_ptr(),
        )
    })
}
