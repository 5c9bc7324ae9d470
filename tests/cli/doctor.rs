//! `rust-ort doctor`, as a shell sees it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{Home, library};
use serde_json::{Value, json};

/// One line of the answer.
#[derive(Debug)]
struct Finding {
    what: String,
    ok: bool,
    state: String,
    text: String,
}

/// The exit code and the findings.
fn doctor(home: &Home, args: &[&OsStr]) -> (i32, Vec<Finding>) {
    // Neither an environment that is active nor a Python on PATH is one of the test's.
    let mut command = home.command();
    command.env_remove("VIRTUAL_ENV").env_remove("RUST_ORT_ONNXRUNTIME").env("PATH", home.folder.path());
    let output = command.args(["doctor", "--json"]).args(args).output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let finding = |value: &Value| Finding {
        what: text(&value["what"]),
        ok: value["ok"].as_bool().unwrap(),
        state: text(&value["state"]),
        text: text(&value["text"]),
    };
    (output.status.code().unwrap(), answer["findings"].as_array().unwrap().iter().map(finding).collect())
}

fn with_library(library: &Path) -> [&OsStr; 2] {
    [OsStr::new("--library"), library.as_os_str()]
}

fn of<'f>(findings: &'f [Finding], what: &str) -> &'f Finding {
    findings.iter().find(|finding| finding.what == what).unwrap()
}

/// A program that answers as a Python with these packages does.
fn python(home: &Home, version: &str, versions: &Value) -> PathBuf {
    let path = home.folder.path().join("a-python");
    let answer = json!({ "python": version, "path": [], "versions": versions });
    std::fs::write(&path, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn packages(torch: Option<&str>) -> Value {
    json!({
        "torch": torch, "onnxruntime": null, "onnxruntime-gpu": "1.31.1", "onnx": "1.23.2", "onnxscript": "0.7.2",
        "onnx-ir": "1.1.0", "numpy": "2.3.1", "protobuf": "6.30.0",
    })
}

#[test]
fn a_library_that_works_is_named_with_its_version() {
    let home = Home::empty();
    let (code, findings) = doctor(&home, &with_library(&library()));
    assert!(code == 0 && findings.iter().all(|finding| finding.state != "bad"), "{findings:?}");
    assert_eq!(findings[2].what, "onnxruntime");
    assert!(findings[2].ok && findings[2].text.contains(" is version 1.") && findings[2].text.contains("CPU"));
}

#[test]
fn what_was_not_tried_is_not_ok() {
    let home = Home::empty();
    let (code, findings) = doctor(&home, &[]);
    assert_eq!(code, 0, "{findings:?}");
    for what in ["daemon", "onnxruntime", "python", "torch", "packages"] {
        let finding = of(&findings, what);
        assert!(!finding.ok && finding.state == "not_tried", "{finding:?}");
    }
    assert!(of(&findings, "onnxruntime").text.contains("--library"), "{findings:?}");
    assert!(of(&findings, "torch").text.contains("--python"), "{findings:?}");
    let output = home.command().env_remove("VIRTUAL_ENV").env("PATH", "").arg("doctor").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nnot tried  daemon: none runs") && text.contains("\nok         futex: "), "{text}");
}

#[test]
fn python_and_torch_are_held_against_what_is_supported() {
    let home = Home::empty();
    let library = library();
    let doctor = |version: &str, torch: Option<&str>| {
        let path = python(&home, version, &packages(torch));
        doctor(&home, &[&with_library(&library)[..], &[OsStr::new("--python"), path.as_os_str()]].concat())
    };
    let (code, findings) = doctor("3.12.3", Some("2.13.0+cpu"));
    assert_eq!(code, 0, "{findings:?}");
    let told = of(&findings, "torch");
    assert!(told.ok && told.text.contains("torch 2.13.0+cpu (>=2.11,<2.16)"), "{told:?}");
    assert!(
        of(&findings, "packages").ok && of(&findings, "packages").text.contains("onnxruntime 1.31.1"),
        "{findings:?}"
    );
    assert!(of(&findings, "python").text.contains("a-python is 3.12.3, which is supported (>=3.11)"), "{findings:?}");
    for (version, torch, what, expected) in [
        ("3.10.2", Some("2.13.0"), "python", "is 3.10.2; supported: >=3.11"),
        ("3.12.3", Some("2.10.0"), "torch", "torch 2.10.0; supported: >=2.11,<2.16; run `"),
        ("3.12.3", None, "torch", "no torch; supported: >=2.11,<2.16; run `"),
    ] {
        let (code, findings) = doctor(version, torch);
        let bad: Vec<_> = findings.iter().filter(|finding| finding.state == "bad").collect();
        assert!(code == 2 && bad.len() == 1 && bad[0].what == what, "{findings:?}");
        assert!(bad[0].text.contains(expected), "{}", bad[0].text);
    }
    let silent = home.folder.path().join("silent");
    std::fs::write(&silent, "#!/bin/sh\nexit 3\n").unwrap();
    std::fs::set_permissions(&silent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, findings) = self::doctor(&home, &[OsStr::new("--python"), silent.as_os_str()]);
    assert!(code == 2 && of(&findings, "torch").state == "bad", "{findings:?}");
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
        let (code, findings) = doctor(&home, &with_library(path));
        let bad: Vec<_> = findings.iter().filter(|finding| finding.state == "bad").collect();
        assert!(code == 2 && findings.len() == 10, "{findings:?}");
        let [Finding { what, text, .. }] = bad[..] else { panic!("{findings:?}") };
        assert!(what == "onnxruntime" && text.contains(expected), "{text}");
    }
}
