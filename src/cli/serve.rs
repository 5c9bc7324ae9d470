//! `rust-ort serve`.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::answer::tell;
use super::exit::{Exit, Failure, Outcome};
use super::socket_argument::SocketArgument;
use super::walls_argument::WallsArgument;
use crate::base::{limits, process};
use crate::client::Peer;
use crate::daemon::paths;
use crate::daemon::{self, Config, Served};

/// How long a daemon may take until it answers.
const START: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// End when no client was connected for so many seconds [default: RUST_ORT_IDLE_TIMEOUT_S, else 1800]
    #[arg(long)]
    idle_timeout_s: Option<f64>,
    #[command(flatten)]
    walls: WallsArgument,
    /// Start a detached daemon and return when it answers
    #[arg(long)]
    background: bool,
    /// Print which daemon serves as JSON
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    detached: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let config = Config {
        socket: arguments.socket.path()?,
        state_folder: paths::state()?,
        idle_timeout: idle_timeout(arguments.idle_timeout_s)?,
        idle_on_device: idle_on_device()?,
        memory_bytes: memory_bytes()?,
        confine: arguments.walls.wanted()?,
        leaves_starter: arguments.detached,
    };
    if arguments.background {
        return start(&config, arguments.json);
    }
    if arguments.detached {
        // Away from the terminal of whoever started it. Fails only for a group's leader, which has no need of it.
        let _ = rustix::process::setsid();
    }
    let socket = config.socket.clone();
    if let Served::Elsewhere { pid } = daemon::serve(config)? {
        return says(pid, &socket, true, arguments.json);
    }
    Ok(Exit::Success)
}

/// Says which daemon serves. already: it was there before.
fn says(pid: u32, socket: &Path, already: bool, as_json: bool) -> Outcome {
    let answer = json!({ "daemon_pid": pid, "socket": socket, "already": already });
    let words = format!("daemon {pid} serves {}{}\n", socket.display(), if already { " already" } else { "" });
    tell("serve", as_json, answer, &words)
}

fn idle_timeout(given: Option<f64>) -> Result<Duration, Failure> {
    let seconds = match (given, std::env::var("RUST_ORT_IDLE_TIMEOUT_S")) {
        (Some(seconds), _) => seconds,
        (None, Ok(text)) if !text.is_empty() => {
            text.parse().map_err(|_| format!("RUST_ORT_IDLE_TIMEOUT_S: expected a number of seconds, got {text:?}"))?
        }
        _ => 1800.,
    };
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| format!("idle timeout: expected a number of seconds above 0, got {seconds}").into())
}

/// A daemon that this process starts reads the variable by itself.
fn idle_on_device() -> Result<Duration, Failure> {
    const NAME: &str = "RUST_ORT_IDLE_DEVICE_TIMEOUT_S";
    let Some(text) = std::env::var(NAME).ok().filter(|text| !text.is_empty()) else {
        return Ok(limits::IDLE_ON_DEVICE);
    };
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.ok_or_else(|| format!("{NAME}: expected a number of seconds, not below 0, got {text:?}").into())
}

/// A daemon that this process starts reads the variable by itself.
fn memory_bytes() -> Result<Option<u64>, Failure> {
    let Some(text) = std::env::var("RUST_ORT_MEMORY_MB").ok().filter(|text| !text.is_empty()) else { return Ok(None) };
    let bytes = text.parse::<u64>().ok().filter(|&mb| mb > 0).and_then(|mb| mb.checked_mul(1 << 20));
    bytes.map(Some).ok_or_else(|| format!("RUST_ORT_MEMORY_MB: expected a whole number above 0, got {text:?}").into())
}

fn start(config: &Config, as_json: bool) -> Outcome {
    let socket = &config.socket;
    if let Ok((_, welcome)) = Peer::connect(socket, "rust-ort serve") {
        return says(welcome.daemon_pid, socket, true, as_json);
    }
    let mut child = process::own_command()
        .args(["serve", "--detached", "--idle-timeout-s"])
        .arg(config.idle_timeout.as_secs_f64().to_string())
        .args((!config.confine).then_some("--no-confine"))
        .arg("--socket")
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + START;
    loop {
        // Its own daemon or that of whoever was faster.
        let error = match Peer::connect(socket, "rust-ort serve") {
            Ok((_, welcome)) => {
                return says(welcome.daemon_pid, socket, welcome.daemon_pid != child.id(), as_json);
            }
            Err(error) => error,
        };
        if let Some(status) = child.try_wait()?.filter(|status| !status.success()) {
            return Err(format!("the daemon did not start ({status}): {}", last_words(&mut child)).into());
        }
        if Instant::now() > deadline {
            return Err(format!("the daemon did not answer within {} s: {error}", START.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        // What could be read is all there is to say.
        let _ = stderr.read_to_string(&mut text);
    }
    text.trim().to_owned()
}
