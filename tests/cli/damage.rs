//! A dump that is not as it was written: flipped bits, cuts, swapped files, garbage, pipes. Every one that is read is told,
//! none is a match or a mismatch, none is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rust_ort::dump::to_json;
use serde_json::{Value, json};

use crate::dumping::{self, piped, program};
use crate::small_dump::{dump, files, replace, unseal};

const N_DAMAGES: usize = 1000;
const BATCH: usize = 100;

/// Numbers that are the same in every run of the test.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The run, linked file by file.
fn copy(whole: &Path, names: &[PathBuf], to: &Path) {
    for name in names {
        fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        fs::hard_link(whole.join(name), to.join(name)).unwrap();
    }
}

/// Damages a file of a copy. Returns which files are damaged; empty where nothing is.
fn damage(run: &Path, names: &[PathBuf], name: &Path, kind: usize, draws: &mut Draws) -> Vec<PathBuf> {
    let path = run.join(name);
    let mut bytes = fs::read(&path).unwrap();
    match kind {
        0 => {
            let bit = draws.below(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        1 => bytes.truncate(draws.below(bytes.len())),
        2 => bytes = (0..draws.below(200)).map(|_| draws.below(256) as u8).collect(),
        _ => {
            let is_other =
                |other: &&PathBuf| other.extension() == name.extension() && fs::read(run.join(other)).unwrap() != bytes;
            let others: Vec<&PathBuf> = names.iter().filter(is_other).collect();
            let other = run.join(others[draws.below(others.len())]);
            let theirs = fs::read(&other).unwrap();
            replace(&other, &bytes);
            replace(&path, &theirs);
            return vec![path, other];
        }
    }
    replace(&path, &bytes);
    vec![path]
}

fn paths(list: &Value, key: &str) -> BTreeSet<PathBuf> {
    let path = |entry: &Value| PathBuf::from(if key.is_empty() { entry } else { &entry[key] }.as_str().unwrap());
    list.as_array().unwrap().iter().map(path).collect()
}

/// Whether `rust-ort compare` reads the file.
fn is_compared(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    let above = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let in_data_set = above.starts_with("test_data_set_") && !path.to_str().unwrap().contains("node_y_0");
    match name {
        "run.json" | "parts.json" => true,
        "manifest.json" => in_data_set,
        "files.json" => above.starts_with("0_0-"),
        _ if name.starts_with("comparison_") => true,
        _ => in_data_set && !name.starts_with("input_"),
    }
}

#[test]
fn a_thousand_damages_are_told_and_none_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let whole = dump(folder.path());
    let names = files(&whole);
    let verified = piped(folder.path(), &["verify", "run"]);
    assert!(verified.code == 0 && verified.out.contains("files whole"), "{}{}", verified.out, verified.err);
    assert_eq!(piped(folder.path(), &["compare", "run"]).code, 1, "one of the calls differs");
    let mut draws = Draws(1);
    let mut counted: BTreeMap<usize, usize> = BTreeMap::new();
    for first in (0..N_DAMAGES).step_by(BATCH) {
        let batch = folder.path().join(format!("batch_{first}"));
        let mut damaged: Vec<(PathBuf, usize, Vec<PathBuf>)> = Vec::new();
        for n in first..first + BATCH {
            let run = batch.join(format!("r{n}"));
            copy(&whole, &names, &run);
            let (name, kind) = (&names[n % names.len()], n / names.len() % 4);
            // What one examination kept is known to another by its key.
            let kind = if kind == 3 && name.to_str().unwrap().contains("blame_") { 0 } else { kind };
            *counted.entry(kind).or_default() += 1;
            let files = damage(&run, &names, name, kind, &mut draws);
            damaged.push((run, kind, files));
        }
        let batch = batch.to_str().unwrap();
        assert_eq!(piped(folder.path(), &["verify", batch]).code, 4);
        let verified = dumping::json(folder.path(), &["verify", batch]);
        let (told, missing) = (paths(&verified["damaged"], "path"), paths(&verified["missing"], ""));
        assert_eq!(piped(folder.path(), &["compare", batch]).code, 4);
        let compared = dumping::json(folder.path(), &["compare", batch]);
        let told_by_compare = paths(&compared["damaged"], "path");
        let judged: BTreeSet<PathBuf> = (compared["data_sets"].as_array().unwrap().iter())
            .filter(|set| !set["verdicts"].as_array().unwrap().is_empty())
            .map(|set| PathBuf::from(set["path"].as_str().unwrap()))
            .collect();
        let mut whole_runs = BTreeSet::new();
        for (run, kind, files) in &damaged {
            let is_told = |file: &PathBuf| told.contains(file);
            let is_list_of_others = files.iter().any(|file| file.ends_with("files.json"));
            // A list that tells of other files: what it tells of is missing, or is not so.
            let is_any = |paths: &BTreeSet<PathBuf>| paths.iter().any(|path| path.starts_with(run));
            let lacks = is_any(&missing) || is_any(&told);
            assert!(files.iter().all(is_told) || is_list_of_others && lacks, "verify: {kind}: {files:?}");
            for file in files.iter().filter(|file| is_compared(file)) {
                // The first damage keeps a data set from being judged.
                let set = file.parent().unwrap();
                let is_told = told_by_compare.iter().any(|path| path.parent() == Some(set));
                assert!(is_told || is_list_of_others && lacks, "compare: {kind}: {file:?}");
                assert!(!judged.contains(set), "compare judges with {file:?}");
            }
            whole_runs.insert(run);
        }
        // Nothing is accused of damage that another has.
        assert!(told.iter().all(|path| whole_runs.iter().any(|run| path.starts_with(run))), "{told:?}");
        fs::remove_dir_all(batch).unwrap();
    }
    assert!(counted.len() == 4 && counted.values().all(|&n| n >= 100), "{counted:?}");
}

/// What each other command reads, one file of each kind.
#[test]
fn each_command_tells_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let whole = dump(folder.path());
    let part = "run/0_0-forward/part_0";
    let library = crate::common::library();
    let runtime = ["--onnxruntime", library.to_str().unwrap()];
    for (file, args) in [
        ("part_0/nodes_0.json", &["sbs", part][..]),
        ("part_0/nodes_0.json", &["show", "run/0_0-forward/part_0/nodes_0.json"]),
        ("part_0/comparison_0.json", &["sbs", part]),
        ("part_0/comparison_0.json", &["ls", part]),
        ("part_0/comparison_0.json", &["show", part]),
        ("part_0/model.onnx", &["sbs", part]),
        ("part_0/model.onnx", &["show", part]),
        ("part_0/model.ort.onnx", &["show", "run/0_0-forward/part_0/model.ort.onnx"]),
        ("part_0/files.json", &["show", "run/0_0-forward/part_0/model.ort.onnx"]),
        ("part_0/test_data_set_0/manifest.json", &["ls", "run"]),
        ("part_0/test_data_set_0/input_0.pb", &["show", "run/0_0-forward/part_0/test_data_set_0"]),
        ("part_0/test_data_set_0/input_0.pb", &["show", "run/0_0-forward/part_0/test_data_set_0/input_0.pb"]),
        ("part_0/values_0/y.pb", &["show", "run/0_0-forward/part_0/values_0/y.pb"]),
        ("part_0/node_y_0/model.onnx", &["show", "run/0_0-forward/part_0/node_y_0"]),
        ("part_0/node_y_0/test_data_set_0/input_0.pb", &["show", "run/0_0-forward/part_0/node_y_0"]),
        ("part_0/node_y_0/test_data_set_0/output_0.pb", &["compare", "run/0_0-forward/part_0/node_y_0"]),
        ("parts.json", &["ls", "run"]),
        ("parts.json", &["show", "run/0_0-forward"]),
        ("part_0/model.onnx", &["replay", part, runtime[0], runtime[1]]),
        ("part_0/provenance.json", &["replay", part, runtime[0], runtime[1]]),
        ("part_0/test_data_set_0/input_0.pb", &["replay", part, runtime[0], runtime[1]]),
        ("part_0/test_data_set_0/terms_0.pb", &["replay", part, runtime[0], runtime[1]]),
        ("part_0/test_data_set_0/input_0.pb", &["blame", part, runtime[0], runtime[1]]),
        ("part_0/values_0/y.pb", &["blame", part, runtime[0], runtime[1]]),
        ("part_0/values_0/manifest.json", &["blame", part, runtime[0], runtime[1]]),
        ("part_0/values_0/y.pb", &["prove", part, runtime[0], runtime[1]]),
        ("part_0/test_data_set_0/input_0.pb", &["keep", part, runtime[0], runtime[1]]),
    ] {
        let path = whole.join("0_0-forward").join(file);
        let bytes = fs::read(&path).unwrap();
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 4;
        replace(&path, &flipped);
        let said = piped(folder.path(), args);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            said.code == 4 && [&said.err, &said.out].iter().any(|text| text.contains(&format!("{name}: damaged: "))),
            "{args:?} {file}: {} {}{}",
            said.code,
            said.out,
            said.err
        );
        replace(&path, &bytes);
    }
    assert_eq!(piped(folder.path(), &["verify", "."]).code, 0);
}

