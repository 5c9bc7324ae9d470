//! Which runtime computes which nodes of what is run again.

use std::path::Path;

use crate::cli::exit::Failure;
use crate::dump;
use crate::protocol::message::{NodeRuntime, RuntimeRule};

/// `RUNTIME:PATTERN`.
pub(super) fn parse(text: &str) -> Result<RuntimeRule, String> {
    let known = || NodeRuntime::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let expected = || format!("expected RUNTIME:PATTERN, the runtime one of {}", known());
    let (name, pattern) = text.split_once(':').ok_or_else(expected)?;
    let runtime = NodeRuntime::from_name(name).ok_or_else(expected)?;
    if pattern.is_empty() {
        return Err(expected());
    }
    Ok(RuntimeRule { runtime, patterns: vec![pattern.to_owned()] })
}

/// A rule as it is asked for.
pub(crate) fn text_of(rule: &RuntimeRule) -> String {
    format!("{}:{}", rule.runtime.name(), rule.patterns.join(","))
}

/// The option `runtimes` of a run. Errors: the dump cannot be read; no runtime has that name.
pub(super) fn of_run(graph: &Path) -> Result<Vec<RuntimeRule>, Failure> {
    let rule = |(name, patterns): (String, Vec<String>)| {
        let unknown = || format!("{}: option runtimes: no runtime is called {name:?}", graph.display());
        Ok(RuntimeRule { runtime: NodeRuntime::from_name(&name).ok_or_else(unknown)?, patterns })
    };
    dump::runtimes(graph)?.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_runtime_and_a_pattern() {
        let rule = parse("torch-f64:com.microsoft::Gelu").unwrap();
        assert_eq!(
            (rule.runtime, rule.patterns.as_slice()),
            (NodeRuntime::TorchF64, &["com.microsoft::Gelu".into()][..])
        );
        assert_eq!(text_of(&rule), "torch-f64:com.microsoft::Gelu");
        for text in ["torch", "torch:", "cuda:Add", ":Add", ""] {
            assert!(parse(text).unwrap_err().contains("ort, torch, torch-f64"), "{text}");
        }
    }
}
