//! `rust-ort doctor`, as a shell sees it.

use std::path::Path;

use crate::support::{Home, library};
use serde_json::Value;

/// The exit code and the findings: what → (ok, text).
fn doctor(home: &Home, library: &Path) -> (i32, Vec<(String, bool, String)>) {
    let output = home.command().args(["doctor", "--json", "--library"]).arg(library).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = answer["findings"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let finding = |value: &Value| (text(&value["what"]), value["ok"].as_bool().unwrap(), text(&value["text"]));
    (output.status.code().unwrap(), findings.iter().map(finding).collect())
}

#[test]
fn a_library_that_works_is_named_with_its_version() {
    let home = Home::empty();
    let (code, findings) = doctor(&home, &library());
    assert!(code == 0 && findings.iter().all(|(_, ok, _)| *ok), "{findings:?}");
    let (what, _, text) = &findings[2];
    assert!(what == "onnxruntime" && text.contains(" is version 1.") && text.contains("CPU"), "{text}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_the_one_bad_finding() {
    let home = Home::empty();
    let text_file = home.folder.path().join("text.so");
    std::fs::write(&text_file, "text").unwrap();
    // The loader maps what the header promises and touches what the file lacks: SIGBUS.
    let cut = home.folder.path().join("cut.so");
    let whole = std::fs::read(library()).unwrap();
    std::fs::write(&cut, &whole[..64 << 10]).unwrap();
    let crashed = "the process that loaded it crashed (signal 7, SIGBUS)";
    for (path, expected) in
        [(&home.folder.path().join("absent.so"), "absent.so"), (&text_file, "text.so"), (&cut, crashed)]
    {
        let (code, findings) = doctor(&home, path);
        let bad: Vec<_> = findings.iter().filter(|(_, ok, _)| !ok).collect();
        assert!(code == 2 && findings.len() == 7, "{findings:?}");
        let [(what, _, text)] = bad[..] else { panic!("{findings:?}") };
        assert!(what == "onnxruntime" && text.contains(expected), "{text}");
    }
}
