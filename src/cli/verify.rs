//! `rust-ort verify`: whether a dump is as it was written.

use std::path::PathBuf;

use serde_json::json;

use super::answer::{json_text, line, mebibytes, put};
use super::exit::{Exit, Outcome};
use crate::dump::{Verified, verify};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// A folder of dumps, a run, a graph, a part, a data set or the folder of a node
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let found = verify(&args.path)?;
    put(&if args.json { json_text("verify", json!(found))? } else { text_of(&found) })?;
    Ok(if !found.is_whole() {
        Exit::Damaged
    } else if found.whole == 0
        || [&found.not_sealed, &found.unlisted].iter().any(|paths| !paths.is_empty())
        || !found.incomplete.is_empty()
    {
        Exit::NothingCompared
    } else {
        Exit::Success
    })
}

fn text_of(found: &Verified) -> String {
    let mut text = String::new();
    for damage in &found.damaged {
        text += &line(format_args!("damaged    {}: {}", damage.path.display(), damage.reason));
    }
    let lists = [("missing", &found.missing), ("unlisted", &found.unlisted), ("not sealed", &found.not_sealed)];
    for (what, paths) in lists {
        for path in paths {
            text += &line(format_args!("{what:10} {}", path.display()));
        }
    }
    for of in &found.incomplete {
        text += &line(format_args!("incomplete {}: {}", of.path.display(), of.reason));
    }
    let counts = [
        (found.damaged.len(), "damaged"),
        (found.missing.len(), "missing"),
        (found.unlisted.len(), "unlisted"),
        (found.incomplete.len(), "never written"),
        (
            found.not_sealed.len(),
            "of which nothing tells: of a version before seals, or of data sets that were not finished",
        ),
    ];
    let others: String = counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!(", {n} {what}")).collect();
    let (whole, bytes) = (found.whole, mebibytes(found.bytes));
    text + &line(format_args!("{whole} files whole ({bytes} read){others}"))
}
