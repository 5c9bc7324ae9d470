//! `rust-ort status`.

use serde_json::Value;

use super::answer::{json_text, mebibytes, put};
use super::exit::{Exit, Outcome};
use super::socket_argument::SocketArgument;
use super::table::{self, Give};
use super::verdicts;
use crate::base::bytes::Bytes;
use crate::client::{Peer, PeerError};
use crate::confine::Confined;
use crate::daemon::status::{ClientStatus, DaemonStatus, Death, ExecutorStatus, Status, StepRecord};
use crate::protocol::control::{Reply, Request};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArgument,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let (mut peer, welcome) = Peer::connect(&arguments.socket.path()?, "rust-ort status")?;
    let Reply::Status(json) = peer.ask(&Request::GetStatus)? else {
        return Err(PeerError::Unexpected("GetStatus").into());
    };
    let mut status: Value = serde_json::from_str(&json)?;
    // Who asks is not news.
    if let Some(clients) = status["clients"].as_array_mut() {
        clients.retain(|client| client["id"] != welcome.client.0);
    }
    let text = if arguments.json {
        json_text("status", status)?
    } else {
        text(&serde_json::from_value(status)?, table::width())
    };
    put(&text)?;
    Ok(Exit::Success)
}

fn text(status: &Status, width: usize) -> String {
    let counters = status.counters.iter().map(|(name, n)| vec![name.clone(), n.to_string()]).collect();
    let sections = [
        section("clients", &CLIENT, status.clients.iter().map(client).collect(), width),
        section("executors", &EXECUTOR, status.executors.iter().map(executor).collect(), width),
        section("counters", &["since the start", ""], counters, width),
        section("last observed steps", &STEP, status.last_steps.iter().map(step).collect(), width),
        section("quarantine", &DEATH, status.quarantine.iter().map(death).collect(), width),
    ];
    daemon(status) + &sections.concat()
}

fn daemon(status: &Status) -> String {
    let DaemonStatus { pid, version, socket, log, uptime_s, idle_timeout_s, .. } = &status.daemon;
    let (own, executors) = (status.memory.daemon_bytes, status.memory.executor_bytes);
    let on_devices = status.memory.device_bytes.map_or_else(unknown, |bytes| Bytes(bytes).to_string());
    let replaced = match status.daemon.program_replaced {
        true => "  its program was replaced since: it ends when its last client leaves\n",
        false => "",
    };
    format!(
        "daemon {pid}, version {version}, up {}, ends after {} without a client\n{replaced}  socket  {socket}\n  \
         log     {log}\n  memory  {} daemon, {} executors; {on_devices} of devices\n  kept    {} for clients, of at most {}\n  graphs  {} known\n",
        duration(*uptime_s),
        duration(*idle_timeout_s),
        mebibytes(own),
        mebibytes(executors),
        mebibytes(status.memory.kept_bytes),
        mebibytes(status.memory.kept_limit_bytes),
        status.graphs,
    )
}

const CLIENT: [&str; 10] =
    ["client", "pid", "program", "torch", "executor", "graphs", "parts", "shared", "kept", "dump"];

fn client(client: &ClientStatus) -> Vec<String> {
    vec![
        client.id.0.to_string(),
        client.pid.to_string(),
        some(&client.program),
        some(&client.torch_version),
        client.executor.map_or_else(none, |executor| executor.0.to_string()),
        client.graphs.to_string(),
        client.parts.to_string(),
        mebibytes(client.segment_bytes),
        mebibytes(client.kept_bytes),
        client.dump.clone().unwrap_or_else(none),
    ]
}

const EXECUTOR: [&str; 10] =
    ["executor", "pid", "onnxruntime", "threads", "client", "sessions", "runs", "memory", "of devices", "confined"];

fn executor(executor: &ExecutorStatus) -> Vec<String> {
    vec![
        executor.id.0.to_string(),
        executor.pid.to_string(),
        match executor.libtorch {
            None => executor.onnxruntime_version.clone(),
            Some(_) => format!("{}, libtorch", executor.onnxruntime_version),
        },
        if executor.threads == 0 { "all cores".to_owned() } else { executor.threads.to_string() },
        executor.leased_to.map_or_else(|| "none (warm)".to_owned(), |client| client.0.to_string()),
        executor.sessions.to_string(),
        executor.runs.to_string(),
        mebibytes(executor.resident_bytes),
        match executor.device_bytes {
            None => unknown(),
            Some(0) => none(),
            Some(bytes) => Bytes(bytes).to_string(),
        },
        executor.confined.as_ref().map_or_else(unknown, Confined::to_string),
    ]
}

const STEP: [&str; 9] = ["client", "graph", "part", "step", "run", "outputs", "nodes", "observing changed", "dump"];

fn step(step: &StepRecord) -> Vec<String> {
    vec![
        step.client.0.to_string(),
        step.graph.clone(),
        step.part.to_string(),
        step.step.0.to_string(),
        format!("{:.3} ms", step.run_us as f64 / 1000.),
        verdicts::cell(step.summary),
        verdicts::cell(step.nodes),
        verdicts::cell(step.observing),
        step.dump.clone().unwrap_or_else(none),
    ]
}

