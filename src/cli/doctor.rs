//! `rust-ort doctor`.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::answer::{put, tell};
use super::exit::{Exit, Outcome};
use super::library;
use super::python::{Absent, Python};
use super::socket_argument::SocketArgument;
use super::timed;
use crate::base::exit_status::{Ended, OomKills};
use crate::base::ids::SegmentId;
use crate::base::{limits, process};
use crate::client::{Peer, PeerError};
use crate::confine;
use crate::daemon::paths::{self, PathError};
use crate::runtime::Runtime as _;
use crate::runtime::ort::{OrtRuntime, ThreadPool};
use crate::shm::Segment;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// Path of libonnxruntime.so* to try [default: RUST_ORT_ONNXRUNTIME, else the
    /// one of the Python environment that this program is installed in, else of --python]
    #[arg(long)]
    library: Option<PathBuf>,
    /// Python that programs run in [default: the one that this program is installed
    /// beside, else of the active environment, else `python3` of PATH]
    #[arg(long)]
    python: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Load the library in this process and say what it is: what doctor starts a second process for
    #[arg(long, hide = true, requires = "library")]
    probe: bool,
}

/// One line of the answer.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    /// It was tried, and is right.
    ok: bool,
    state: State,
    /// What was found, or what is wrong and what to do.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    NotTried,
    Bad,
}

/// What is not right.
enum Otherwise {
    /// There was nothing to try.
    NotTried(String),
    Bad(String),
}

impl From<String> for Otherwise {
    fn from(text: String) -> Self {
        Otherwise::Bad(text)
    }
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    if let (true, Some(library)) = (arguments.probe, &arguments.library) {
        put(&format!("{}\n", load(library)?))?;
        return Ok(Exit::Success);
    }
    let socket = arguments.socket.path();
    let python = Python::find(arguments.python.as_deref());
    let findings = [
        finding("socket folder", with(&socket, socket_folder)),
        finding("daemon", with(&socket, daemon)),
        finding("onnxruntime", onnxruntime(arguments.library.clone(), python.as_ref().ok())),
        finding("state folder", state_folder().map_err(Otherwise::Bad)),
        finding("shared memory", shared_memory().map_err(Otherwise::Bad)),
        finding("futex", futex().map_err(Otherwise::Bad)),
        finding("confinement", confinement().map_err(Otherwise::Bad)),
        finding("python", of_python(&python, Python::itself)),
        finding("torch", of_python(&python, Python::torch)),
        finding("packages", of_python(&python, Python::others)),
    ];
    let words: String = findings.iter().map(line).collect();
    tell("doctor", arguments.json, serde_json::json!({ "findings": findings }), &words)?;
    Ok(if findings.iter().all(|finding| finding.state != State::Bad) { Exit::Success } else { Exit::Error })
}

type Found = Result<String, Otherwise>;

fn finding(what: &'static str, found: Found) -> Finding {
    let (state, text) = match found {
        Ok(text) => (State::Ok, text),
        Err(Otherwise::NotTried(text)) => (State::NotTried, text),
        Err(Otherwise::Bad(text)) => (State::Bad, text),
    };
    Finding { what, ok: state == State::Ok, state, text }
}

fn line(finding: &Finding) -> String {
    let word = match finding.state {
        State::Ok => "ok",
        State::NotTried => "not tried",
        State::Bad => "bad",
    };
    format!("{word:9}  {}: {}\n", finding.what, finding.text)
}

fn with(socket: &Result<PathBuf, PathError>, check: impl Fn(&Path) -> Found) -> Found {
    check(socket.as_deref().map_err(PathError::to_string)?)
}

fn of_python(python: &Result<Python, Absent>, check: impl Fn(&Python) -> Result<String, String>) -> Found {
    match python {
        Ok(python) => Ok(check(python)?),
        Err(Absent::Unknown(why)) => Err(Otherwise::NotTried(why.clone())),
        Err(Absent::Silent(why)) => Err(Otherwise::Bad(why.clone())),
    }
}

fn socket_folder(socket: &Path) -> Found {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    match folder.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Otherwise::NotTried(format!("{} is made when the daemon starts", folder.display())))
        }
        _ => paths::check_socket_folder(folder)
            .map(|()| format!("{} is ours alone", folder.display()))
            .map_err(|error| Otherwise::Bad(error.to_string())),
    }
}

