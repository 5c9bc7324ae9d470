//! Rules that a graph was compiled with: in their order, which decides, where JSON read as a value has none.

use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::DumpError;
use super::{files, layout};

/// A rule's name and its patterns.
pub type Rule = (String, Vec<String>);

/// `{name: [patterns], …}`.
#[derive(Debug, Default, PartialEq, Eq)]
struct InOrder(Vec<Rule>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Options {
    runtimes: InOrder,
}

/// A file with options in it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WithOptions {
    options: Option<Options>,
}

/// The option `runtimes` of a graph's folder, else of its run; nothing where neither tells options. Errors: a file that
/// cannot be read, or has options of another form.
pub fn runtimes(graph: &Path) -> Result<Vec<Rule>, DumpError> {
    let run = graph.parent().map(|run| run.join(layout::RUN_FILE));
    for path in [Some(graph.join(layout::PARTS_FILE)), run].into_iter().flatten() {
        if path.symlink_metadata().is_err() {
            continue;
        }
        let read = files::read_json(&path).and_then(|bytes| Ok(serde_json::from_slice::<WithOptions>(&bytes)?));
        if let Some(options) = read.map_err(DumpError::io(&path, "read"))?.options {
            return Ok(options.runtimes.0);
        }
    }
    Ok(Vec::new())
}

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = InOrder;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("patterns by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut rules = Vec::new();
                while let Some(rule) = map.next_entry()? {
                    rules.push(rule);
                }
                Ok(InOrder(rules))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stay_in_their_order_and_the_graphs_go_before_the_runs() {
        let run = tempfile::tempdir().unwrap();
        let graph = run.path().join("0_0-forward");
        std::fs::create_dir(&graph).unwrap();
        assert_eq!(runtimes(&graph).unwrap(), []);
        let rule = |name: &str, pattern: &str| (name.to_owned(), vec![pattern.to_owned()]);
        let of_run = r#"{"options": {"runtimes": {"torch-f64": ["c"]}}}"#;
        std::fs::write(run.path().join(layout::RUN_FILE), of_run).unwrap();
        assert_eq!(runtimes(&graph).unwrap(), [rule("torch-f64", "c")]);
        let own = r#"{"options": {"opset": 18, "runtimes": {"torch": ["*norm*"], "ort": ["a"]}}}"#;
        std::fs::write(graph.join(layout::PARTS_FILE), own).unwrap();
        assert_eq!(runtimes(&graph).unwrap(), [rule("torch", "*norm*"), rule("ort", "a")]);
        std::fs::write(graph.join(layout::PARTS_FILE), r#"{"options": {"runtimes": ["torch"]}}"#).unwrap();
        assert!(runtimes(&graph).unwrap_err().to_string().contains("patterns by name"));
    }
}
