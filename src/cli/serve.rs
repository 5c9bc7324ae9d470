//! `rust-ort serve`.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Exit, Outcome, SocketArgument};
use crate::daemon::listener::{self, Config};
use crate::daemon::paths;
use crate::daemon::peer::Peer;

const START: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// End when no client was connected for so many seconds [default: RUST_ORT_IDLE_TIMEOUT_S, else 1800]
    #[arg(long)]
    idle_timeout_s: Option<f64>,
    /// Start a detached daemon and return when it answers
    #[arg(long)]
    background: bool,
    #[arg(long, hide = true)]
    detached: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let config = Config {
        socket: arguments.socket.path()?,
        state_folder: paths::state()?,
        idle_timeout: idle_timeout(arguments.idle_timeout_s)?,
    };
    if arguments.background {
        return start(&config);
    }
    if arguments.detached {
        // Away from the terminal of whoever started it. Fails only for a group's leader, which has no need of it.
        let _ = rustix::process::setsid();
    }
    listener::serve(config)?;
    Ok(Exit::Success)
}

fn idle_timeout(given: Option<f64>) -> Result<Duration, Box<dyn std::error::Error>> {
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

fn start(config: &Config) -> Outcome {
    if Peer::connect(&config.socket, "rust-ort serve").is_ok() {
        return Ok(Exit::Success);
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["serve", "--detached", "--idle-timeout-s"])
        .arg(config.idle_timeout.as_secs_f64().to_string())
        .arg("--socket")
        .arg(&config.socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + START;
    loop {
        // Its own daemon or that of whoever was faster.
        let answer = Peer::connect(&config.socket, "rust-ort serve");
        let Err(error) = answer else { return Ok(Exit::Success) };
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
