//! Comparisons of nodes: batches are judged one by one, until the client ends the comparison.

use std::collections::HashMap;
use std::sync::Arc;

use super::compare::{check_float64, compared, judge};
use super::on_device::{OnDevice, lie_on_device};
use super::state::{Answer, Connected, Dumping, Leased, unexpected};

use crate::compare::{Exact, Excused, Explained, Noise, Pair, TensorVerdict, Verdict};
use crate::daemon::client::{Collected, NodeTables, Part, ROW_BYTES, RunningNodes, texts_bytes};
use crate::daemon::status::StepRecord;
use crate::daemon::verdicts::{self, policy};
use crate::dump::{EagerValues, NODES_SCHEMA, NodeRow, NodeTable};
use crate::link::message::{LinkReply, LinkRequest, PieceRun, Pieces, RanOnce};
use crate::observe::nodes::{Batch, Policies, SubModel};
use crate::protocol::control::*;
use crate::protocol::message::{ErrorCode, WireError};
use crate::tensor::{DType, TensorDesc, TensorRef};

/// Judges a batch of nodes: each on eager's inputs, and on those that drifted.
pub fn compare_nodes(leased: &Leased<'_>, request: &CompareNodes) -> Answer {
    let at = leased.at;
    let of = request.of;
    let (name, part, earlier, room);
    {
        let state = at.client.state();
        name = state.known(of.graph)?.name.clone();
        part = state.part(request.handle, (of.graph, of.part))?;
        state.node_tables.check(&of, &judged_names(request))?;
        earlier = state.node_tables.not_compared(&of);
        room = if state.dump.is_some() { state.node_tables.room(&of) } else { 0 };
    }
    let dumping = if request.dump_values { Some(at.must_dump(".dump_values")?) } else { None };
    let kernel = policy(request.tolerance, request.through, request.noise);
    let drift = policy(request.cumulative_tolerance.or(request.tolerance), request.through, request.noise);
    let policies = Policies { kernel, drift };
    let named = |error: WireError| WireError { graph: name.clone(), ..error };
    let hold_rows = |len_bytes| at.client.memory.hold("rows of compared nodes", len_bytes);
    part.hold_nodes(&at.client.memory).map_err(named)?;
    // Before the batch runs; their texts are known after it.
    let mut held = hold_rows(judged_names(request).len() * ROW_BYTES)?;
    let nodes = part.nodes().map_err(named)?;
    let batch = Batch::new(request, nodes, policies, earlier.iter().map(String::as_str));
    let batch = batch.map_err(|error| named(error.into()))?;
    let outcome = if lie_on_device(at, tensors(request)) {
        let mut reach = OnDevice::new(leased, &[]);
        if let Some(dumping) = &dumping {
            let kept = batch.eager_values_on_device(&mut reach, |values| keep_values(dumping, of, values));
            kept.map_err(named)?;
        }
        // The executor proves where they lie, with the first pieces that it runs.
        let mut beside = batch.only_read();
        let run = &mut |pieces| run_nodes(leased, &part, pieces, std::mem::take(&mut beside));
        batch.run_on_device(&mut reach, room, run)
    } else {
        let mut lease = batch.lease(&at.client.state().segments)?;
        if let Some(dumping) = &dumping {
            keep_values(dumping, of, &batch.eager_values(&lease)).map_err(named)?;
        }
        batch.run(&mut lease, room, &mut |pieces| run_nodes(leased, &part, pieces, Vec::new()))
    };
    let outcome = outcome.map_err(|error| named(error.into()))?;
    held.add(hold_rows(texts_bytes(&outcome.rows))?);
    let reply = outcome.rows.iter().map(verdicts::of_row).collect();
    let mut state = at.client.state();
    state.node_tables.add(of, outcome, held, &at.client.memory);
    state.node_tables.set_noise_factor(&of, kernel.noise_factor);
    Ok(Reply::NodesCompared(reply))
}

/// Writes eager's values before anything runs on them.
fn keep_values(dumping: &Dumping<'_>, of: NodesOf, values: &EagerValues<'_>) -> Result<(), WireError> {
    let (client, run) = (dumping.at.client, &dumping.run);
    let graph = dumping.graph(of.graph)?;
    if !run.wants(&graph, of.part, of.step) {
        return Ok(());
    }
    let open = client.state().node_tables.values(&of, run.path());
    let folder = match open {
        Some(folder) => folder,
        None => {
            let folder = run.begin_values(&graph, of.part, of.step)?;
            client.state().node_tables.set_values(of, folder.clone());
            folder
        }
    };
    run.values(&folder, values);
    Ok(())
}

