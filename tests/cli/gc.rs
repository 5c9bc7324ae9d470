//! `gc` on a folder of dumps: what goes, what stays, what it says.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::dumping::{self, json, piped};
use rust_ort::base::ids::StepId;
use rust_ort::dump::Run;
use rust_ort::tensor::TensorBuf;

const PART: &str = "run/0_0-forward/part_0";

fn tensor(value: f32) -> TensorBuf {
    TensorBuf::from_f32([2], &[1., value]).unwrap()
}

/// Steps 0, 1 and 2, each with tensors of its own, all with one in common, and the reproduction of a node.
fn dump(folder: &Path) -> Run {
    let (run, graph) = dumping::one_graph(folder, "");
    run.part(&graph, 0, b"model", "").unwrap();
    let common = tensor(9.);
    for step in 0..3_u8 {
        let [x, y] = [f32::from(step), f32::from(step) + 10.].map(tensor);
        let inputs = [("x".into(), x.shared()), ("w".into(), common.shared())];
        let set = run.begin_step(&graph, 0, StepId(step.into()), &inputs).unwrap();
        run.references(&set, &[("y".into(), y.shared())]);
        run.actuals(&set, &[("y".into(), y.shared())]);
        run.finish(&set);
        let wrong = tensor(f32::from(step) + 20.);
        let node = dumping::reproduction("tanh", b"m".to_vec(), &[("x", &x)], [&y, &wrong]);
        run.nodes(dumping::no_nodes(&graph, step.into()), vec![node]).unwrap();
    }
    assert!(run.flush().lost.is_empty());
    run
}

/// Every file below the folder by its inode: bytes on disk, each counted once.
fn files(folder: &Path) -> BTreeMap<u64, (PathBuf, u64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let facts = fs::symlink_metadata(&path).unwrap();
            if facts.is_dir() {
                folders.push(path);
            } else {
                found.insert(facts.ino(), (path, facts.len()));
            }
        }
    }
    found
}

fn bytes(files: &BTreeMap<u64, (PathBuf, u64)>) -> u64 {
    files.values().map(|(_, len)| len).sum()
}

fn n_tensors(folder: &Path) -> usize {
    fs::read_dir(folder.join("tensors")).unwrap().count()
}

#[test]
fn what_went_is_counted_as_the_disk_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    drop(dump(folder.path()));
    let (before, tensors) = (bytes(&files(folder.path())), n_tensors(folder.path()));
    let planned = json(folder.path(), &["gc", ".", "--keep", "1", "--dry-run"]);
    assert_eq!((bytes(&files(folder.path())), n_tensors(folder.path())), (before, tensors), "nothing goes");
    let said = piped(folder.path(), &["gc", ".", "--keep", "1", "--dry-run"]);
    assert!(said.out.starts_with("would remove 2 data sets, 8 tensors"), "{}", said.out);
    let value = json(folder.path(), &["gc", ".", "--keep", "1"]);
    assert_eq!(planned, value);
    let (after, left) = (bytes(&files(folder.path())), n_tensors(folder.path()));
    // Of each step x, y, and the node's two by its own name; one in common.
    assert_eq!((tensors, left), (13, 5));
    assert_eq!((&value["steps"], &value["tensors"], &value["bytes"]), (&2.into(), &8.into(), &(before - after).into()));
    assert!(folder.path().join(PART).join("node_tanh_2/model.onnx").exists());
    assert!(!folder.path().join(PART).join("node_tanh_1").exists());
    let again = json(folder.path(), &["gc", ".", "--keep", "1"]);
    assert_eq!((&again["steps"], &again["tensors"], &again["bytes"]), (&0.into(), &0.into(), &0.into()));
}

