//! Calls that are dumped or compared with eager.

use std::collections::BTreeSet;

use super::on_device::{OnDevice, lie_on_device, run_on};
use super::state::{Answer, Dumping, Leased};
use crate::base::ids::Work;
use crate::compare::{Policy, TensorVerdict, Verdict};
use crate::daemon::client::{Part, Unsettled};
use crate::daemon::status::StepRecord;
use crate::daemon::verdicts::{self, policy};
use crate::link::message::LinkRequest;
use crate::observe::call::{DumpAt, ObservedCall};
use crate::protocol::control::{NodesOf, Observed, Reply, RunObserved};
use crate::protocol::message::{ValueSpec, WireError};

/// Has the executor end what nobody waits for.
pub fn cancel(leased: &Leased<'_>, work: Work) -> Answer {
    let Leased { at, executor } = leased;
    at.ask_quickly(executor, (at.asked, &LinkRequest::Cancel(work)), None)?;
    Ok(Reply::Done)
}

/// Runs a call; its inputs are written down before it, its outputs judged and written down after.
pub fn run_observed(leased: &Leased<'_>, run: &RunObserved) -> Answer {
    let at = leased.at;
    let policy = policy(run.tolerance, run.through, run.noise);
    let (part, name) = {
        let state = at.client.state();
        (state.part(run.record.handle, (run.graph, run.part))?, state.known(run.graph)?.name.clone())
    };
    let dump = if run.dump {
        let dumping = at.must_dump(".dump")?;
        let folder = dumping.part(&part)?;
        if folder.new {
            dumping.passes(leased, &folder, &part, Work::Call(run.record.call));
        }
        Some((dumping, folder.name))
    } else {
        None
    };
    let observed = Observation::new(run, &part, dump.as_ref(), policy);
    let tensors = run.record.inputs.iter().chain(&run.record.outputs).chain(run.references.iter().flatten());
    let on_device = lie_on_device(at, tensors);
    let lease = if on_device { None } else { Some(observed.call().lease(&at.client.state().segments)?) };
    let copied = dump.as_ref().map(|(dumping, _)| dumping.hold(copied_bytes(run))).transpose()?;
    at.client.state().observing = Some(run.record.clone());
    let outcome = match &lease {
        Some(lease) => observed.call().run(lease, |record| run_on(leased, record, &[])),
        None => {
            let references = run.references.as_deref().unwrap_or_default();
            observed.call().run_on_device(&mut OnDevice::new(leased, references))
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
    let summaries = outcome.verdicts.as_deref().map(verdicts::summaries);
    at.daemon.last_steps.add(StepRecord::new(at.client.id, &name, run, &outcome));
    let folder = outcome.folder.as_ref().map(|folder| folder.path().display().to_string());
    if let Some(verdicts) = outcome.verdicts.filter(|verdicts| verdicts.iter().any(may_be_settled)) {
        let of = NodesOf { graph: run.graph, part: run.part, step: run.step };
        let into = dump.map(|(dumping, _)| dumping.run).zip(outcome.folder);
        at.client.state().unsettled.add(of, Unsettled { graph: name, verdicts, known: BTreeSet::new(), into });
    }
    Ok(Reply::Observed(Observed {
        run_us: outcome.stats.run_ns / 1000,
        verdicts: summaries,
        dump: folder.unwrap_or_default(),
    }))
}

/// Whether it may be looked at once more.
fn may_be_settled(verdict: &TensorVerdict) -> bool {
    verdict.verdict == Verdict::Mismatch
}

/// What an observed run needs for as long as it lasts.
struct Observation<'a> {
    run: &'a RunObserved,
    input_names: Vec<String>,
    output_names: Vec<String>,
    dump: Option<&'a (Dumping<'a>, String)>,
    policy: Policy,
}

impl<'a> Observation<'a> {
    fn new(run: &'a RunObserved, part: &Part, dump: Option<&'a (Dumping<'a>, String)>, policy: Policy) -> Self {
        let names = |values: &[ValueSpec]| values.iter().map(|v| v.name.clone()).collect();
        Self { run, input_names: names(&part.inputs), output_names: names(&part.outputs), dump, policy }
    }

    fn call(&self) -> ObservedCall<'_> {
        let RunObserved { record, part, step, references, .. } = self.run;
        ObservedCall {
            record,
            input_names: &self.input_names,
            output_names: &self.output_names,
            dump: self.dump.map(|(dumping, graph)| DumpAt { run: &dumping.run, graph, part: *part, step: *step }),
            references: references.as_deref(),
            policy: self.policy,
        }
    }
}

/// Bytes of a call that wait in memory for the dump's writer: inputs are written at once.
fn copied_bytes(run: &RunObserved) -> usize {
    let tensors = run.record.outputs.iter().chain(run.references.iter().flatten());
    tensors.map(|tensor| tensor.desc.len_bytes()).fold(0, usize::saturating_add)
}