#[test]
fn json_that_was_cut_off_is_told_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let whole = dump(folder.path());
    for file in ["run.json", "0_0-forward/parts.json", "0_0-forward/part_0/nodes_0.json"] {
        let path = whole.join(file);
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        for (content, why) in [
            (&bytes[..9], "it is cut off: its JSON does not end within its 9 bytes"),
            (b"", "it is empty"),
            (b"{\"schema\" 1}", "it is no JSON: expected `:`"),
        ] {
            replace(&path, content);
            let said = piped(folder.path(), &["show", path.to_str().unwrap()]);
            let told = format!("{name}: damaged: {why}");
            assert!(said.code == 4 && said.err.contains(&told) && said.err.contains("; copy it again"), "{}", said.err);
        }
        replace(&path, &bytes);
    }
    fs::write(folder.path().join("mine.json"), "{\"a\": [1,").unwrap();
    let said = piped(folder.path(), &["show", "mine.json"]);
    assert!(said.code == 2 && said.err.contains("mine.json: cannot read: it is cut off"), "{}", said.err);
}

#[test]
fn missing_and_unlisted_files_and_dumps_without_seals_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let whole = dump(folder.path());
    let part = whole.join("0_0-forward/part_0");
    let verify = || dumping::json(folder.path(), &["verify", "."]);
    assert_eq!((&verify()["not_sealed"], &verify()["unlisted"]), (&json!([]), &json!([])));
    fs::write(part.join("test_data_set_0/actual_7.pb"), "x").unwrap();
    fs::write(part.join("notes.txt"), "mine").unwrap();
    let said = piped(folder.path(), &["verify", "run"]);
    assert!(said.code == 3 && said.out.contains("2 unlisted"), "{}{}", said.out, said.err);
    fs::remove_file(part.join("test_data_set_0/actual_0.pb")).unwrap();
    fs::remove_file(part.join("files.json")).unwrap();
    let said = piped(folder.path(), &["verify", "run"]);
    assert!(said.code == 4 && said.out.contains("2 missing"), "{}{}", said.out, said.err);
    let told = paths(&verify()["missing"], "");
    assert!(told.iter().any(|path| path.ends_with("part_0/files.json")), "{told:?}");
    assert!(told.iter().any(|path| path.ends_with("actual_0.pb")), "{told:?}");
    // A tensor by content that is not its name's.
    let blob = fs::read_dir(folder.path().join("tensors")).unwrap().next().unwrap().unwrap().path();
    let mut other = fs::read(&blob).unwrap();
    *other.last_mut().unwrap() ^= 1;
    replace(&blob, &other);
    assert_eq!(piped(folder.path(), &["show", blob.to_str().unwrap()]).code, 4);
    replace(&blob, b"x");
    assert!(paths(&verify()["damaged"], "path").iter().any(|path| path.ends_with(blob.file_name().unwrap())));

    // Of before: JSON without a seal, no lists.
    let old = tempfile::tempdir().unwrap();
    dump(old.path());
    unseal(&old.path().join("run"));
    let said = piped(old.path(), &["compare", "run"]);
    assert!(said.code == 1 && said.out.contains("2 match, 1 mismatch"), "{}{}", said.out, said.err);
    let said = piped(old.path(), &["verify", "run"]);
    assert!(said.code == 3 && said.out.contains("not sealed"), "{}{}", said.out, said.err);
    assert_eq!(piped(old.path(), &["ls", "."]).code, 0);
    // A tensor's hash has always been told.
    let tensor = old.path().join("run/0_0-forward/part_0/test_data_set_0/actual_0.pb");
    let mut bytes = fs::read(&tensor).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    replace(&tensor, &bytes);
    assert_eq!(piped(old.path(), &["compare", "run"]).code, 4);
}

