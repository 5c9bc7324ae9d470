//! Comparisons of nodes: batches are judged one by one, their rows wait here until the client ends the comparison.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::base::ids::GraphId;
use crate::base::limits;
use crate::compare::{Opinion, Verdict};
use crate::daemon::client::{Part, RunningNodes};
use crate::daemon::errors::client as client_error;
use crate::daemon::executors::Executor;
use crate::daemon::ledger::{Account, Held};
use crate::daemon::requests::{Answer, Handler, tolerance, unexpected};
use crate::daemon::status::StepRecord;
use crate::daemon::verdicts;
use crate::dump::{NODES_SCHEMA, NodeReproduction, NodeRow, NodeTable};
use crate::link::message::{LinkReply, LinkRequest};
use crate::observe::nodes::{Batch, Judged, SubModel, Tolerances};
use crate::protocol::control::*;
use crate::protocol::message::{ErrorCode, Optimization, PartSpec, RunStats, SessionSpec, ValueSpec, WireError};
use crate::tensor::DType;

/// A client's open comparisons.
#[derive(Debug, Default)]
pub struct NodeTables(BTreeMap<NodesOf, Collected>);

/// What one comparison has so far.
#[derive(Debug, Default)]
struct Collected {
    rows: Vec<NodeRow>,
    reproductions: Vec<NodeReproduction>,
    /// What both count for.
    held: Vec<Held>,
}

/// What a row takes, about: two verdicts with their metrics, and names.
const ROW_BYTES: usize = 4 << 10;

impl NodeTables {
    /// Room for `n_new` rows, none of which is there. Errors: Limit, BadState.
    fn check(&self, of: &NodesOf, names: &[&str]) -> Result<(), WireError> {
        let n_rows: usize = self.0.values().map(|open| open.rows.len()).sum();
        if n_rows + names.len() > limits::NODE_ROWS {
            let why = format!(
                "{n_rows} nodes wait in open comparisons, {} more would be above {}; send FinishNodes first",
                names.len(),
                limits::NODE_ROWS
            );
            return Err(client_error(ErrorCode::Limit, why));
        }
        let Some(open) = self.0.get(of) else {
            if self.0.len() < limits::NODE_TABLES {
                return Ok(());
            }
            let why = format!("{} comparisons of nodes are open already; send FinishNodes first", limits::NODE_TABLES);
            return Err(client_error(ErrorCode::Limit, why));
        };
        let known: HashSet<&str> = open.rows.iter().map(|row| row.name.as_str()).collect();
        match names.iter().find(|&&name| known.contains(name)) {
            Some(name) => {
                let why = format!("node {name:?} was compared in this step already; send each node once");
                Err(client_error(ErrorCode::BadState, why))
            }
            None => Ok(()),
        }
    }

    /// Names without a reference so far.
    fn not_compared(&self, of: &NodesOf) -> Vec<String> {
        let rows = self.0.get(of).into_iter().flat_map(|open| &open.rows);
        rows.filter(|row| row.dtype.is_empty()).map(|row| row.name.clone()).collect()
    }

    /// Reproductions that may still be kept.
    fn room(&self, of: &NodesOf) -> usize {
        limits::NODE_REPRODUCTIONS - self.0.get(of).map_or(0, |open| open.reproductions.len())
    }

    /// `rows_held` counts the rows. A reproduction that finds no room is left out.
    fn add(&mut self, of: NodesOf, outcome: Judged, rows_held: Held, memory: &Arc<Account>) {
        let mut held: usize = self.0.values().flat_map(|open| &open.reproductions).map(NodeReproduction::n_bytes).sum();
        let open = self.0.entry(of).or_default();
        open.held.push(rows_held);
        for mut row in outcome.rows {
            row.index = open.rows.len() as u64;
            open.rows.push(row);
        }
        for reproduction in outcome.reproductions {
            held += reproduction.n_bytes();
            let counted = memory.hold("reproduction of a node", reproduction.n_bytes());
            let (Ok(counted), true) = (counted, held <= limits::NODE_REPRODUCTION_BYTES) else {
                tracing::warn!(node = reproduction.node, "nodes: reproduction left out, too many bytes wait already");
                break;
            };
            open.held.push(counted);
            open.reproductions.push(reproduction);
        }
    }