/// Runs pieces in one request; each model goes over once.
fn run_nodes(
    leased: &Leased<'_>,
    whole: &Arc<Part>,
    pieces: Arc<[SubModel]>,
    beside: Vec<TensorRef>,
) -> Result<Vec<Result<RanOnce, WireError>>, WireError> {
    let at = leased.at;
    let (mut models, mut known) = (Vec::new(), HashMap::new());
    let run = |piece: &SubModel| {
        let model = *known.entry((piece.model.clone(), piece.named_values.clone())).or_insert_with(|| {
            models.push(whole.spec_of(piece));
            models.len() as u32 - 1
        });
        PieceRun { model, record: piece.record.clone() }
    };
    let runs: Vec<PieceRun> = pieces.iter().map(run).collect();
    leased.executor.counters.set_piece(0);
    at.client.state().running_nodes = Some(RunningNodes { whole: Arc::clone(whole), pieces });
    let n_runs = runs.len();
    let reply = leased.ask(&LinkRequest::RunPieces(Pieces { request: at.id, models, runs, beside }));
    at.client.state().running_nodes = None;
    match reply? {
        LinkReply::RanPieces(ran) if ran.len() == n_runs => Ok(ran),
        other => Err(unexpected("RunPieces", &other)),
    }
}

/// Notes what more is known of a mismatch: the local one, or that of the value as it drifted.
pub fn settle_node(at: &Connected<'_>, request: &SettleNode) -> Answer {
    let SettleNode { of, name, by } = request;
    let right = match by {
        SettledBy::Terms(sum) => {
            let verdict = drifted_sum(at, request, sum)?;
            let mut state = at.client.state();
            let row = state.node_tables.row(of, name)?;
            row.cumulative = TensorVerdict { noise: row.cumulative.noise, ..verdict };
            return Ok(Reply::NodesCompared(vec![verdicts::of_row(row)]));
        }
        SettledBy::AsRight(why) => {
            mismatch(&mut at.client.state().node_tables, request)?.as_right.clone_from(why);
            true
        }
        SettledBy::Float64(tensors) => {
            let noise = noise(at, request, tensors)?;
            at.client.state().node_tables.row(of, name)?.settle(noise)
        }
    };
    Ok(Reply::NodesCompared(vec![at.client.state().node_tables.settle(of, name, right)?]))
}

/// What terms say of a value as it drifted, by the tolerance that it was judged by. Errors: BadState when that verdict is no
/// mismatch, BadTensor.
fn drifted_sum(at: &Connected<'_>, request: &SettleNode, sum: &DriftedSum) -> Result<TensorVerdict, WireError> {
    let DriftedSum { reference, candidate, terms } = sum;
    check_float64(&request.name, "terms", reference, Some(terms))?;
    let tolerance = {
        let mut state = at.client.state();
        let row = state.node_tables.row(&request.of, &request.name)?;
        let (Verdict::Mismatch, Some(metrics)) = (&row.cumulative.verdict, &row.cumulative.metrics) else {
            let why = "the value as it drifted is no mismatch; settle mismatches only".to_owned();
            return Err(refused(request, ErrorCode::BadState, why));
        };
        if reference.desc != candidate.desc || !is_of(row, &reference.desc) {
            let why = format!(
                "expected {}{:?} (as compared) twice, got reference {} and candidate {}",
                row.dtype, row.dims, reference.desc, candidate.desc
            );
            return Err(refused(request, ErrorCode::BadTensor, why));
        }
        metrics.tolerance
    };
    let pair = Pair { terms: Some(terms), ..Pair::new(&request.name, reference, candidate, Some(tolerance)) };
    let compared = compared(at, vec![pair])?;
    Ok(compared.into_iter().next().expect("a pair has a verdict").verdict)
}

/// Whether a tensor is of the type and the shape that a row was compared in.
fn is_of(row: &NodeRow, desc: &TensorDesc) -> bool {
    row.dtype == desc.dtype.torch_name() && row.dims == desc.shape.dims()
}

/// The row to settle. Errors: BadState when its local verdict is another.
fn mismatch<'t>(tables: &'t mut NodeTables, request: &SettleNode) -> Result<&'t mut NodeRow, WireError> {
    let row = tables.row(&request.of, &request.name)?;
    if row.local.verdict != Verdict::Mismatch {
        let why = "its local verdict is no mismatch; settle mismatches only".to_owned();
        return Err(refused(request, ErrorCode::BadState, why));
    }
    Ok(row)
}

