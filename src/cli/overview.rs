//! A run and a graph of a dump in a few lines, as their `run.json` and `parts.json` tell; `--json` has all of these.

use serde_json::Value;

use super::exit::{Failure, at};
use super::table::{self, MOST_ROWS};
use crate::base::quoted::one_line;
use crate::dump::reader::{self, GraphEntry, RunEntry};

/// Width of the names of facts.
const NAME: usize = 10;

/// Options that have a say in what is computed, in the order in which they are told.
const OPTIONS: [&str; 12] = [
    "compare",
    "providers",
    "runtimes",
    "opset",
    "ort_optimization",
    "session_options",
    "disable_passes",
    "precision_rules",
    "custom_translations",
    "transforms",
    "freeze_parameters",
    "tolerance",
];

/// The graph as readable code.
const CODE: &str = "fx.txt";

/// Which program, when, with what.
pub(super) fn of_run(run: &RunEntry, width: usize) -> String {
    let info = &run.info;
    let text = |key: &str| info[key].as_str().unwrap_or_default().to_owned();
    let pid = info["pid"].as_u64().map_or_else(String::new, |pid| format!(", pid {pid}"));
    let versions = info["versions"].as_object().into_iter().flatten();
    let versions = versions.filter_map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned())));
    let python = Some(("Python".to_owned(), text("python"))).filter(|(_, version)| !version.is_empty());
    let versions = versions.filter(|(_, version)| version != "-").chain(python);
    let devices = info["devices"].as_array().into_iter().flatten().filter_map(Value::as_str);
    facts(
        &[
            ("run", run.name.clone()),
            ("program", if text("program").is_empty() { String::new() } else { text("program") + &pid }),
            ("started", text("start")),
            ("versions", versions.map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")),
            ("devices", devices.collect::<Vec<_>>().join(", ")),
            ("platform", text("platform")),
            ("library", text("onnxruntime_library")),
        ],
        width,
    )
}

/// Where its nodes run, with which options, and why some are left to eager.
pub(super) fn of_graph(graph: &GraphEntry, width: usize) -> String {
    let info = &graph.info;
    let nodes = match (info["compute_nodes"].as_u64(), info["eager_nodes"].as_u64()) {
        (Some(all), Some(eager)) => {
            let parts = graph.parts.len();
            let end = if parts == 1 { "" } else { "s" };
            format!("{} on ONNX Runtime in {parts} part{end}, {eager} in eager", all.saturating_sub(eager))
        }
        _ => String::new(),
    };
    let options = OPTIONS.iter().filter(|name| is_telling(&info["options"][name]));
    let options = options.map(|name| format!("{name}={}", info["options"][name]));
    let left = info["eager"].as_array().into_iter().flatten();
    let left = table::counted(left.map(|node| {
        let text = |key: &str| node[key].as_str().unwrap_or_default();
        format!("{}: {}", text("op"), text("reason"))
    }));
    let more = left.len().saturating_sub(MOST_ROWS);
    let told = left.into_iter().take(MOST_ROWS).map(|(text, n)| ("in eager", format!("{n} × {text}")));
    let more = (more > 0).then(|| ("in eager", format!("{more} reasons more: --json has all")));
    let known = [("graph", graph.name.clone()), ("nodes", nodes), ("options", options.collect::<Vec<_>>().join(", "))];
    facts(&known.into_iter().chain(told).chain(more).collect::<Vec<_>>(), width)
}

/// The graph as code, as wide as the terminal; nothing where it was not dumped. Errors: it is damaged.
pub(super) fn code_of(graph: &GraphEntry) -> Result<String, Failure> {
    let path = graph.path.join(CODE);
    if !path.exists() {
        return Ok(String::new());
    }
    let text = reader::text(&path).map_err(at(&path))?;
    Ok(format!("\n{CODE}:\n{}", table::fit(&text, table::terminal())))
}

/// Whether an option says more than that it is not used.
fn is_telling(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => text != "off",
        Value::Array(list) => !list.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    }
}

/// A line each, with its name before it; a longer one goes on below.
fn facts(facts: &[(&str, String)], width: usize) -> String {
    let mut text = String::new();
    for (name, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        let lines = table::wrapped(&one_line(fact), width.saturating_sub(NAME + 1));
        for (name, line) in std::iter::once(*name).chain(std::iter::repeat("")).zip(lines) {
            text += &format!("{name:NAME$} {line}\n");
        }
    }
    text
}
