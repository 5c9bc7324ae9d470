//! `rust-ort study`: numerical studies, made on every runtime that this program has.

mod arguments;
mod csv;
mod runtimes;
mod text;

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub(super) use arguments::Arguments;
use arguments::{Common, Which};
use runtimes::Loaded;

use super::answer::{json_text, put, put_exact, warn};
use super::exit::{Exit, Failure, Outcome};
use super::output_file::OutputFile;
use super::progress;
use crate::base::process::own_command;
use crate::study::plot::Plot;
use crate::study::{Finding, gemm, layernorm, reduction};

/// A study's result in every form.
struct Made<'a, T> {
    name: &'a str,
    study: &'a T,
    text: String,
    csv: String,
    plot: Plot,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let svg = picture(args.study.common())?;
    match &args.study {
        Which::Gemm(args) => {
            let Some(loaded) = Loaded::new(&args.common)? else { return Ok(Exit::NothingCompared) };
            let settings = gemm::Settings {
                rows: args.rows as usize,
                size: args.size as usize,
                dtypes: args.common.dtypes(),
                seed: args.common.seed,
            };
            let bar = progress::bar(settings.n_parts(), "matrices");
            let study = gemm::study(&loaded.runtimes(), &settings, &mut || bar.inc(1))?;
            bar.finish_and_clear();
            let (text, csv) = (text::gemm(&study), csv::gemm(&study));
            give(&args.common, svg.as_ref(), &Made { name: "gemm", plot: study.plot(), study: &study, text, csv })?;
            Ok(Exit::Success)
        }
        Which::Layernorm(args) => {
            let Some(loaded) = Loaded::new(&args.common)? else { return Ok(Exit::NothingCompared) };
            let settings = layernorm::Settings {
                batch: args.batch as usize,
                rows: args.rows as usize,
                size: args.size as usize,
                dtypes: args.common.dtypes(),
                seed: args.common.seed,
            };
            let bar = progress::bar(settings.dtypes.len(), "dtypes");
            let study = layernorm::study(&loaded.runtimes(), &settings, &mut || bar.inc(1))?;
            bar.finish_and_clear();
            let (text, csv) = (text::layernorm(&study), csv::layernorm(&study));
            give(
                &args.common,
                svg.as_ref(),
                &Made { name: "layernorm", plot: study.plot(), study: &study, text, csv },
            )?;
            match &study.setup.not_run {
                None => Ok(Exit::Success),
                Some(why) => {
                    warn(format_args!("nothing was compared: this study is of two runtimes; libtorch not run: {why}"));
                    Ok(Exit::NothingCompared)
                }
            }
        }
        Which::Reduction(args) => {
            let Some(loaded) = Loaded::new(&args.common)? else { return Ok(Exit::NothingCompared) };
            let settings = reduction::Settings {
                size: args.size as usize,
                orders: args.orders as usize,
                dtypes: args.common.dtypes(),
                seed: args.common.seed,
            };
            let bar = progress::bar(settings.dtypes.len() * reduction::distributions().count(), "sets of numbers");
            let mut study = reduction::study(&loaded.runtimes(), &settings, !args.runtimes_only, &mut || bar.inc(1))?;
            if study.setup.threads > 1 {
                let size = [args.size.to_string(), args.orders.to_string()];
                let with = ["reduction", "--size", &size[0], "--orders", &size[1], "--runtimes-only"];
                study.add(with_one_thread::<reduction::Study>(&args.common, &loaded.library, &with)?.sums);
            }
            bar.finish_and_clear();
            let (text, csv) = (text::reduction(&study), csv::reduction(&study));
            give(
                &args.common,
                svg.as_ref(),
                &Made { name: "reduction", plot: study.plot(), study: &study, text, csv },
            )?;
            Ok(Exit::Success)
        }
    }
}

/// The same study in a process of its own with pools of one thread: a process has one pool for each runtime. Errors: what
/// that process says.
fn with_one_thread<T: DeserializeOwned>(common: &Common, library: &Path, with: &[&str]) -> Result<T, Failure> {
    let mut process = own_command();
    process.arg("study").args(with).args(["--threads", "1", "--json", "--dtype", &common.dtype_names()]);
    process.args(["--provider", &common.provider, "--seed", &common.seed.to_string()]);
    process.arg("--onnxruntime").arg(library);
    let failed = |reason: String| format!("the same study with one thread, in a process of its own: {reason}");
    let ended = process.output().map_err(|error| failed(error.to_string()))?;
    if !ended.status.success() {
        return Err(failed(format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim())).into());
    }
    let mut answer: serde_json::Value =
        serde_json::from_slice(&ended.stdout).map_err(|error| failed(error.to_string()))?;
    Ok(serde_json::from_value(answer["result"].take()).map_err(|error| failed(error.to_string()))?)
}

/// Where it is drawn. Errors: nothing can be written there.
fn picture(common: &Common) -> Result<Option<OutputFile>, Failure> {
    let svg = common.svg.as_deref().map(|path| OutputFile::at(path, Vec::new())).transpose()?;
    if (common.json || common.csv) && svg.as_ref().is_some_and(OutputFile::is_stdout) {
        return Err(
            "--svg - beside --json or --csv: standard output has one of them; name a file for the picture".into()
        );
    }
    Ok(svg)
}

/// Prints it, and draws it where that was asked for.
fn give<T: Serialize>(common: &Common, svg: Option<&OutputFile>, made: &Made<'_, T>) -> Result<(), Failure> {
    if let Some((file, path)) = svg.zip(common.svg.as_ref()) {
        file.write(made.plot.svg().as_bytes())?;
        if file.is_stdout() {
            return Ok(());
        }
        warn(format_args!("wrote {}", path.display()));
    }
    if common.json {
        put(&json_text("study", json!({ "study": made.name, "result": made.study }))?)
    } else if common.csv {
        put_exact(&made.csv)
    } else {
        put(&made.text)
    }
}

/// One line each, below whose they are.
fn findings(findings: &[Finding]) -> String {
    let source = findings.first().map(|finding| finding.source.as_str()).unwrap_or_default();
    let lines = findings.iter().map(|finding| format!("- {finding}\n"));
    format!("seed: {source}\n{}", lines.collect::<String>())
}