    /// Drops the comparisons of a graph.
    pub(super) fn forget(&mut self, graph: GraphId) {
        self.0.retain(|of, _| of.graph != graph);
    }

    /// A row. Errors: BadState when there is none.
    fn row(&mut self, of: &NodesOf, name: &str) -> Result<&mut NodeRow, WireError> {
        let row = self.0.get_mut(of).and_then(|open| open.rows.iter_mut().find(|row| row.name == name));
        row.ok_or_else(|| {
            let place = format!("graph {} part {} step {}", of.graph.short(), of.part, of.step.0);
            let why = format!("SettleNode: no node {name:?} was compared in {place}; send CompareNodes first");
            client_error(ErrorCode::BadState, why)
        })
    }

    /// Notes an opinion: rounding is a match, and its reproduction shows nothing.
    fn settle(&mut self, of: &NodesOf, name: &str, opinion: Option<Opinion>) -> Result<NodeVerdictSummary, WireError> {
        let row = self.row(of, name)?;
        row.float64 = opinion;
        let rounding = opinion.is_some_and(|opinion| opinion.is_rounding());
        if rounding {
            row.local.verdict = Verdict::Match;
        }
        let verdicts = row_verdicts(row);
        if rounding && let Some(open) = self.0.get_mut(of) {
            open.reproductions.retain(|reproduction| reproduction.node != name);
        }
        Ok(verdicts)
    }
}

