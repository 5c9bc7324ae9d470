//! Which rows of a table, in which order.

use super::mark::Mark;
use crate::compare::{TensorVerdict, Verdict};
use crate::dump::NodeRow;

/// The rows to show.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Rows {
    /// Every row, each table by itself in the graph's order
    #[arg(long)]
    all: bool,
    /// As --all, these rows alone; the summary and the exit code are of all
    #[arg(long)]
    only: Option<Only>,
    /// As --all, by max|Δ|/max|r|, largest first, or in the graph's order
    #[arg(long)]
    sort: Option<Sort>,
    /// As --all, so many rows of each table
    #[arg(long)]
    limit: Option<usize>,
}

impl Rows {
    /// Nothing is asked for: those that tell most will do.
    pub(crate) fn are_any(&self) -> bool {
        !self.all && self.only.is_none() && self.sort.is_none() && self.limit.is_none()
    }

    /// Those of the nodes that are wanted, as they are wanted.
    pub(super) fn of<'a>(&self, nodes: &'a [NodeRow]) -> Vec<&'a NodeRow> {
        let only = self.only.unwrap_or(Only::All);
        let mut nodes: Vec<&NodeRow> = nodes.iter().filter(|node| only.wants(node)).collect();
        match self.sort.unwrap_or(Sort::Order) {
            Sort::Order => {}
            Sort::Local => nodes.sort_by(|one, other| distance(&other.local).total_cmp(&distance(&one.local))),
            Sort::Cumulative => {
                nodes.sort_by(|one, other| distance(&other.cumulative).total_cmp(&distance(&one.cumulative)));
            }
        }
        nodes.truncate(self.limit.unwrap_or(usize::MAX));
        nodes
    }
}

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Only {
    All,
    /// Those that do not match, for whatever reason
    Unmatched,
    Match,
    /// Noise, ties and open orders
    Noise,
    Mismatch,
    NotCompared,
    Failed,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    Order,
    Local,
    Cumulative,
}

impl Only {
    fn wants(self, node: &NodeRow) -> bool {
        let any = |is: fn(&Verdict) -> bool| is(&node.local.verdict) || is(&node.cumulative.verdict);
        match self {
            Only::All => true,
            Only::Unmatched => Mark::of(node) != Mark::Match,
            Only::Match => Mark::of(node) == Mark::Match,
            Only::Noise => Mark::of(node) == Mark::Noise,
            Only::Mismatch => any(|verdict| matches!(verdict, Verdict::Mismatch)),
            Only::NotCompared => any(|verdict| matches!(verdict, Verdict::NotCompared(_))),
            Only::Failed => any(|verdict| matches!(verdict, Verdict::Failed(_))),
        }
    }
}

/// By this the worst comes first. NaN is far; what was not measured is at the end.
pub(super) fn distance(verdict: &TensorVerdict) -> f64 {
    verdict
        .metrics
        .as_ref()
        .map_or(-1., |metrics| if metrics.max_rel_to_max.is_nan() { f64::INFINITY } else { metrics.max_rel_to_max })
}
