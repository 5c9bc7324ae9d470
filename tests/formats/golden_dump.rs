//! Dumps of each version of the format, as they were written: tests/golden/dump_<n>. A change of format raises versions and
//! adds a folder; it never edits these.

use std::fs;
use std::path::{Path, PathBuf};

use rust_ort::dump::reader::{self, Completeness, Place};
use rust_ort::dump::{Role, verify};

#[path = "../fixtures/write_dump.rs"]
mod write_dump;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/dump_{version}"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn a_dump_is_written_byte_for_byte_as_before() {
    let folder = tempfile::tempdir().unwrap();
    write_dump::write(folder.path()).unwrap();
    fs::remove_dir_all(folder.path().join("tensors")).unwrap();
    let expected = golden(3);
    if std::env::var_os("RUST_ORT_REGENERATE").is_some() {
        for path in files(folder.path()) {
            let to = expected.join(path.strip_prefix(folder.path()).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, fs::read(path).unwrap()).unwrap();
        }
    }
    let below = |root: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        let name = |path: &PathBuf| path.strip_prefix(root).unwrap().to_owned();
        files(root).iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
    };
    let (got, expected) = (below(folder.path()), below(&expected));
    let names = |list: &[(PathBuf, Vec<u8>)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&got), names(&expected));
    for ((name, got), (_, expected)) in got.iter().zip(&expected) {
        assert!(got == expected, "{}: {}", name.display(), String::from_utf8_lossy(got));
    }
}

#[test]
fn dumps_of_every_version_are_read() {
    for version in [1, 2, 3] {
        let Ok(Place::Folder(runs)) = reader::find(&golden(version)) else { panic!("{version}") };
        let part = &runs[0].graphs[0].parts[0];
        let states: Vec<_> = part.steps.iter().map(|step| step.state == Completeness::Complete).collect();
        assert_eq!(states, [true, true, false], "{version}");
        let verdicts = part.steps[1].verdicts.unwrap();
        assert_eq!((verdicts.mismatch, verdicts.matched), (1, 0), "{version}");
        for step in &part.steps {
            for file in reader::tensors(&step.path, Role::Input).unwrap() {
                assert!(file.load().is_ok(), "{version}");
            }
        }
        let model = reader::load_model(&part.path.join("model.onnx")).unwrap();
        assert_eq!(model.graph.unwrap().node[0].op_type(), "Add");
    }
}

#[test]
fn a_version_without_seals_is_said_to_be_one() {
    let found = verify(&golden(1)).unwrap();
    assert!(found.is_whole() && found.unlisted.is_empty(), "{found:?}");
    // Of two manifests the tensors; of JSON, models and texts, and of what a crash left, nothing tells.
    assert_eq!((found.whole, found.not_sealed.len()), (8, 13), "{found:?}");
    for version in [2, 3] {
        let found = verify(&golden(version)).unwrap();
        assert!(found.is_whole() && found.unlisted.is_empty(), "{found:?}");
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let crash_left: Vec<_> = found.not_sealed.iter().map(name).collect();
        assert_eq!((crash_left, found.whole), (vec!["input_0.pb".into(), "input_1.pb".into()], 21), "{found:?}");
        assert!(found.incomplete[0].path.ends_with("test_data_set_2"), "{found:?}");
    }
}