/// It may have been written by hand, or be as large as anybody likes.
#[test]
fn what_would_take_all_memory_or_all_day_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = dump(folder.path());
    let model = run.join("0_0-forward/part_0/model.onnx");
    let mut bytes = fs::read(&model).unwrap();
    fs::remove_file(&model).unwrap();
    fs::File::create(&model).unwrap().set_len(1 << 42).unwrap();
    let begin = Instant::now();
    let said = piped(folder.path(), &["verify", "run"]);
    assert!(said.code == 4 && said.out.contains("not read"), "{}{}", said.out, said.err);
    assert!(begin.elapsed() < Duration::from_secs(60));
    // A model that is another one is widened by nobody.
    *bytes.last_mut().unwrap() ^= 1;
    replace(&model, &bytes);
    let said = piped(folder.path(), &["widen", model.to_str().unwrap(), "wide.onnx"]);
    assert!(said.code == 4 && !folder.path().join("wide.onnx").exists(), "{}{}", said.out, said.err);
    // 700 MB of objects take a thousand times as much.
    let many = format!("{{\"schema\": \"rust_ort/run/1\", \"x\": [{}0]}}", "{\"\":0},".repeat(100 << 20));
    replace(&run.join("run.json"), many.as_bytes());
    let said = piped(folder.path(), &["show", "run"]);
    assert!(said.code != 0 && said.err.contains("of memory"), "{}{}", said.out, said.err);
}

