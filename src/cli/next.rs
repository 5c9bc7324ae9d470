//! The command to go on with, as a shell takes it.

use std::path::Path;

use super::table;
use crate::base::quoted::shell_word;
use crate::dump::reader;

/// What to dump with, where a dump has nothing of eager's outputs.
pub(super) const DUMP_OUTPUTS: &str = "dump with compare=\"outputs\"";

/// What to dump with, where a dump has no call.
pub(super) const DUMP_CALLS: &str = "dump a call of what is compiled, with calls=\"first\" or \"all\"";

/// Of a place without a data set.
pub(super) fn no_data_sets(path: &Path) -> String {
    format!("{}: no data sets; {DUMP_CALLS}", path.display())
}

/// `next: rust-ort <command> <path>`, and what else the command is given.
pub(super) fn command(command: &str, path: &Path, flags: &str) -> String {
    let space = if flags.is_empty() { "" } else { " " };
    format!("next: rust-ort {command} {}{space}{flags}\n", shell_word(&path.to_string_lossy()))
}

/// Who is to blame. parts: those that something is wrong in; without eager's values of their nodes blame cannot tell.
pub(super) fn blame<'a>(path: &Path, parts: impl IntoIterator<Item = &'a Path>) -> String {
    let has_values = |part: &Path| reader::value_folders(part).is_ok_and(|folders| !folders.is_empty());
    match parts.into_iter().all(has_values) {
        true => command("blame", path, ""),
        false => {
            let text = "next: dump again with compare=\"nodes\" and dump_values=True, for rust-ort blame";
            table::paragraph(text, table::width())
        }
    }
}
