//! A writer that is killed, or whose disk is full, leaves whole files only.
//!
//! The writer is this test program itself, started again with `RUST_ORT_TEST_FOLDER` set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rust_ort::base::ids::StepId;
use rust_ort::dump::reader::{self, Completeness};
use rust_ort::dump::{CallsToDump, Incomplete, Role, Run, RunSpec, gc};
use rust_ort::onnx::load_tensor;
use rust_ort::tensor::TensorBuf;

const FOLDER: &str = "RUST_ORT_TEST_FOLDER";
const N_ELEMENTS: usize = 1 << 18;

fn tensor(value: f32) -> TensorBuf {
    TensorBuf::from_f32([N_ELEMENTS as i64], &vec![value; N_ELEMENTS]).unwrap()
}

fn open(folder: PathBuf) -> Run {
    let (run, run_json) = ("run".to_owned(), String::new());
    Run::open(&RunSpec { folder, run, clean: false, calls: CallsToDump::All, run_json, umask: Default::default() })
        .unwrap()
}

fn write_step(run: &Run, step: u64) {
    let (weight, input, output) = (tensor(-1.), tensor(step as f32), tensor(step as f32 + 0.5));
    let inputs = [("w".to_owned(), weight.shared()), ("x".to_owned(), input.shared())];
    let folder = run.begin_step("g", 0, StepId(step), &inputs).unwrap();
    run.actuals(&folder, &[("y".to_owned(), output.shared())]);
    run.finish(&folder);
}

fn this_test(name: &str, folder: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let folder = format!("{FOLDER}={}", folder.display());
    ["env".to_owned(), folder, program]
        .into_iter()
        .chain([&format!("dump_crash::{name}"), "--exact", "--nocapture"].map(|word: &str| word.to_owned()))
        .collect()
}

#[test]
fn writes_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let run = open(folder.into());
    for step in 0.. {
        write_step(&run, step);
    }
}

/// Every `.pb` file anywhere below reads whole, and every complete step holds what was written.
fn check(folder: &Path) -> usize {
    let steps = reader::steps(&folder.join("run/g/part_0")).unwrap();
    let mut n_complete = 0;
    for step in &steps {
        let value = |role: Role, index: usize| {
            reader::tensors(&step.path, role).unwrap()[index].load().unwrap().view().to_owned()
        };
        for role in [Role::Input, Role::Reference, Role::Actual] {
            for file in reader::tensors(&step.path, role).unwrap() {
                file.load().unwrap_or_else(|error| panic!("{error}"));
            }
        }
        if step.state == Completeness::Complete {
            n_complete += 1;
            assert_eq!(value(Role::Input, 1), tensor(step.step as f32));
            assert_eq!(value(Role::Actual, 0), tensor(step.step as f32 + 0.5));
        }
    }
    for entry in fs::read_dir(folder.join("tensors")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "pb") {
            load_tensor(&path).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    n_complete
}

#[test]
fn a_killed_writer_leaves_no_half_file_that_reads_as_whole() {
    for extra_ms in [0, 3, 7, 13, 29] {
        let folder = tempfile::tempdir().unwrap();
        let command = this_test("writes_until_killed", folder.path());
        let mut writer = Command::new(&command[0]).args(&command[1..]).stdout(Stdio::null()).spawn().unwrap();
        let third = folder.path().join("run/g/part_0/test_data_set_2/manifest.json");
        let watchdog = Instant::now() + Duration::from_secs(120);
        while !third.exists() {
            assert!(Instant::now() < watchdog, "the writer wrote no third step");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(extra_ms));
        // SIGKILL
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(check(folder.path()) >= 3);
        // A new writer carries on where the old one was torn away.
        let run = open(folder.path().to_owned());
        write_step(&run, 1_000_000);
        assert_eq!(run.flush().lost, Vec::<String>::new());
    }
}

#[test]
fn writes_until_the_disk_is_full() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let run = open(folder.clone());
    (0..8).for_each(|step| write_step(&run, step));
    let report = run.flush();
    assert!(report.written > 0 && !report.lost.is_empty(), "{report:?}");
    assert!(report.lost.iter().all(|lost| lost.contains("os error")), "{report:?}");
    assert_eq!(run.flush().lost, Vec::<String>::new());
    let n_complete = check(&folder);
    assert!((1..8).contains(&n_complete), "{n_complete} complete");
    let temporary = |name: &str| name.starts_with(".tmp-");
    let left = fs::read_dir(folder.join("tensors")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| temporary(name.to_str().unwrap())).count(), 0);
    drop(run);
    // Another daemon, or another executor's client, joins the run where there is no room for a byte.
    let filler = folder.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while std::io::Write::write(&mut file, &[1; 4096]).is_ok() {}
    drop(open(folder.clone()));
    fs::remove_file(filler).unwrap();
    // Nothing is written before what is to go is gone. All goes: of one step that came out whole, all is the room for another.
    let removed = gc(&folder, Some(0), false).unwrap();
    assert_eq!((removed.steps, removed.kept), (n_complete, Vec::new()));
    let run = open(folder);
    write_step(&run, 8);
    assert_eq!(run.flush().lost, Vec::<String>::new());
    println!("the full disk was survived");
}

