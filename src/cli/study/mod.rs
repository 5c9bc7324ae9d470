//! `rust-ort study`: numerical studies, made on every runtime that this program has.

mod arguments;
mod csv;
mod runtimes;
mod text;

use std::path::{Path, PathBuf};

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
use crate::study::{Finding, Holds, OWN, Setup, gemm, layernorm, reduction};

/// A study's result in every form.
struct Made<'a, T> {
    name: &'a str,
    study: &'a T,
    text: String,
    csv: String,
    plot: Plot,
}

/// Files that are written beside what is printed.
struct Files {
    svg: Option<OutputFile>,
    result: Option<OutputFile>,
}

/// What studies have in common.
trait Study {
    fn setup(&mut self) -> &mut Setup;
    fn findings(&mut self) -> &mut Vec<Finding>;
}

macro_rules! studies {
    ($($study:ty),*) => {
        $(impl Study for $study {
            fn setup(&mut self) -> &mut Setup {
                &mut self.setup
            }

            fn findings(&mut self) -> &mut Vec<Finding> {
                &mut self.findings
            }
        })*
    };
}
studies!(gemm::Study, layernorm::Study, reduction::Study);

pub(super) fn run(args: &Arguments) -> Outcome {
    let common = args.study.common();
    let files = Files::of(common)?;
    let Some(loaded) = Loaded::new(common)? else { return Ok(Exit::NothingCompared) };
    if let Some(why) = loaded.no_libtorch()
        && !says_what_is_left_out(&args.study, why)
    {
        return Ok(Exit::NothingCompared);
    }
    let draws = common.draws as usize;
    match &args.study {
        Which::Gemm(args) => {
            let mut settings = gemm::Settings {
                rows: args.rows as usize,
                size: args.size as usize,
                dtypes: common.dtypes(),
                seed: common.seed,
            };
            let bar = progress::bar(draws * settings.n_parts(), "matrices");
            let study = over_draws(common, |seed| {
                settings.seed = seed;
                Ok(gemm::study(&loaded.runtimes(), &settings, &mut || bar.inc(1))?)
            })?;
            bar.finish_and_clear();
            let (text, csv) = (text::gemm(&study), csv::gemm(&study));
            give(common, &files, &Made { name: "gemm", plot: study.plot(), study: &study, text, csv })?;
        }
        Which::Layernorm(args) => {
            let mut settings = layernorm::Settings {
                batch: args.batch as usize,
                rows: args.rows as usize,
                size: args.size as usize,
                dtypes: common.dtypes(),
                seed: common.seed,
            };
            let bar = progress::bar(draws * settings.dtypes.len(), "dtypes");
            let study = over_draws(common, |seed| {
                settings.seed = seed;
                Ok(layernorm::study(&loaded.runtimes(), &settings, &mut || bar.inc(1))?)
            })?;
            bar.finish_and_clear();
            let (text, csv) = (text::layernorm(&study), csv::layernorm(&study));
            give(common, &files, &Made { name: "layernorm", plot: study.plot(), study: &study, text, csv })?;
        }
        Which::Reduction(args) => {
            let study = over_draws(common, |seed| reduction_of(args, &loaded, seed))?;
            let (text, csv) = (text::reduction(&study), csv::reduction(&study));
            give(common, &files, &Made { name: "reduction", plot: study.plot(), study: &study, text, csv })?;
        }
    }
    Ok(Exit::Success)
}

/// Says what is not run without libtorch, before minutes are spent. False: nothing is left.
fn says_what_is_left_out(study: &Which, why: &str) -> bool {
    match study {
        Which::Layernorm(_) => {
            warn(format_args!("nothing to compare: this study is of two runtimes, and libtorch is not run: {why}"));
            return false;
        }
        Which::Gemm(_) => warn(format_args!(
            "two of the eight ways, {} and {}, and what is found of them are left out: libtorch is not run: {why}",
            gemm::LINEAR,
            gemm::AT
        )),
        Which::Reduction(args) if args.runtimes_only => {}
        Which::Reduction(_) => warn(format_args!("onnxruntime alone: libtorch is not run: {why}")),
    }
    true
}

/// The study of the first seed, with what each further draw says of its findings.
fn over_draws<T: Study>(common: &Common, mut make: impl FnMut(u64) -> Result<T, Failure>) -> Result<T, Failure> {
    let mut first = make(common.seed)?;
    for draw in 1..common.draws {
        let mut other = make(common.seed.wrapping_add(u64::from(draw)))?;
        Finding::add_draw(first.findings(), other.findings());
    }
    first.setup().draws = common.draws;
    Ok(first)
}

