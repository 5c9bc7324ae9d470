//! Dumps with another content in one file. What is sealed and differs is told, and no data set with it is judged; what is
//! not sealed, as in versions before, is read or refused.
//!
//! An input's first line names the file below one of two runs, `sealed/` and `plain/`; the rest is its content.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rust_ort::dump::reader::{self, Completeness, Place};
use rust_ort::dump::{Judging, Role, verify};
use rust_ort::tensor::DType;
use tempfile::TempDir;

use crate::driver::scratch;
use crate::dumping::piped;
use crate::mutate::{self, Draws};
use crate::protobuf;
use crate::small_dump::{self, files, replace};
use crate::target::{Reached, Target, named};

pub const TARGET: Target = Target {
    name: "dumps",
    seeds,
    open: || {
        let mut dump = Dump::new();
        Box::new(move |bytes| dump.read(bytes))
    },
    mutate: mutated,
    most_bytes: |len| 4096 * len + (16 << 20),
};

/// The program itself is run on each of so many inputs.
const PROGRAM_EVERY: u64 = 512;
const RUNS: [&str; 2] = ["sealed", "plain"];

struct Dump {
    folder: TempDir,
    /// Name below the folder → content.
    whole: BTreeMap<String, Vec<u8>>,
    n_read: u64,
}

impl Dump {
    fn new() -> Self {
        let folder = scratch();
        for name in RUNS {
            let home = folder.path().join(format!("{name}.home"));
            let run = small_dump::dump_of_id(&home, &"0".repeat(32));
            if name == "plain" {
                small_dump::unseal(&run);
            }
            fs::rename(run, folder.path().join(name)).unwrap();
            fs::remove_dir_all(home).unwrap();
        }
        let name = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let read = |path: PathBuf| (name(&path), fs::read(folder.path().join(&path)).unwrap());
        let whole = files(folder.path()).into_iter().map(read).collect();
        Self { folder, whole, n_read: 0 }
    }

    fn read(&mut self, input: &[u8]) -> Reached {
        let Some((name, content)) = named(input) else { return Reached::refused("no name") };
        let Some(whole) = self.whole.get(name).cloned() else { return Reached::refused("no such file") };
        let path = self.folder.path().join(name);
        replace(&path, content);
        self.n_read += 1;
        let reached = self.look(name, content == whole);
        if self.n_read.is_multiple_of(PROGRAM_EVERY) {
            self.program(name, content == whole);
        }
        replace(&path, &whole);
        reached
    }

    fn look(&self, name: &str, is_whole: bool) -> Reached {
        let (root, path) = (self.folder.path(), self.folder.path().join(name));
        let run = root.join(&name[..name.find('/').expect("files are in a run")]);
        let verified = verify(&run);
        let sealed = run.ends_with("sealed");
        if sealed && !is_whole {
            // A list that is damaged tells nothing of others, so that these are not told, either.
            let told = verified.as_ref().map_or(true, |found| !found.is_whole());
            assert!(told, "verify finds {name} whole: {verified:?}");
        }
        let judged = judged(&run);
        if let Ok(sets) = &judged {
            let with_it = sets.iter().find(|set| sealed && !is_whole && is_read_of(set, &path));
            assert_eq!(with_it, None, "a data set is judged with a damaged {name}");
        }
        let whole = verified.map_or_else(
            |error| error.to_string(),
            |found| {
                let reasons: Vec<&str> = found.damaged.iter().map(|damage| damage.reason.as_str()).collect();
                reasons.join(" ")
            },
        );
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let n_judged = "j".repeat(judged.map_or(0, |sets| sets.len()));
        let said = format!("{extension} {n_judged} {whole}");
        if is_whole || !sealed { Reached::accepted(said) } else { Reached::refused(said) }
    }

    /// Commands end with a code of theirs; compare tells what it would have judged.
    fn program(&self, name: &str, is_whole: bool) {
        let folder = self.folder.path();
        let run = name.split('/').next().unwrap();
        let damaged = run == "sealed" && !is_whole;
        for command in ["verify", "compare", "ls", "show", "sbs"] {
            let said = piped(folder, &[command, run]);
            assert!((0..=4).contains(&said.code), "{command} {run}, {name}: {} {}", said.code, said.err);
            assert!(
                !damaged || command != "verify" || said.code == 4,
                "verify: {} {}{}",
                said.code,
                said.out,
                said.err
            );
            let compared = is_read_of(Path::new(name).parent().unwrap(), Path::new(name));
            assert!(!damaged || command != "compare" || !compared || said.code == 4, "compare: {name}: {}", said.code);
        }
    }
}

/// Whether a call's data set cannot be judged without the file: its manifest, its tensors but the inputs. Those of single
/// nodes are judged when they are asked for.
fn is_read_of(set: &Path, file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_str().unwrap_or_default();
    let is_step = |set: &Path| set.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_data_set_"));
    let is_call = |set: &Path| set.parent().and_then(Path::file_name).is_some_and(|name| name == "part_0");
    file.parent() == Some(set)
        && is_step(set)
        && is_call(set)
        && (name.ends_with(".json") || !name.starts_with("input_"))
}

/// The data sets below a run that are judged, as `rust-ort compare` does. Errors: the run cannot be read.
fn judged(run: &Path) -> Result<Vec<PathBuf>, String> {
    let Place::Run(run) = reader::find(run).map_err(|error| error.to_string())? else {
        return Err("no run".to_owned());
    };
    let sets = run.graphs.iter().flat_map(|graph| &graph.parts).flat_map(|part| &part.steps);
    Ok(sets
        .filter(|set| set.state == Completeness::Complete)
        .filter(|set| judge(&set.path).is_ok())
        .map(|set| set.path.clone())
        .collect())
}

fn judge(set: &Path) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let tensors = |role| reader::tensors(set, role).map_err(|error| told(&error));
    let (references, actuals) = (tensors(Role::Reference)?, tensors(Role::Actual)?);
    let judging = Judging::of(set).map_err(|error| told(&error))?.unwrap_or_default();
    for (reference, actual) in references.iter().zip(&actuals) {
        let load = |file: &reader::TensorFile| file.load().map_err(|error| told(&error));
        let (reference, actual) = (load(reference)?, load(actual)?);
        let tolerance = judging.policy.tolerance(DType::F32);
        judging.judge_within(&tolerance, &actual.name, &reference.view(), &actual.view());
    }
    Ok(())
}

/// One file of each kind; of another graph or step it is the same.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let dump = Dump::new();
    let first = |name: &&String| name.contains("0_0-forward") || name.matches('/').count() == 1;
    let names = dump.whole.keys().filter(first).filter(|name| !name.contains("_1/") && !name.contains("_1."));
    names.map(|name| (name.replace('/', "."), [name.as_bytes(), b"\n", &dump.whole[name]].concat())).collect()
}

fn mutated(draws: &mut Draws, input: &[u8], other: &[u8]) -> Vec<u8> {
    let Some((name, content)) = named(input) else { return mutate::bytes(draws, input, other) };
    let theirs = named(other).map_or(other, |(_, content)| content);
    let is_message = name.ends_with(".pb") || name.ends_with(".onnx");
    let content = match draws.below(3) {
        0 => mutate::bytes(draws, content, theirs),
        _ if is_message => protobuf::message(draws, content, theirs),
        _ => mutate::bytes(draws, content, theirs),
    };
    [name.as_bytes(), b"\n", &content].concat()
}