/// Two runs of one program tell of graphs, parts and steps of the same names.
#[test]
fn files_of_another_run_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let run = dump(folder.path());
    fs::rename(&run, folder.path().join("renamed")).unwrap();
    let other = dump(folder.path());
    let (part, theirs) = ("0_0-forward/part_0", folder.path().join("renamed/0_0-forward/part_0"));
    assert_eq!(piped(folder.path(), &["verify", "."]).code, 0, "a run may be renamed");
    for (name, command) in [
        ("comparison_0.json", "compare"),
        ("nodes_0.json", "sbs"),
        ("test_data_set_0/manifest.json", "compare"),
        ("values_0/manifest.json", "verify"),
    ] {
        let path = other.join(part).join(name);
        let ours = fs::read(&path).unwrap();
        replace(&path, &fs::read(theirs.join(name)).unwrap());
        for command in [command, "verify"] {
            let said = piped(folder.path(), &[command, &format!("run/{part}")]);
            assert!(
                said.code == 4 && [said.out, said.err].iter().any(|text| text.contains("of another run")),
                "{command} {name}"
            );
        }
        replace(&path, &ours);
    }
    // Whoever carries on a dump writes for the same run.
    let run_json = || fs::read_to_string(other.join("run.json")).unwrap();
    let before = run_json();
    drop(dumping::open(folder.path(), &json!({ "pid": 8 }).to_string()));
    let id = |text: &str| serde_json::from_str::<Value>(text).unwrap()["id"].clone();
    assert!(before != run_json() && id(&before) == id(&run_json()) && id(&before).is_string());
    assert_eq!(piped(folder.path(), &["verify", "."]).code, 0);
}

