//! Writers of several namespaces of pids, as containers are, with one folder of dumps.
//!
//! A writer is this test program itself, started again with [`RUN`] set.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rust_ort::base::ids::StepId;
use rust_ort::dump::reader::{self, Completeness};
use rust_ort::dump::{CallsToDump, Role, Run, RunSpec};
use rust_ort::tensor::TensorBuf;

/// Folder and name of the run to write.
const RUN: &str = "RUST_ORT_TEST_RUN";
const N_STEPS: u64 = 60;
const RUNS: [&str; 2] = ["left", "right"];

fn tensor(value: f32) -> TensorBuf {
    TensorBuf::from_f32([4096], &[value; 4096]).unwrap()
}

#[test]
fn writes_all_steps() {
    let Some(given) = std::env::var_os(RUN) else { return };
    let path = PathBuf::from(given);
    let (folder, run) = (path.parent().unwrap().to_owned(), path.file_name().unwrap().to_str().unwrap().to_owned());
    let sign = if run == RUNS[0] { 1. } else { -1. };
    let run = Run::open(&RunSpec {
        folder,
        run,
        clean: false,
        calls: CallsToDump::All,
        run_json: String::new(),
        umask: Default::default(),
    });
    let run = run.unwrap();
    for step in 0..N_STEPS {
        // One that both have, one that the other run has at another time, one of its own.
        let shared = [tensor(0.5), tensor((step % 7) as f32), tensor(sign * (step + 8) as f32)];
        let inputs: Vec<_> = shared.iter().enumerate().map(|(n, tensor)| (format!("x{n}"), tensor.shared())).collect();
        let folder = run.begin_step("g", 0, StepId(step), &inputs).unwrap();
        run.actuals(&folder, &[("y".to_owned(), shared[2].shared())]);
        run.finish(&folder);
    }
    assert_eq!(run.flush().lost, Vec::<String>::new());
    println!("pid {}, all steps written", std::process::id());
}

/// A program that is the first process of a namespace, whose pids are those of the other's.
fn unshare() -> Option<Vec<&'static str>> {
    let root = vec!["unshare", "--pid", "--fork", "--mount-proc"];
    let user = vec!["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    [root, user].into_iter().find(|command| {
        Command::new(command[0])
            .args(&command[1..])
            .arg("true")
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    })
}

fn n_whole(run: &Path, sign: f32) -> usize {
    let steps = reader::steps(&run.join("g/part_0")).unwrap();
    let is_whole = |step: &&reader::StepEntry| {
        let inputs = reader::tensors(&step.path, Role::Input).unwrap();
        let holds =
            |index: usize, value: f32| inputs[index].load().is_ok_and(|found| found.view().to_owned() == tensor(value));
        step.state == Completeness::Complete
            && holds(0, 0.5)
            && holds(1, (step.step % 7) as f32)
            && holds(2, sign * (step.step + 8) as f32)
    };
    steps.iter().filter(is_whole).count()
}

#[test]
fn two_namespaces_lose_nothing_of_one_folder() {
    let Some(unshare) = unshare() else {
        // Not eprintln!: a skip is shown of a passing test, too.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: no namespaces of pids for this user\n");
        return;
    };
    for _ in 0..10 {
        let folder = tempfile::tempdir().unwrap();
        let writers = RUNS.map(|run| {
            let mut command = Command::new(unshare[0]);
            command.args(&unshare[1..]).arg(std::env::current_exe().unwrap());
            command.args(["dump_namespaces::writes_all_steps", "--exact", "--nocapture"]);
            command.env(RUN, folder.path().join(run)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for writer in writers {
            let output = writer.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("pid 1, all steps written"), "{output:?}");
        }
        let whole = [n_whole(&folder.path().join(RUNS[0]), 1.), n_whole(&folder.path().join(RUNS[1]), -1.)];
        assert_eq!(whole, [N_STEPS as usize; 2]);
    }
}
