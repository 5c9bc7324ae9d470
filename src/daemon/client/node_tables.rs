//! Comparisons of nodes that go on: batches are judged one by one, their rows wait here until the client ends the
//! comparison.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::base::ids::GraphId;
use crate::base::limits;
use crate::compare::{Birth, Noise, Verdict};
use crate::daemon::ledger::{Account, Held};
use crate::daemon::verdicts;
use crate::dump::{NodeReproduction, NodeRow, ValuesFolder};
use crate::observe::nodes::Judged;
use crate::protocol::control::{NodeVerdictSummary, NodesOf};
use crate::protocol::message::{ErrorCode, WireError};

/// A client's open comparisons.
#[derive(Debug, Default)]
pub struct NodeTables(BTreeMap<NodesOf, Collected>);

/// What one comparison has so far.
#[derive(Debug, Default)]
pub struct Collected {
    /// Rows so far.
    pub rows: Vec<NodeRow>,
    /// Models of single nodes.
    pub reproductions: Vec<NodeReproduction>,
    /// What both count for.
    pub held: Vec<Held>,
    /// Eager's values, on disk.
    pub values: Option<ValuesFolder>,
    /// How much further from float64 than the reference the candidate may be.
    pub noise_factor: Option<f64>,
}

/// What a row takes beside its texts, about: two verdicts with their metrics.
pub const ROW_BYTES: usize = 4 << 10;

/// What the texts of rows take, but for the operators that rows of one FX node share.
pub fn texts_bytes(rows: &[NodeRow]) -> usize {
    let reason = |verdict: &Verdict| verdict.words().1.len();
    let row = |row: &NodeRow| {
        let texts = [
            &row.name,
            &row.op,
            &row.module,
            &row.source,
            &row.role,
            &row.local.name,
            &row.cumulative.name,
            &row.as_right,
            &row.no_float64,
        ];
        let births = row
            .births
            .iter()
            .flat_map(|birth| &birth.read)
            .map(|read| size_of::<Birth>() + read.name.len())
            .sum::<usize>();
        let reasons = births + reason(&row.local.verdict) + reason(&row.cumulative.verdict);
        texts.map(String::capacity).iter().sum::<usize>() + reasons
    };
    rows.iter().map(row).fold(0, usize::saturating_add)
}

impl NodeTables {
    /// Room for `n_new` rows, none of which is there. Errors: Limit, BadState.
    pub fn check(&self, of: &NodesOf, names: &[&str]) -> Result<(), WireError> {
        let n_rows: usize = self.0.values().map(|open| open.rows.len()).sum();
        if n_rows + names.len() > limits::NODE_ROWS {
            let why = format!(
                "{n_rows} nodes wait in open comparisons, {} more would be above {}; send FinishNodes first",
                names.len(),
                limits::NODE_ROWS
            );
            return Err(WireError::client(ErrorCode::Limit, why));
        }
        let Some(open) = self.0.get(of) else {
            if self.0.len() < limits::NODE_TABLES {
                return Ok(());
            }
            let why = format!("{} comparisons of nodes are open already; send FinishNodes first", limits::NODE_TABLES);
            return Err(WireError::client(ErrorCode::Limit, why));
        };
        let known: HashSet<&str> = open.rows.iter().map(|row| row.name.as_str()).collect();
        match names.iter().find(|&&name| known.contains(name)) {
            Some(name) => {
                let why = format!("node {name:?} was compared in this step already; send each node once");
                Err(WireError::client(ErrorCode::BadState, why))
            }
            None => Ok(()),
        }
    }

    /// Names without a reference so far.
    pub fn not_compared(&self, of: &NodesOf) -> Vec<String> {
        let rows = self.0.get(of).into_iter().flat_map(|open| &open.rows);
        rows.filter(|row| row.dtype.is_empty()).map(|row| row.name.clone()).collect()
    }

    /// Reproductions that may still be kept.
    pub fn room(&self, of: &NodesOf) -> usize {
        limits::NODE_REPRODUCTIONS - self.0.get(of).map_or(0, |open| open.reproductions.len())
    }

    /// `rows_held` counts the rows. A reproduction that finds no room is left out.
    pub fn add(&mut self, of: NodesOf, outcome: Judged, rows_held: Held, memory: &Arc<Account>) {
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

    /// The folder of eager's values, below `run`.
    pub fn values(&self, of: &NodesOf, run: &Path) -> Option<ValuesFolder> {
        self.0.get(of)?.values.clone().filter(|values| values.path().starts_with(run))
    }

    /// Keeps the folder of eager's values.
    pub fn set_values(&mut self, of: NodesOf, values: ValuesFolder) {
        self.0.entry(of).or_default().values = Some(values);
    }

    /// Of the last batch.
    pub fn noise_factor(&self, of: &NodesOf) -> f64 {
        self.0.get(of).and_then(|open| open.noise_factor).unwrap_or(Noise::FACTOR)
    }

    /// Keeps it for mismatches that are settled.
    pub fn set_noise_factor(&mut self, of: &NodesOf, factor: f64) {
        if let Some(open) = self.0.get_mut(of) {
            open.noise_factor = Some(factor);
        }
    }

    /// Drops the comparisons of a graph.
    pub fn forget(&mut self, graph: GraphId) {
        self.0.retain(|of, _| of.graph != graph);
    }

    /// Takes out a comparison, which is over.
    pub fn take(&mut self, of: &NodesOf) -> Collected {
        self.0.remove(of).unwrap_or_default()
    }

    /// A row. Errors: BadState when there is none.
    pub fn row(&mut self, of: &NodesOf, name: &str) -> Result<&mut NodeRow, WireError> {
        let row = self.0.get_mut(of).and_then(|open| open.rows.iter_mut().find(|row| row.name == name));
        row.ok_or_else(|| {
            let place = format!("graph {} part {} step {}", of.graph.short(), of.part, of.step.0);
            let why = format!("SettleNode: no node {name:?} was compared in {place}; send CompareNodes first");
            WireError::client(ErrorCode::BadState, why)
        })
    }

    /// Of a local mismatch: one that is `right` all the same is a match, and its reproduction shows nothing.
    pub fn settle(&mut self, of: &NodesOf, name: &str, right: bool) -> Result<NodeVerdictSummary, WireError> {
        let row = self.row(of, name)?;
        if right {
            row.local.verdict = Verdict::Match;
        }
        let verdicts = verdicts::of_row(row);
        if right && let Some(open) = self.0.get_mut(of) {
            open.reproductions.retain(|reproduction| reproduction.node != name);
        }
        Ok(verdicts)
    }
}