#[test]
fn what_was_never_written_or_is_gone_whole_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let graph = dump(folder.path()).join("0_0-forward");
    let part = graph.join("part_0");
    let verify = || piped(folder.path(), &["verify", "run"]);
    let away = |path: &Path, code: i32, text: &str| {
        let aside = folder.path().join("aside");
        fs::rename(path, &aside).unwrap();
        let said = verify();
        assert!(said.code == code && said.out.contains(text), "{path:?}: {} {}{}", said.code, said.out, said.err);
        fs::rename(&aside, path).unwrap();
    };
    away(&part.join("comparison_0.json"), 4, "1 missing");
    away(&part.join("values_0/manifest.json"), 3, "values_0: no manifest");
    away(&part.join("test_data_set_0/manifest.json"), 3, "test_data_set_0: no manifest");
    away(&part, 3, "part_0: parts.json tells of it");
    assert_eq!(verify().code, 0);
    let told = json!({ "schema": "rust_ort/incomplete/2", "missing": ["0_0-forward/part_0/nodes_7.json"] });
    fs::write(graph.with_file_name("incomplete.json"), to_json(&told)).unwrap();
    let said = verify();
    assert!(
        said.code == 3 && said.out.contains("nodes_7.json: its daemon ended before it was written"),
        "{}",
        said.out
    );
    fs::remove_file(graph.with_file_name("incomplete.json")).unwrap();

    // What is listed and gone says nothing by its absence.
    let library = crate::common::library();
    let runtime = ["--onnxruntime", library.to_str().unwrap()];
    for (file, args) in [
        ("parts.json", ["ls", "run"].as_slice()),
        ("part_0/provenance.json", &["replay", "run", runtime[0], runtime[1]]),
    ] {
        let (path, aside) = (graph.join(file), folder.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        let said = piped(folder.path(), args);
        assert!(said.code == 4, "{file}: {} {}{}", said.code, said.out, said.err);
        fs::rename(&aside, &path).unwrap();
    }
}

/// A pipe would never end, a device never stop.
#[test]
fn pipes_and_devices_in_the_place_of_files_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let whole = dump(folder.path());
    for name in files(&whole) {
        let path = whole.join(&name);
        let bytes = fs::read(&path).unwrap();
        let commands: &[&[&str]] = match name.extension().unwrap().to_str().unwrap() {
            "json" => &[&["ls", "run"], &["verify", "run"], &["compare", "run"], &["sbs", "run"]],
            "pb" => &[&["verify", "run"], &["compare", "run"]],
            _ => &[&["verify", "run"], &["show", "run/0_0-forward/part_0"]],
        };
        for kind in ["pipe", "device"] {
            if path.symlink_metadata().is_ok() {
                fs::remove_file(&path).unwrap();
            }
            if kind == "pipe" {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            } else {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
            for args in commands {
                let mut child =
                    program(folder.path(), args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                let watchdog = Instant::now() + Duration::from_secs(60);
                while child.try_wait().unwrap().is_none() {
                    assert!(Instant::now() < watchdog, "{args:?} waits for a {kind} as {name:?}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                let code = child.wait().unwrap().code().unwrap();
                assert!(args[0] != "verify" || code == 4, "{args:?} {name:?}: {code}");
                let is_of_graph = name.ends_with("run.json") || name.ends_with("parts.json");
                assert!(!is_of_graph || code == 4, "{args:?} {name:?}: {code}");
            }
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, bytes).unwrap();
    }
}
