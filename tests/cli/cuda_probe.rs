//! The CUDA IPC probe against a CUDA runtime without a GPU (fixtures/fake_cudart.c), built here with cc.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

struct Fake {
    folder: TempDir,
    library: PathBuf,
}

impl Fake {
    fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libcudart.so.13");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_cudart.c");
        let status =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status().unwrap();
        assert!(status.success());
        Self { folder, library }
    }

    /// A file that stands for device memory or an event, and its handle in hexadecimal, with torch's prefix on memory.
    fn handle(&self, name: &str, content: &[u8], prefix: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        let mut bytes = path.to_str().unwrap().as_bytes().to_vec();
        bytes.resize(64, 0);
        prefix.to_owned() + &bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    }

    /// Tensor of 100 bytes at offset 512, of which `wrong` differ from the pattern of seed 5; both events ready.
    fn open_command(&self, wrong: usize) -> String {
        let mut memory = vec![0; 512];
        memory.extend((0..100).map(|i| ((31 * i + 5) % 251) as u8));
        memory[512..512 + wrong].fill(252);
        memory.resize(1024, 0);
        let (memory, ready) = (self.handle("memory", &memory, "0363"), self.handle("ready", &[1], ""));
        let done = self.handle("done", &[0], "");
        format!(
            r#"{{"op":"open","device":0,"memory":"{memory}","offset":512,"len_bytes":100,"ready":"{ready}","done":"{done}"}}"#
        )
    }

    fn probe(&self, library: &Path, failing: &str, commands: &[&str]) -> (Vec<Value>, i32) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rust-ort"))
            .arg("cuda-probe")
            .arg("--library")
            .arg(library)
            .env("FAKE_CUDART_FAIL", failing)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A probe that cannot load its library answers and ends before it reads.
        let _ = writeln!(child.stdin.take().unwrap(), "{}", commands.join("\n"));
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.code().unwrap())
    }
}

const READ: &str = r#"{"op":"read","seed":5}"#;
const WRITE: &str = r#"{"op":"write","seed":9,"delay_ms":1}"#;
const CLOSE: &str = r#"{"op":"close"}"#;

#[test]
fn tensor_of_another_process_is_read_and_written_at_its_offset() {
    let fake = Fake::build();
    let (answers, code) = fake.probe(&fake.library, "", &[&fake.open_command(0), READ, WRITE, CLOSE]);
    assert_eq!((answers.len(), code), (4, 0), "{answers:?}");
    assert_eq!(answers[0]["runtime_version"], 13000);
    assert_eq!((&answers[1]["wrong_bytes"], &answers[1]["len_bytes"]), (&0.into(), &100.into()));
    let memory = fs::read(fake.folder.path().join("memory")).unwrap();
    let expected: Vec<u8> = (0..100).map(|i| ((31 * i + 9) % 251) as u8).collect();
    assert_eq!(memory[512..612], expected);
    assert!(memory[..512].iter().chain(&memory[612..]).all(|byte| *byte == 0));
    assert_eq!(fs::read(fake.folder.path().join("done")).unwrap(), [1]);
}

#[test]
fn wrong_bytes_are_counted_and_the_first_is_named() {
    let fake = Fake::build();
    let (answers, code) = fake.probe(&fake.library, "", &[&fake.open_command(3), READ, CLOSE]);
    assert_eq!((&answers[1]["wrong_bytes"], code), (&3.into(), 0));
    assert_eq!(answers[1]["first_wrong"]["got"], 252);
    assert_eq!(answers[1]["first_wrong"]["expected"], 5);
}

#[test]
fn every_cuda_function_that_fails_is_named_with_its_code() {
    let fake = Fake::build();
    for function in [
        "cudaGetDeviceCount",
        "cudaSetDevice",
        "cudaStreamCreateWithFlags",
        "cudaIpcOpenMemHandle",
        "cudaIpcOpenEventHandle",
        "cudaRuntimeGetVersion",
        "cudaDriverGetVersion",
        "cudaHostAlloc",
        "cudaStreamWaitEvent",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "cudaLaunchHostFunc",
        "cudaEventRecord",
        "cudaIpcCloseMemHandle",
    ] {
        let (answers, code) = fake.probe(&fake.library, function, &[&fake.open_command(0), READ, WRITE, CLOSE]);
        let error = answers.iter().find(|answer| answer["ok"] == false).unwrap_or_else(|| panic!("{function}"));
        let text = error["error"].as_str().unwrap();
        assert_eq!(text, format!("{function} failed with 201 (cudaErrorDeviceUninitialized): invalid device context"));
        assert_eq!(code, 2, "{function}");
    }
}

#[test]
fn commands_out_of_order_and_bad_ones_are_answered_and_cost_nothing_else() {
    let fake = Fake::build();
    let open = fake.open_command(0);
    let huge = open.replace(r#""len_bytes":100"#, r#""len_bytes":18446744073709551615"#);
    let commands = [READ, CLOSE, "{}", "no json", r#"{"op":"open"}"#, &huge, &open, &open, READ, CLOSE, CLOSE];
    let (answers, code) = fake.probe(&fake.library, "", &commands);
    let ok: Vec<bool> = answers.iter().map(|answer| answer["ok"] == true).collect();
    assert_eq!(ok, [false, false, false, false, false, false, true, false, true, true, false]);
    assert_eq!(code, 2);
}

#[test]
fn missing_runtime_library_is_said_and_exits_2() {
    let fake = Fake::build();
    let (answers, code) = fake.probe(Path::new("/nowhere/libcudart.so.13"), "", &[READ]);
    assert_eq!((answers.len(), code), (1, 2));
    assert!(answers[0]["error"].as_str().unwrap().contains("/nowhere/libcudart.so.13"));
}