impl Handler<'_> {
    pub(super) fn compare_nodes(&self, request: &CompareNodes) -> Answer {
        let executor = self.leased("CompareNodes")?;
        let of = request.of;
        let (name, part, earlier, room);
        {
            let state = self.client.state();
            name = state.known(of.graph)?.name.clone();
            part = state.part(request.handle, (of.graph, of.part))?;
            state.node_tables.check(&of, &judged_names(request))?;
            earlier = state.node_tables.not_compared(&of);
            room = if state.dump.is_some() { state.node_tables.room(&of) } else { 0 };
        }
        let local = request.tolerance.map(tolerance);
        let tolerances = Tolerances { local, cumulative: request.cumulative_tolerance.map(tolerance).or(local) };
        let at = |error: WireError| WireError { graph: name.clone(), ..error };
        part.hold_nodes(&self.client.memory).map_err(at)?;
        let held = self.client.memory.hold("rows of compared nodes", judged_names(request).len() * ROW_BYTES)?;
        let nodes = part.nodes().map_err(at)?;
        let batch = Batch::new(request, nodes, tolerances, earlier.iter().map(String::as_str));
        let batch = batch.map_err(|error| at(error.into()))?;
        let mut lease = batch.lease(&self.client.state().segments)?;
        let outcome = batch.run(&mut lease, room, |model| self.run_nodes(&executor, &part, model));
        let outcome = outcome.map_err(|error| at(error.into()))?;
        let reply = outcome.rows.iter().map(row_verdicts).collect();
        self.client.state().node_tables.add(of, outcome, held, &self.client.memory);
        Ok(Reply::NodesCompared(reply))
    }

    fn run_nodes(&self, executor: &Executor, whole: &Part, model: &SubModel) -> Result<RunStats, WireError> {
        let part = Arc::new(piece(whole, model));
        let spec = part.spec.part.clone();
        let running = RunningNodes { node: model.node.clone(), part, record: model.record.clone() };
        self.client.state().running_nodes = Some(running);
        let reply = self.ask(executor, &LinkRequest::RunOnce { part: spec, record: model.record.clone() });
        self.client.state().running_nodes = None;
        match reply? {
            LinkReply::Ran(stats) => Ok(stats),
            other => Err(unexpected("RunOnce", &other)),
        }
    }

    pub(super) fn settle_node(&self, request: &SettleNode) -> Answer {
        let SettleNode { of, name, exact, reference, local } = request;
        let refuse = |code, why: String| Err(client_error(code, format!("SettleNode {name:?}: {why}")));
        if exact.desc.dtype != DType::F64 || !reference.desc.dtype.is_float() {
            let why = format!("expected a float64 value of a floating dtype, got {} of {}", exact.desc, reference.desc);
            return refuse(ErrorCode::BadTensor, why);
        }
        if reference.desc != local.desc || exact.desc.shape != reference.desc.shape {
            let why =
                format!("shapes differ: exact {}, reference {}, local {}", exact.desc, reference.desc, local.desc);
            return refuse(ErrorCode::BadTensor, why);
        }
        let lease = {
            let mut state = self.client.state();
            let row = state.node_tables.row(of, name)?;
            if row.local.verdict != Verdict::Mismatch {
                return refuse(
                    ErrorCode::BadState,
                    "its local verdict is no mismatch; settle mismatches only".to_owned(),
                );
            }
            let compared = (row.dtype.as_str(), row.dims.as_slice());
            if compared != (reference.desc.dtype.torch_name(), reference.desc.shape.dims()) {
                let why = format!("expected {}{:?} (as compared), got {}", row.dtype, row.dims, reference.desc);
                return refuse(ErrorCode::BadTensor, why);
            }
            state.segments.lease(&[reference.clone(), local.clone(), exact.clone()], &[])?
        };
        let tensors = lease.inputs();
        let opinion = Opinion::measure(tensors[0], tensors[1], tensors[2]);
        let verdicts = self.client.state().node_tables.settle(of, name, opinion)?;
        Ok(Reply::NodesCompared(vec![verdicts]))
    }

    /// A comparison without nodes is an empty table: everything of a part may have gone to eager.
    pub(super) fn finish_nodes(&self, request: FinishNodes) -> Answer {
        let FinishNodes { of, dump, plain, tolerance: terms } = request;
        self.client.state().known(of.graph)?;
        let run = if dump { Some(self.open_run("FinishNodes.dump")?) } else { None };
        let (floats, exact): (Vec<_>, Vec<_>) = plain.into_iter().partition(|(_, pair)| is_float(pair));
        let mut plain = self.judge(floats, terms.map(tolerance).as_ref())?;
        plain.extend(self.judge(exact, None)?);
        let reply = verdicts::summaries(&plain);
        let graph = match &run {
            Some(run) => self.dump_graph(run, of.graph)?,
            None => self.client.state().known(of.graph)?.name.clone(),
        };
        let collected = self.client.state().node_tables.0.remove(&of).unwrap_or_default();
        let Collected { rows: nodes, reproductions, held } = collected;
        let schema = NODES_SCHEMA.to_owned();
        let table = NodeTable { schema, graph, part: of.part, step: of.step.0, plain, nodes };
        let run = run.filter(|run| run.wants(&table.graph, of.part, of.step));
        let folder = run.as_ref().map(|run| run.path().display().to_string());
        self.daemon.last_steps.add(StepRecord::of_nodes(self.client.id, &table, folder));
        if let Some(run) = run {
            run.nodes(table, reproductions)?;
            run.keep_until_written(held);
        }
        Ok(Reply::Comparison(reply))
    }
}

fn is_float(pair: &PairToCompare) -> bool {
    matches!(pair, PairToCompare::Pair { reference, .. } if reference.desc.dtype.is_float())
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

fn row_verdicts(row: &NodeRow) -> NodeVerdictSummary {
    NodeVerdictSummary { local: verdicts::summary(&row.local), cumulative: verdicts::summary(&row.cumulative) }
}

/// Nodes as a part of their own: what a post-mortem writes down is then the model that killed the executor.
fn piece(whole: &Part, model: &SubModel) -> Part {
    let part = &whole.spec.part;
    let session = SessionSpec { optimization: Optimization::Disable, ..part.session.clone() };
    let spec = PartSpec {
        graph: part.graph,
        part: part.part,
        model: model.model.clone(),
        session,
        fx_values: BTreeMap::new(),
        named_values: model.named_values.clone(),
    };
    let values = model.inputs.iter().zip(&model.record.inputs).map(|(name, tensor)| ValueSpec {
        name: name.clone(),
        dtype: tensor.desc.dtype,
        dims: tensor.desc.shape.dims().to_vec(),
    });
    Part::new(PreparePart { part: spec, provenance_json: String::new() }, values.collect(), Vec::new(), None)
}