#[test]
fn a_folder_that_holds_no_dump_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("empty")).unwrap();
    fs::create_dir_all(path("photos/tensors")).unwrap();
    fs::write(path("photos/tensors/holiday.pb"), "mine").unwrap();
    fs::write(path("file.json"), "{}").unwrap();
    for name in ["empty", "photos", "file.json", "nowhere"] {
        let said = piped(folder.path(), &["gc", name]);
        assert!(said.code == 2 && said.err.contains(name), "{name}: {} {}{}", said.code, said.out, said.err);
    }
    drop(dump(folder.path()));
    let said = piped(folder.path(), &["gc", "run", "--keep", "0"]);
    assert!(said.code == 2 && said.err.contains("folder of dumps"), "{} {}{}", said.code, said.out, said.err);
    assert!(path(PART).join("test_data_set_0").exists());
    // Runs removed by hand leave tensors behind; those are ours.
    fs::remove_dir_all(path("run")).unwrap();
    assert_eq!(json(folder.path(), &["gc", "."])["tensors"], 13);
    assert_eq!(fs::read_to_string(path("photos/tensors/holiday.pb")).unwrap(), "mine");
}

#[test]
fn what_is_not_ours_stays() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(dump(folder.path()));
    let part = folder.path().join(PART);
    let hash = "0".repeat(64) + ".pb";
    // A blob's name behind a link, files of the user, links in the place of runs, graphs, parts, data sets, nodes.
    fs::write(other.path().join(&hash), "theirs").unwrap();
    fs::create_dir_all(other.path().join("test_data_set_7")).unwrap();
    fs::write(other.path().join("test_data_set_7/input_0.pb"), "theirs").unwrap();
    fs::write(folder.path().join("tensors/mine.pb"), "mine").unwrap();
    fs::write(part.join("test_data_set_0/notes.txt"), "mine").unwrap();
    fs::write(part.join("node_tanh_1/notes.txt"), "mine").unwrap();
    symlink(other.path(), part.join("test_data_set_8")).unwrap();
    symlink(other.path().join("test_data_set_7"), part.join("test_data_set_7")).unwrap();
    symlink(other.path(), folder.path().join("run/0_1-forward")).unwrap();
    symlink(other.path(), folder.path().join("linked")).unwrap();
    let value = json(folder.path(), &["gc", ".", "--keep", "0"]);
    assert_eq!(value["steps"], 1, "{value}");
    let kept = value["kept"].to_string();
    assert!(kept.contains("test_data_set_0") && kept.contains("notes.txt") && kept.contains("node_tanh_1"), "{kept}");
    for path in ["test_data_set_0/notes.txt", "test_data_set_0/manifest.json", "node_tanh_1/notes.txt"] {
        assert!(part.join(path).exists(), "{path}");
    }
    assert!(!part.join("test_data_set_2").exists());
    assert!(folder.path().join("tensors/mine.pb").exists());
    assert!(other.path().join(&hash).exists() && other.path().join("test_data_set_7/input_0.pb").exists());

    // The store itself a link to a folder of somebody's.
    fs::rename(folder.path().join("tensors"), other.path().join("elsewhere")).unwrap();
    fs::write(other.path().join("elsewhere").join(&hash), "theirs").unwrap();
    symlink(other.path().join("elsewhere"), folder.path().join("tensors")).unwrap();
    assert_eq!(piped(folder.path(), &["gc", "."]).code, 0);
    assert!(other.path().join("elsewhere").join(&hash).exists());
}

/// Named as ours are.
#[test]
fn a_folder_that_somebody_made_in_a_data_set_stays() {
    let folder = tempfile::tempdir().unwrap();
    drop(dump(folder.path()));
    let mine = folder.path().join(PART).join("test_data_set_2/my_inputs");
    fs::create_dir(&mine).unwrap();
    fs::write(mine.join("input_0.pb"), "mine").unwrap();
    let value = json(folder.path(), &["gc", ".", "--keep", "0"]);
    assert!(value["kept"].to_string().contains("my_inputs"), "{value}");
    assert_eq!(fs::read_to_string(mine.join("input_0.pb")).unwrap(), "mine");
}

#[test]
fn a_run_that_is_being_written_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let run = dump(folder.path());
    let value = json(folder.path(), &["gc", ".", "--keep", "0"]);
    assert_eq!(value["steps"], 0, "{value}");
    assert!(value["kept"].to_string().contains("being written"), "{value}");
    assert!(folder.path().join(PART).join("test_data_set_0/manifest.json").exists());
    drop(run);
    assert_eq!(json(folder.path(), &["gc", ".", "--keep", "0"])["steps"], 3);
}
