//! Parts of graphs that were running when an executor died.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::base::ids::GraphId;
use crate::base::limits;
use crate::base::sync::lock;
use crate::daemon::status::Death;
use crate::protocol::message::{ErrorCode, WireError};

/// Deaths by part, until the daemon ends.
#[derive(Debug, Default)]
pub struct Quarantine {
    deaths: Mutex<BTreeMap<(GraphId, u32), Death>>,
}

impl Quarantine {
    /// Records a death; `deaths_in_a_row` is counted here. Returns the count.
    pub fn record(&self, death: Death) -> u32 {
        let mut deaths = lock(&self.deaths);
        let entry = deaths
            .entry((death.graph, death.part))
            .and_modify(|known| *known = Death { deaths_in_a_row: known.deaths_in_a_row, ..death.clone() })
            .or_insert(Death { deaths_in_a_row: 0, ..death });
        entry.deaths_in_a_row += 1;
        entry.deaths_in_a_row
    }

    /// The part ran and its executor lives: the row is broken, unless the part is refused already.
    pub fn survived(&self, graph: GraphId, part: u32) {
        let mut deaths = lock(&self.deaths);
        if deaths.get(&(graph, part)).is_some_and(|death| death.deaths_in_a_row < limits::DEATHS) {
            deaths.remove(&(graph, part));
        }
    }

    /// Errors: Quarantined after [`limits::DEATHS`] deaths in a row.
    pub fn check(&self, graph: GraphId, part: u32) -> Result<(), WireError> {
        let deaths = lock(&self.deaths);
        match deaths.get(&(graph, part)) {
            Some(death) if death.deaths_in_a_row >= limits::DEATHS => {
                let Death { name, deaths_in_a_row, dump, cause, .. } = death;
                let message = format!(
                    "graph {name}, part {part}: its last {deaths_in_a_row} executors died in it ({cause}); model and \
                     inputs are in {dump}; to try again run `rust-ort stop`"
                );
                let mut error = WireError::fault(ErrorCode::Quarantined, message);
                (error.graph, error.dump) = (name.clone(), dump.clone());
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Every part, by graph.
    pub fn list(&self) -> Vec<Death> {
        lock(&self.deaths).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(dump: &str) -> Death {
        Death {
            graph: GraphId::from_bytes([1; 32]),
            name: "0_0-forward".into(),
            part: 2,
            deaths_in_a_row: 0,
            dump: dump.into(),
            cause: "killed by signal 9".into(),
        }
    }

    #[test]
    fn third_death_in_a_row_is_the_last() {
        let quarantine = Quarantine::default();
        let graph = death("").graph;
        for expected in [1, 2] {
            assert_eq!(quarantine.record(death("/q/x")), expected);
            assert_eq!(quarantine.check(graph, 2), Ok(()));
        }
        assert_eq!(quarantine.record(death("/q/y")), 3);
        let error = quarantine.check(graph, 2).unwrap_err();
        assert!(error.message.contains("/q/y") && error.code == ErrorCode::Quarantined, "{error}");
        assert_eq!(quarantine.check(graph, 1), Ok(()));
        quarantine.survived(graph, 2);
        assert!(quarantine.check(graph, 2).is_err());
    }

    #[test]
    fn a_good_lease_breaks_the_row() {
        let quarantine = Quarantine::default();
        quarantine.record(death("/q/x"));
        quarantine.record(death("/q/x"));
        quarantine.survived(death("").graph, 2);
        assert_eq!(quarantine.record(death("/q/x")), 1);
    }
}
