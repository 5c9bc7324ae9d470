//! Sessions that run one after the other, as one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::onnx::proto::ValueInfoProto;
use crate::protocol::message::{Placement, RunStats, ValueSpec};
use crate::runtime::types::{Declared, Types};
use crate::runtime::{BoundCall, Constant, RuntimeError, Session, StopToken, Terminate};
use crate::shm::{Lease, Readable};
use crate::tensor::TensorBuf;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// An input of the call.
    Input(usize),
    /// A constant of the session.
    Constant(usize),
    /// What a step gave, by its place.
    Made(usize),
}

/// A session among others.
pub(super) struct Step {
    session: Arc<dyn Session>,
    /// Of its inputs.
    reads: Vec<Source>,
    /// Of each of its outputs, the place where it is kept, if a later step reads it, and those outputs of the whole that it
    /// is.
    gives: Vec<(Option<usize>, Vec<usize>)>,
    /// Places that nothing needs after it.
    frees: Vec<usize>,
}

impl Step {
    /// Its ends are not yet known.
    pub(super) fn new(session: Arc<dyn Session>) -> Self {
        Self { session, reads: Vec::new(), gives: Vec::new(), frees: Vec::new() }
    }
}

/// Inputs that are fed, and outputs.
pub(super) struct Ends<'a> {
    pub(super) inputs: Vec<&'a ValueInfoProto>,
    pub(super) outputs: Vec<&'a ValueInfoProto>,
}

/// A part on several runtimes, ready to run; any number of calls at once.
pub(super) struct MixedSession {
    steps: Vec<Step>,
    n_places: usize,
    constants: Vec<Constant>,
    inputs: Declared,
    outputs: Declared,
    /// Outputs that are inputs or constants.
    passed: Vec<(usize, Source)>,
}

impl MixedSession {
    /// Of sessions in the order in which they run, joined by the names of their values. Errors: UnsupportedValue, BadModel
    /// for a value that nothing before gives.
    pub(super) fn new(mut steps: Vec<Step>, ends: &Ends<'_>, constants: Vec<Constant>) -> Result<Self, RuntimeError> {
        let inputs = Declared::of("input", ends.inputs.iter().copied(), &Types::new())?;
        let outputs = Declared::of("output", ends.outputs.iter().copied(), &Types::new())?;
        let mut sources: HashMap<String, Source> = HashMap::new();
        sources.extend(constants.iter().enumerate().map(|(at, it)| (it.name.clone(), Source::Constant(at))));
        sources.extend(inputs.specs.iter().enumerate().map(|(at, it)| (it.name.clone(), Source::Input(at))));
        let find = |sources: &HashMap<String, Source>, name: &str| {
            let missing = || RuntimeError::BadModel { reason: format!("nothing before its reader gives {name:?}") };
            sources.get(name).copied().ok_or_else(missing)
        };
        let passed = ends.outputs.iter().enumerate().filter_map(|(at, it)| Some((at, *sources.get(it.name())?)));
        let passed = passed.collect();
        let mut n_places = 0;
        for step in &mut steps {
            let read = step.session.inputs().iter().map(|input| find(&sources, &input.name));
            step.reads = read.collect::<Result<_, _>>()?;
            for output in step.session.outputs() {
                sources.insert(output.name.clone(), Source::Made(n_places));
                let outputs = ends.outputs.iter().enumerate();
                let of_whole = outputs.filter(|(_, it)| it.name() == output.name).map(|(at, _)| at).collect();
                step.gives.push((Some(n_places), of_whole));
                n_places += 1;
            }
        }
        for output in &ends.outputs {
            find(&sources, output.name())?;
        }
        let mut session = Self { steps, n_places, constants, inputs, outputs, passed };
        session.let_go();
        Ok(session)
    }

    /// Tells each step which values it is the last to read; what no step reads is not kept.
    fn let_go(&mut self) {
        let mut last: Vec<Option<usize>> = vec![None; self.n_places];
        for (number, step) in self.steps.iter().enumerate() {
            for source in &step.reads {
                if let &Source::Made(place) = source {
                    last[place] = Some(number);
                }
            }
        }
        for (place, &last) in last.iter().enumerate() {
            if let Some(last) = last {
                self.steps[last].frees.push(place);
            }
        }
        let given = self.steps.iter_mut().flat_map(|step| &mut step.gives);
        given.for_each(|(place, _)| *place = place.filter(|&place| last[place].is_some()));
    }