fn daemon(socket: &Path) -> Found {
    match Peer::connect(socket, "rust-ort doctor") {
        Ok((_, welcome)) if welcome.daemon_version == env!("CARGO_PKG_VERSION") => {
            Ok(format!("pid {} answers, version {}", welcome.daemon_pid, welcome.daemon_version))
        }
        Ok((_, welcome)) => Err(Otherwise::Bad(format!(
            "pid {} answers with version {}, this is {}; run `rust-ort stop`, the next client starts the right one",
            welcome.daemon_pid,
            welcome.daemon_version,
            env!("CARGO_PKG_VERSION")
        ))),
        Err(PeerError::Absent { .. }) => {
            Err(Otherwise::NotTried("none runs; the first client starts one, as `rust-ort serve` does".to_owned()))
        }
        Err(error) => Err(Otherwise::Bad(error.to_string())),
    }
}

fn onnxruntime(given: Option<PathBuf>, python: Option<&Python>) -> Found {
    let known = given.or_else(library::of_environment).or_else(library::of_installation);
    let Some(path) = known.or_else(|| library::of_python(python?.path())) else {
        let text = "no library is known; name it with --library, or the Python that has it with --python";
        return Err(Otherwise::NotTried(text.to_owned()));
    };
    let loaded = probe(&path).map_err(|error| format!("{}: cannot be tried: {error}", path.display()))?;
    Ok(loaded?)
}

/// Loads the library in a process of its own: one that crashes takes nothing of doctor with it.
fn probe(path: &Path) -> std::io::Result<Result<String, String>> {
    let before = OomKills::now();
    let mut command = process::own_command();
    command.args(["doctor", "--probe", "--library"]).arg(path);
    let output = timed::output(&mut command, limits::EXECUTOR_START)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(Ok(text(&output.stdout)));
    }
    let said = text(&output.stderr);
    if output.status.code() == Some(i32::from(Exit::Error as u8)) {
        return Ok(Err(said.trim_start_matches("rust-ort: ").to_owned()));
    }
    let ended = Ended::of(Ok(output.status), before);
    let message = format!(
        "{}: the process that loaded it {ended}; install onnxruntime again, the file is damaged or not for this \
         machine",
        path.display()
    );
    Ok(Err(if said.is_empty() { message } else { format!("{message}; it said: {said}") }))
}

fn load(path: &Path) -> Result<String, crate::runtime::RuntimeError> {
    let runtime = OrtRuntime::load(path, ThreadPool { threads: 1, allow_spinning: false })?;
    Ok(format!("{} is version {}, with {}", path.display(), runtime.version(), runtime.providers().join(", ")))
}

fn state_folder() -> Result<String, String> {
    let folder = paths::state().map_err(|error| error.to_string())?;
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&probe, b"probe"))
        .and_then(|()| std::fs::remove_file(&probe))
        .map(|()| format!("{} can be written", folder.display()))
        .map_err(|error| {
            format!("{}: {error}; set RUST_ORT_STATE_DIR to a folder that can be written", folder.display())
        })
}

fn shared_memory() -> Result<String, String> {
    let segment = Segment::create(SegmentId(0), "rust-ort-doctor", 4096).map_err(|error| {
        format!("{error}; memfd_create with sealing is needed: Linux 3.17 or newer, and a container that allows it")
    })?;
    let written = segment.write(4088, &[1, 2, 3, 4, 5, 6, 7, 8]).and_then(|()| segment.read(4088, 8));
    match written {
        Ok(bytes) if bytes == [1, 2, 3, 4, 5, 6, 7, 8] => Ok("sealed memfd works".to_owned()),
        other => Err(format!("a sealed memfd gave back {other:?}; report this with your kernel's version")),
    }
}

fn confinement() -> Result<String, String> {
    let confined = confine::tried();
    if confined.is_whole() {
        return Ok("a model that takes its process over gets no further".to_owned());
    }
    Err(format!(
        "{confined}: models run all the same, with your rights; Landlock needs Linux 5.13 or newer, and a container has to \
         allow landlock_create_ruleset and seccomp"
    ))
}

fn futex() -> Result<String, String> {
    use rustix::thread::futex;
    futex::wake(&std::sync::atomic::AtomicU32::new(0), futex::Flags::empty(), 1)
        .map(|_| "wait and wake work".to_owned())
        .map_err(|error| format!("{error}; allow the futex system call in the container's seccomp profile"))
}