fn reduction_of(args: &arguments::Reduction, loaded: &Loaded, seed: u64) -> Result<reduction::Study, Failure> {
    let common = &args.common;
    let settings =
        reduction::Settings { size: args.size as usize, orders: args.orders as usize, dtypes: common.dtypes(), seed };
    let bar = progress::bar(settings.dtypes.len() * reduction::distributions().count(), "sets of numbers");
    let mut study = reduction::study(&loaded.runtimes(), &settings, !args.runtimes_only, &mut || bar.inc(1))?;
    if study.setup.threads > 1 {
        let size = [args.size.to_string(), args.orders.to_string(), seed.to_string()];
        let with = ["reduction", "--size", &size[0], "--orders", &size[1], "--seed", &size[2], "--runtimes-only"];
        study.add(with_one_thread::<reduction::Study>(common, &loaded.library, &with)?.sums);
    }
    bar.finish_and_clear();
    Ok(study)
}

/// The same study in a process of its own with pools of one thread: a process has one pool for each runtime. Errors: what
/// that process says.
fn with_one_thread<T: DeserializeOwned>(common: &Common, library: &Path, with: &[&str]) -> Result<T, Failure> {
    let mut process = own_command();
    process.arg("study").args(with).args(["--threads", "1", "--json", "--dtype", &common.dtype_names()]);
    process.args(["--provider", &common.provider]);
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

impl Files {
    /// Errors: nothing can be written there.
    fn of(common: &Common) -> Result<Self, Failure> {
        let at = |path: &Option<PathBuf>| path.as_deref().map(|path| OutputFile::at(path, Vec::new())).transpose();
        let files = Self { svg: at(&common.svg)?, result: at(&common.result)? };
        if (common.json || common.csv) && files.svg.as_ref().is_some_and(OutputFile::is_stdout) {
            return Err(
                "--svg - beside --json or --csv: standard output has one of them; name a file for the picture".into()
            );
        }
        if files.result.as_ref().is_some_and(OutputFile::is_stdout) {
            return Err("--result -: standard output has what is printed; --json prints the result".into());
        }
        Ok(files)
    }
}

/// Prints it, and writes the files that were asked for.
fn give<T: Serialize>(common: &Common, files: &Files, made: &Made<'_, T>) -> Result<(), Failure> {
    let as_json = || json_text("study", json!({ "study": made.name, "result": made.study }));
    if let Some(file) = &files.result {
        file.write(as_json()?.as_bytes())?;
    }
    let drawn = files.svg.as_ref().zip(common.svg.as_ref());
    if let Some((_, path)) = drawn
        && made.plot.is_empty()
    {
        warn(format_args!("{}: not written, for nothing that it shows was run", path.display()));
    } else if let Some((file, path)) = drawn {
        file.write(made.plot.svg().as_bytes())?;
        if file.is_stdout() {
            return Ok(());
        }
        warn(format_args!("wrote {}", path.display()));
    }
    if common.json {
        put(&as_json()?)
    } else if common.csv {
        put_exact(&made.csv)
    } else {
        put(&made.text)
    }
}

/// Each example's, then this study's own. setup: of the study.
fn findings(findings: &[Finding], setup: &Setup) -> String {
    let mut sources: Vec<&str> = Vec::new();
    for finding in findings {
        if !sources.contains(&finding.source.as_str()) {
            sources.push(&finding.source);
        }
    }
    sources.sort_by_key(|source| *source == OWN);
    let not_run = |finding: &&Finding| finding.holds == Holds::NotExamined && setup.libtorch.is_none();
    let mut text = String::new();
    for source in sources {
        let of_source = || findings.iter().filter(|finding| finding.source == source);
        text += &match source == OWN {
            true => "this study's own, claimed by no example\n".to_owned(),
            false => format!("seed: {source}\n"),
        };
        text.extend(of_source().filter(|finding| !not_run(finding)).map(|finding| format!("- {finding}\n")));
        match of_source().filter(not_run).count() {
            0 => {}
            n => text += &format!("- not examined, for libtorch was not run: {n} more\n"),
        }
    }
    if findings.iter().any(|finding| finding.holds == Holds::OtherSizes) {
        text += "no verdict: claimed of the default sizes on a CPU\n";
    }
    text
}