#[test]
fn a_full_disk_is_told_and_never_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let program = this_test("writes_until_the_disk_is_full", folder.path()).join(" ");
    let mount = format!("mount -t tmpfs -o size=6m tmpfs {} && exec {program}", folder.path().display());
    // A mount namespace of its own, so that nothing is left mounted; as root, or as root of a user namespace.
    for namespace in ["-m", "-rm"] {
        let can = Command::new("unshare").args([namespace, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]).status();
        if can.is_ok_and(|status| status.success()) {
            let output = Command::new("unshare").args([namespace, "sh", "-c", &mount]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("the full disk was survived"), "{text}");
            return;
        }
    }
    // Not eprintln!: a skip is shown of a passing test, too.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: no file system can be mounted here\n");
}

#[test]
fn a_dump_that_is_ended_early_names_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let run = open(folder.path().to_owned());
    let step = run.begin_step("g", 0, StepId(0), &[]).unwrap();
    let outputs: Vec<_> = (0..200).map(|n| (format!("y{n}"), tensor(n as f32))).collect();
    let outputs: Vec<_> = outputs.iter().map(|(name, tensor)| (name.clone(), tensor.shared())).collect();
    run.actuals(&step, &outputs);
    run.finish(&step);
    let left = run.end_within(Duration::ZERO);
    assert_eq!(left.last().unwrap(), &step.path().join("manifest.json"));
    let told: Incomplete =
        serde_json::from_slice(&fs::read(folder.path().join("run/incomplete.json")).unwrap()).unwrap();
    assert_eq!(told.schema, "rust_ort/incomplete/2");
    let below: Vec<_> = left.iter().map(|path| path.strip_prefix(run.path()).unwrap().to_owned()).collect();
    assert_eq!(told.missing, below);
    // Later words are lost, and said to be; nobody waits.
    run.actuals(&step, &outputs[..1]);
    let lost = run.flush().lost;
    assert!(lost.len() == 2 && lost.iter().all(|lost| lost.contains("the dump has ended")), "{lost:?}");
    assert!(run.end_within(Duration::MAX).is_empty());
    drop(run);
    let steps = reader::steps(&folder.path().join("run/g/part_0")).unwrap();
    assert!(matches!(steps[0].state, Completeness::Incomplete(_)), "{steps:?}");
}

#[test]
fn a_dump_that_ends_waits_for_calls_that_end_and_names_those_that_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let run = open(folder.path().to_owned());
    let step = |step| run.begin_step("g", 0, StepId(step), &[]).unwrap();
    let (ends, never) = (step(0), step(1));
    // One that failed is left as its reproduction.
    drop(step(2));
    let left = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            let output = tensor(1.);
            run.actuals(&ends, &[("y".to_owned(), output.shared())]);
            run.finish(&ends);
        });
        run.end_within(Duration::from_secs(2))
    });
    assert_eq!(left, [never.path().join("manifest.json")]);
    let steps = reader::steps(&folder.path().join("run/g/part_0")).unwrap();
    assert_eq!((&steps[0].state, steps[0].n_actuals), (&Completeness::Complete, 1));
}

#[test]
fn writes_past_the_file_size_limit() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let run = open(folder.clone());
    write_step(&run, 0);
    let report = run.flush();
    assert_eq!(report.lost.len(), 3, "{report:?}");
    let steps = reader::steps(&folder.join("run/g/part_0")).unwrap();
    assert!(matches!(&steps[0].state, Completeness::Incomplete(reason) if reason.starts_with("3 lost")), "{steps:?}");
    println!("the limit was survived");
}

#[test]
fn a_step_that_lost_tensors_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // An ignored SIGXFSZ stays ignored over exec; a write past the limit is then an error.
    let program = this_test("writes_past_the_file_size_limit", folder.path()).join(" ");
    let script = format!("trap '' XFSZ; ulimit -f 64; exec {program}");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("the limit was survived"), "{text}");
}