const DEATH: [&str; 5] = ["graph", "part", "deaths in a row", "cause", "dump"];

fn death(death: &Death) -> Vec<String> {
    vec![
        death.name.clone(),
        death.part.to_string(),
        death.deaths_in_a_row.to_string(),
        death.cause.clone(),
        some(&death.dump),
    ]
}

/// A title and its rows, two columns in.
fn section(title: &str, header: &[&str], rows: Vec<Vec<String>>, width: usize) -> String {
    if rows.is_empty() {
        return format!("{title}: none\n");
    }
    let table = table::aligned(header, &rows, &vec![Give::End; header.len()], width.saturating_sub(2));
    let lines: String = table.lines().map(|line| format!("  {line}\n")).collect();
    format!("{title}\n{lines}")
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn none() -> String {
    "-".to_owned()
}

fn some(text: &str) -> String {
    if text.is_empty() { none() } else { text.to_owned() }
}

/// "45 s", "12 min 5 s", "3 h 2 min", "4 d 1 h".
fn duration(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let (mut left, mut words) = (seconds, Vec::new());
    for (unit, name) in units.iter().skip(first).take(2) {
        if left >= *unit || words.is_empty() {
            words.push(format!("{} {name}", left / unit));
        }
        left %= unit;
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(status: Value) -> Status {
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn every_section_says_none_when_it_is_empty() {
        let status = json!({ "daemon": { "pid": 7, "version": "0.1.0" }, "counters": { "runs": 3 } });
        let text = text(&read(status), 120);
        for line in ["daemon 7, version 0.1.0, up 0 s", "clients: none", "executors: none", "quarantine: none"] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        assert!(text.contains("\n  runs             3\n"), "{text}");
    }

    #[test]
    fn a_row_says_what_each_number_is() {
        let executor = |id: u32, more: Value| -> Value {
            let mut one = json!({
                "id": id, "pid": 11, "library": "/l.so", "onnxruntime_version": "1.31.1", "threads": 2,
                "allow_spinning": false, "sessions": 0, "runs": 0, "resident_bytes": 1 << 20, "log": "/x.log",
            });
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let held = json!({ "files": "holds", "network": "holds", "exec": "holds" });
        let missing = json!({ "missing": "turned off" });
        let not = json!({ "files": missing, "network": missing, "exec": missing });
        let mut status = read(json!({
            "daemon": { "uptime_s": 3725, "program_replaced": true },
            "executors": [
                executor(3, json!({ "leased_to": null, "sessions": 2, "runs": 9, "threads": 0, "device_bytes": 3_u64 << 30 })),
                executor(4, json!({ "leased_to": 5, "device_bytes": 0, "confined": held })),
                executor(6, json!({ "leased_to": null, "device_bytes": null, "confined": not })),
            ],
            "memory": { "device_bytes": 3_u64 << 30 },
            "last_steps": [{
                "client": 5, "graph": "0_0-forward", "part": 1, "step": 4, "run_us": 1500, "outputs": 2,
                "nodes": { "match": 7, "mismatch": 1, "not_compared": 0, "failed": 0 },
                "summary": { "match": 2, "mismatch": 0, "not_compared": 0, "failed": 0 }, "dump": null,
            }],
        }));
        let text = text(&status, 200);
        let words = |start: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(words("3 "), "3|11|1.31.1|all cores|none (warm)|2|9|1.0 MiB|3.0 GiB|unknown");
        assert_eq!(words("4 "), "4|11|1.31.1|2|5|0|0|1.0 MiB|-|yes");
        assert_eq!(words("6 "), "6|11|1.31.1|2|none (warm)|0|0|1.0 MiB|unknown|no (turned off)");
        assert!(text.contains("executors; 3.0 GiB of devices\n"), "{text}");
        status.memory.device_bytes = None;
        assert!(super::text(&status, 200).contains("executors; unknown of devices\n"));
        assert_eq!(words("5 "), "5|0_0-forward|1|4|1.500 ms|2 match|7 match, 1 mismatch|-|-");
        assert!(text.contains("up 1 h 2 min") && text.contains("was replaced"), "{text}");
    }

    #[test]
    fn lines_fit_the_terminal() {
        let death = json!({
            "graph": "0".repeat(64), "name": "0_0-forward", "part": 0, "deaths_in_a_row": 1, "dump": "/x".repeat(90),
            "cause": "killed by signal 9",
        });
        let text = text(&read(json!({ "quarantine": [death] })), 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn durations_have_two_units() {
        let text: Vec<String> = [0, 59, 60, 725, 3600, 86_400 + 7200].map(duration).to_vec();
        assert_eq!(text, ["0 s", "59 s", "1 min", "12 min 5 s", "1 h", "1 d 2 h"]);
    }
}