/// What float64 says. Errors: BadTensor, those of [`mismatch`].
fn noise(at: &Connected<'_>, request: &SettleNode, tensors: &InFloat64) -> Result<Option<Noise>, WireError> {
    let InFloat64 { exact, reference, local, terms } = tensors;
    if exact.desc.dtype != DType::F64 || !reference.desc.dtype.is_float() {
        let why = format!("expected a float64 value of a floating dtype, got {} of {}", exact.desc, reference.desc);
        return Err(refused(request, ErrorCode::BadTensor, why));
    }
    if reference.desc != local.desc || exact.desc.shape != reference.desc.shape {
        let why = format!("shapes differ: exact {}, reference {}, local {}", exact.desc, reference.desc, local.desc);
        return Err(refused(request, ErrorCode::BadTensor, why));
    }
    check_float64(&request.name, "terms", reference, terms.as_ref())?;
    {
        let mut state = at.client.state();
        let row = mismatch(&mut state.node_tables, request)?;
        if row.dtype != reference.desc.dtype.torch_name() || !holds(&row.dims, reference.desc.shape.dims()) {
            let why = format!(
                "expected {}{:?} (as compared), or some of its elements; got {}",
                row.dtype, row.dims, reference.desc
            );
            return Err(refused(request, ErrorCode::BadTensor, why));
        }
    }
    let factor = at.client.state().node_tables.noise_factor(&request.of);
    let explained = terms.as_ref().map_or(Explained::Kernel, Explained::Terms);
    let exact = Some(Exact { value: exact, explained, factor, excused: Excused::Nothing });
    let pair = Pair { exact, ..Pair::new(&request.name, reference, local, None) };
    let compared = compared(at, vec![pair])?;
    Ok(compared.into_iter().find_map(|compared| compared.verdict.noise))
}

/// Whether a tensor of shape `given` is one of shape `compared`, or elements of it.
fn holds(compared: &[i64], given: &[i64]) -> bool {
    given == compared || matches!(given, &[n] if n <= compared.iter().product())
}

fn refused(request: &SettleNode, code: ErrorCode, why: String) -> WireError {
    WireError::client(code, format!("SettleNode {:?}: {why}", request.name))
}

/// A comparison without nodes is an empty table: everything of a part may have gone to eager.
pub fn finish_nodes(at: &Connected<'_>, request: FinishNodes) -> Answer {
    let FinishNodes { of, dump, plain, tolerance, through } = request;
    at.client.state().known(of.graph)?;
    let run = if dump { Some(at.must_dump(".dump")?) } else { None };
    let plain = judge(at, &plain, policy(tolerance, through, None))?;
    let reply = verdicts::summaries(&plain);
    let graph = match &run {
        Some(dumping) => dumping.graph(of.graph)?,
        None => at.client.state().known(of.graph)?.name.clone(),
    };
    let collected = at.client.state().node_tables.take(&of);
    let Collected { rows: nodes, reproductions, held, values, .. } = collected;
    let schema = NODES_SCHEMA.to_owned();
    let table = NodeTable { schema, run: String::new(), graph, part: of.part, step: of.step.0, plain, nodes };
    let run = run.map(|dumping| dumping.run).filter(|run| run.wants(&table.graph, of.part, of.step));
    let folder = run.as_ref().map(|run| run.path().display().to_string());
    at.daemon.last_steps.add(StepRecord::of_nodes(at.client.id, &table, folder));
    if let Some(run) = run {
        run.nodes(table, reproductions)?;
        if let Some(values) = values.filter(|values| values.path().starts_with(run.path())) {
            run.finish_values(values);
        }
        run.keep_until_written(held);
    }
    Ok(Reply::Comparison(reply))
}

/// All that a batch names.
fn tensors(request: &CompareNodes) -> impl Iterator<Item = &TensorRef> {
    let of_feeds = request.feeds.iter().flat_map(|feed| [&feed.reference, &feed.candidate]);
    let of_values = request.values.iter().filter_map(|value| match value {
        NodeValue::Computed(ComputedNode { reference, candidate, .. }) => Some([reference, candidate]),
        NodeValue::NotCompared { .. } => None,
    });
    of_feeds.chain(of_values.flatten())
}

/// Names of the rows that a batch will add.
fn judged_names(request: &CompareNodes) -> Vec<&str> {
    let name = |value| match value {
        &NodeValue::Computed(ComputedNode { ref name, local: Some(_), .. }) => Some(name.as_str()),
        NodeValue::Computed(_) => None,
        NodeValue::NotCompared { name, .. } => Some(name.as_str()),
    };
    request.values.iter().filter_map(name).collect()
}
