//! Calls that are dumped or compared with eager.

use super::state::{Answer, Connected, Dumping, Leased, unexpected};
use crate::base::ids::SegmentId;
use crate::compare::{Measured, Tolerance};
use crate::daemon::client::Part;
use crate::daemon::ledger::Held;
use crate::daemon::status::StepRecord;
use crate::daemon::verdicts::{self, tolerance};
use crate::link::message::{Comparison, LinkReply, LinkRequest};
use crate::observe::call::{DumpAt, ObservedCall};
use crate::observe::on_device::Reach;
use crate::protocol::control::{Observed, Reply, RunObserved};
use crate::protocol::message::{ErrorCode, RunStats, ValueSpec, WireError};
use crate::shm::{Lease, Segment, SegmentTable};
use crate::tensor::{CallRecord, Location, TensorRef};

/// Runs a call; its inputs are written down before it, its outputs judged and written down after.
pub fn run_observed(leased: &Leased<'_>, run: &RunObserved) -> Answer {
    let at = leased.at;
    let tolerance = run.tolerance.map(tolerance);
    let (part, name) = {
        let state = at.client.state();
        (state.part(run.record.handle, (run.graph, run.part))?, state.known(run.graph)?.name.clone())
    };
    let dump = if run.dump {
        let dumping = at.must_dump(".dump")?;
        let folder = dumping.part(&part)?;
        if folder.new {
            dumping.passes(leased, &folder, &part);
        }
        Some((dumping, folder.name))
    } else {
        None
    };
    let observed = Observation::new(run, &part, dump.as_ref(), tolerance.as_ref());
    let tensors = run.record.inputs.iter().chain(&run.record.outputs).chain(run.references.iter().flatten());
    let lies_on_device = { tensors }.any(|tensor| on_device(at, tensor));
    let lease = if lies_on_device { None } else { Some(observed.call().lease(&at.client.state().segments)?) };
    let copied = dump.as_ref().map(|(dumping, _)| dumping.hold(copied_bytes(run))).transpose()?;
    at.client.state().observing = Some(run.record.clone());
    let outcome = match &lease {
        Some(lease) => observed.call().run(lease, |record| run_on(leased, record, &[])),
        None => {
            let references = run.references.as_deref().unwrap_or_default();
            observed.call().run_on_device(&mut Device { leased, references, held: None })
        }
    };
    at.client.state().observing = None;
    if let (Some((dumping, _)), Some(copied)) = (&dump, copied) {
        dumping.run.keep_until_written(copied);
    }
    let outcome = outcome.map_err(|error| {
        let mut error = WireError::from(error);
        error.graph.clone_from(&name);
        error
    })?;
    at.daemon.post_mortem.quarantine.survived(run.graph, run.part);
    let verdicts = outcome.verdicts.as_deref().map(verdicts::summaries);
    at.daemon.last_steps.add(StepRecord::new(at.client.id, &name, run, &outcome));
    Ok(Reply::Observed(Observed {
        run_us: outcome.stats.run_ns / 1000,
        verdicts,
        dump: outcome.dump.map(|dump| dump.display().to_string()).unwrap_or_default(),
    }))
}

fn on_device(at: &Connected<'_>, tensor: &TensorRef) -> bool {
    at.client.state().device_segments.contains_key(&tensor.location.segment())
}

/// beside: what else is read of the client's memory, where nobody has looked whether outputs overlap it.
fn run_on(leased: &Leased<'_>, record: &CallRecord, beside: &[TensorRef]) -> Result<RunStats, WireError> {
    match leased.ask(&LinkRequest::Run { record: record.clone(), beside: beside.to_vec() })? {
        LinkReply::Ran(stats) => Ok(stats),
        other => Err(unexpected("Run", &other)),
    }
}

/// Tensors on a device: the executor alone reaches them.
struct Device<'a> {
    leased: &'a Leased<'a>,
    references: &'a [TensorRef],
    /// What the newest copies count for: those before them are gone.
    held: Option<Held>,
}

