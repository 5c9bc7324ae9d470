//! What a subcommand prints.

use std::io::{self, Write as _};

use serde_json::Value;

use super::exit::{Exit, Failure, Outcome};
use crate::base::quoted::printable;

/// Write to standard output. A reader that has gone (`| head`) is no error.
pub(super) fn put(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// An answer as JSON, with the name and version of its form.
pub(super) fn json_text(command: &str, mut answer: Value) -> Result<String, serde_json::Error> {
    answer["schema"] = format!("rust_ort/cli/{command}/1").into();
    Ok(serde_json::to_string_pretty(&answer)? + "\n")
}

/// Prints what a command did: `answer` as JSON, or in words.
pub(super) fn tell(command: &str, as_json: bool, answer: Value, words: &str) -> Outcome {
    if as_json {
        put(&json_text(command, answer)?)?
    } else {
        put(words)?
    }
    Ok(Exit::Success)
}

/// "1.5 MiB".
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Says something beside the answer. It may name what a dump holds.
pub(super) fn warn(what: impl std::fmt::Display) {
    eprintln!("rust-ort: {}", printable(&what.to_string()));
}
