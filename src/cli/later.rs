//! Commands of a later version, and what serves until then.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// (command, what to use instead). docs/guide/commands.md names them.
const LATER: &[(&str, &str)] = &[
    ("capture", "dump from Python: `with rust_ort.dump(\"name\"): ...`, or RUST_ORT_DUMP=<folder>"),
    ("diff", "`rust-ort compare <dump>` judges a dump's outputs against eager's"),
    ("bench", "`make bench` in the repository"),
];

/// What to say to a command line that names one of them.
pub(super) fn answer(error: &clap::Error) -> Option<String> {
    let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(name))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    else {
        return None;
    };
    let (_, instead) = LATER.iter().find(|(later, _)| later == name)?;
    Some(format!("{name} is not available yet; until then: {instead}"))
}