/// Of the memory that the executor copies to. No client names it.
const COPIES: SegmentId = SegmentId(1);

impl Reach for Device<'_> {
    type Error = WireError;

    fn run(&mut self, record: &CallRecord) -> Result<RunStats, WireError> {
        let stats = run_on(self.leased, record, self.references)?;
        // An executor that dies from now on dies of our own kernels and copies, not of the part.
        self.leased.at.client.state().observing = None;
        Ok(stats)
    }

    fn copied(&mut self, tensors: &[TensorRef]) -> Result<Lease, WireError> {
        let Leased { at, executor } = self.leased;
        let mut len_bytes = 0_u64;
        let mut copies = Vec::new();
        for from in tensors {
            let location = Location::new(COPIES, len_bytes).map_err(|error| too_large(&error.to_string()))?;
            copies.push([from.clone(), TensorRef { location, desc: from.desc.clone() }]);
            len_bytes = len_bytes.saturating_add(from.desc.len_bytes() as u64).next_multiple_of(COPY_ALIGN_BYTES);
        }
        let held = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        self.held = None;
        self.held = Some(at.client.memory.hold("tensors of a device, copied to the host", held)?);
        let segment = Segment::create(COPIES, "rust-ort-copies", len_bytes.max(1))?;
        let to: Vec<_> = copies.iter().map(|[_, to]| to.clone()).collect();
        let request = LinkRequest::CopyOut { copies, segment: COPIES, len_bytes: segment.len_bytes() };
        match executor.ask_with(at.client.id, &request, Some(segment.fd()))? {
            LinkReply::Done => {}
            other => return Err(unexpected("CopyOut", &other)),
        }
        let mut table = SegmentTable::default();
        table.attach(segment)?;
        Ok(table.lease(&to, &[])?)
    }

    fn is_lost(&self) -> bool {
        self.leased.executor.is_gone()
    }

    fn measured(&mut self, pairs: Vec<Comparison>) -> Result<Vec<Option<Measured>>, WireError> {
        let n_pairs = pairs.len();
        match self.leased.ask(&LinkRequest::Measure(pairs))? {
            LinkReply::Measured(found) if found.len() == n_pairs => Ok(found),
            other => Err(unexpected("Measure", &other)),
        }
    }
}

/// Where a copy begins.
const COPY_ALIGN_BYTES: u64 = 64;

fn too_large(why: &str) -> WireError {
    WireError::client(ErrorCode::Limit, format!("tensors of a device, copied to the host: {why}"))
}

/// What an observed run needs for as long as it lasts.
struct Observation<'a> {
    run: &'a RunObserved,
    input_names: Vec<String>,
    output_names: Vec<String>,
    dump: Option<&'a (Dumping<'a>, String)>,
    tolerance: Option<&'a Tolerance>,
}

impl<'a> Observation<'a> {
    fn new(
        run: &'a RunObserved,
        part: &Part,
        dump: Option<&'a (Dumping<'a>, String)>,
        tolerance: Option<&'a Tolerance>,
    ) -> Self {
        let names = |values: &[ValueSpec]| values.iter().map(|v| v.name.clone()).collect();
        Self { run, input_names: names(&part.inputs), output_names: names(&part.outputs), dump, tolerance }
    }

    fn call(&self) -> ObservedCall<'_> {
        let RunObserved { record, part, step, references, .. } = self.run;
        ObservedCall {
            record,
            input_names: &self.input_names,
            output_names: &self.output_names,
            dump: self.dump.map(|(dumping, graph)| DumpAt { run: &dumping.run, graph, part: *part, step: *step }),
            references: references.as_deref(),
            tolerance: self.tolerance,
        }
    }
}

/// Bytes of a call that wait in memory for the dump's writer: inputs are written at once.
fn copied_bytes(run: &RunObserved) -> usize {
    let tensors = run.record.outputs.iter().chain(run.references.iter().flatten());
    tensors.map(|tensor| tensor.desc.len_bytes()).fold(0, usize::saturating_add)
}