    /// Runs the steps; `give` gets each output as soon as it is there, by its number.
    fn run(
        &self,
        inputs: &[Readable],
        stop: &StopToken,
        mut give: impl FnMut(usize, &TensorBuf) -> Result<(), RuntimeError>,
    ) -> Result<RunStats, RuntimeError> {
        let start = Instant::now();
        let mut places: Vec<Option<Readable>> = vec![None; self.n_places];
        for &(output, source) in &self.passed {
            give(output, &self.read(source, inputs, &places)?.view().to_owned())?;
        }
        for step in &self.steps {
            if stop.is_stopped() {
                return Err(RuntimeError::Stopped);
            }
            let reads = step.reads.iter().map(|&source| self.read(source, inputs, &places));
            let lease = Lease::reading(reads.collect::<Result<Vec<_>, _>>()?);
            let (made, _) = step.session.fetch_until(&lease, stop)?;
            drop(lease);
            step.frees.iter().for_each(|&place| places[place] = None);
            for ((place, of_whole), tensor) in step.gives.iter().zip(made) {
                of_whole.iter().try_for_each(|&output| give(output, &tensor))?;
                if let &Some(place) = place {
                    places[place] = Some(Readable::private(&Arc::new(tensor)));
                }
            }
        }
        Ok(RunStats { run_ns: start.elapsed().as_nanos() as u64, host_bytes: 0 })
    }

    fn read(&self, source: Source, inputs: &[Readable], places: &[Option<Readable>]) -> Result<Readable, RuntimeError> {
        let absent = || RuntimeError::RunFailed { reason: "a value is not there".to_owned(), node: String::new() };
        match source {
            Source::Input(at) => inputs.get(at).cloned().ok_or_else(absent),
            Source::Constant(at) => Ok(Readable::private(&self.constants[at].tensor)),
            Source::Made(place) => places[place].clone().ok_or_else(absent),
        }
    }

    /// Errors: RunFailed for an output that is not what the part declares.
    fn check_output(&self, at: usize, tensor: &TensorBuf) -> Result<(), RuntimeError> {
        let desc = tensor.desc();
        if self.outputs.fits(at, desc.dtype, desc.shape.dims()) {
            return Ok(());
        }
        let reason = format!("output {}: the model's nodes give {desc}", self.outputs.specs[at]);
        Err(RuntimeError::RunFailed { reason, node: String::new() })
    }
}

impl Session for MixedSession {
    fn inputs(&self) -> &[ValueSpec] {
        &self.inputs.specs
    }

    fn outputs(&self) -> &[ValueSpec] {
        &self.outputs.specs
    }

    fn placement(&self) -> Placement {
        self.steps.iter().map(|step| step.session.placement()).fold(Placement::default(), Placement::and)
    }

    fn fetch_until(&self, feeds: &Lease, stop: &StopToken) -> Result<(Vec<TensorBuf>, RunStats), RuntimeError> {
        self.inputs.check("input", feeds.raw_inputs())?;
        let mut outputs: Vec<Option<TensorBuf>> = vec![None; self.outputs.specs.len()];
        let stats = self.run(&feeds.readable(), stop, |at, tensor| {
            self.check_output(at, tensor)?;
            outputs[at] = Some(tensor.clone());
            Ok(())
        })?;
        let absent = || RuntimeError::RunFailed { reason: "an output has no value".to_owned(), node: String::new() };
        let outputs = outputs.into_iter().map(|output| output.ok_or_else(absent)).collect::<Result<_, _>>()?;
        Ok((outputs, stats))
    }

    fn bind(self: Arc<Self>, mut lease: Lease, stop: &StopToken) -> Result<Box<dyn BoundCall>, RuntimeError> {
        self.inputs.check("input", lease.raw_inputs())?;
        self.outputs.check("output", lease.raw_outputs())?;
        let ended = Arc::new(Ended::default());
        let weak: Weak<Ended> = Arc::downgrade(&ended);
        stop.register(weak);
        Ok(Box::new(MixedCall { session: self, lease, ended }))
    }
}

/// Ends the step that runs, and with it the call.
#[derive(Default)]
struct Ended(StopToken);

impl Terminate for Ended {
    fn terminate(&self) {
        self.0.stop();
    }
}

/// A session bound to leased tensors.
struct MixedCall {
    session: Arc<MixedSession>,
    lease: Lease,
    ended: Arc<Ended>,
}

impl BoundCall for MixedCall {
    fn run(&mut self) -> Result<RunStats, RuntimeError> {
        let inputs = self.lease.readable();
        let (_, mut outputs) = self.lease.split_mut();
        let session = &self.session;
        session.run(&inputs, &self.ended.0, |at, tensor| {
            session.check_output(at, tensor)?;
            let output = &mut outputs[at];
            let shape = &tensor.desc().shape;
            if shape != output.shape {
                let (name, has) = (&session.outputs.specs[at].name, output.shape);
                let reason = format!("output {name:?}: the model gives {shape}, its memory is {has}");
                return Err(RuntimeError::RunFailed { reason, node: String::new() });
            }
            output.bytes.copy_in(tensor.view().bytes());
            Ok(())
        })
    }
}
