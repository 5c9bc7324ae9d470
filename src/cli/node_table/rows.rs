//! Which rows of a table, in which order.

use super::mark::Mark;
use crate::compare::{TensorVerdict, Verdict};
use crate::dump::NodeRow;

/// The rows to show.
#[derive(Debug, clap::Args)]
pub(crate) struct Rows {
    /// Rows to show; the summary and the exit code are of all
    #[arg(long, default_value = "all")]
    pub(super) only: Only,
    /// By max|Δ|/max|r|, largest first, or in the graph's order
    #[arg(long, default_value = "order")]
    pub(super) sort: Sort,
    /// So many rows of each table
    #[arg(long)]
    pub(super) limit: Option<usize>,
}

impl Rows {
    /// Those of the nodes that are wanted, as they are wanted.
    pub(super) fn of<'a>(&self, nodes: &'a [NodeRow]) -> Vec<&'a NodeRow> {
        let mut nodes: Vec<&NodeRow> = nodes.iter().filter(|node| self.only.wants(node)).collect();
        match self.sort {
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
pub(super) enum Only {
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
pub(super) enum Sort {
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

/// NaN is far; what was not measured is at the end.
fn distance(verdict: &TensorVerdict) -> f64 {
    verdict
        .metrics
        .as_ref()
        .map_or(-1., |metrics| if metrics.max_rel_to_max.is_nan() { f64::INFINITY } else { metrics.max_rel_to_max })
}
