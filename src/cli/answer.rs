//! What a subcommand prints.

use std::io::{self, Write as _};

use serde::Serialize;
use serde_json::Value;

use super::exit::{Exit, Failure, Outcome};
use crate::base::quoted::{is_printable, one_line, plain_len, printable};

/// Writes to standard output what a terminal may show as it is: names in it may be anybody's. A reader that has gone
/// (`| head`) is no error.
pub(super) fn put(text: &str) -> Result<(), Failure> {
    put_exact(&printable(text))
}

/// The same of a text for a program, whose cells were made printable one by one.
pub(super) fn put_exact(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes what is held back of standard output. A reader that has gone is no error.
pub(super) fn flush() -> Result<(), Failure> {
    match io::stdout().flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// An answer as JSON, with the name and version of its form.
pub(super) fn json_text(command: &str, mut answer: Value) -> Result<String, serde_json::Error> {
    answer["schema"] = schema(command).into();
    pretty(&answer)
}

/// The name of the form of a command's JSON, and its version.
pub(super) fn schema(command: &str) -> String {
    format!("rust_ort/cli/{command}/1")
}

/// JSON of several lines. What a terminal should not get stands in it as JSON escapes it.
pub(super) fn pretty(value: &(impl Serialize + ?Sized)) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    let mut safe = String::with_capacity(text.len());
    let mut rest = text.as_str();
    loop {
        let (plain, left) = rest.split_at(plain_len(rest));
        safe.push_str(plain);
        let mut chars = left.chars();
        let Some(c) = chars.next() else { return Ok(safe) };
        // They are in strings alone, and none of them needs two escapes.
        if is_printable(c) {
            safe.push(c)
        } else {
            safe += &format!("\\u{:04x}", u32::from(c))
        }
        rest = chars.as_str();
    }
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

/// A line of an answer. Names in it may be anybody's, and begin no other line.
pub(super) fn line(what: impl std::fmt::Display) -> String {
    one_line(&what.to_string()) + "\n"
}

/// Says something beside the answer, in a line. It may name what a dump holds.
pub(super) fn warn(what: impl std::fmt::Display) {
    eprint!("rust-ort: {}", line(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_for_a_terminal_reads_as_before() {
        let value = serde_json::json!({ "a\u{9b}": "b\u{202e}c\n\u{1b}é" });
        let text = pretty(&value).unwrap();
        assert!(text.chars().all(is_printable), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
