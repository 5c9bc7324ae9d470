//! `rust-ort status`.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Exit, Outcome, SocketArgument, mebibytes};
use crate::daemon::peer::{Peer, PeerError};
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
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", text(&status)?);
    }
    Ok(Exit::Success)
}

fn text(status: &Value) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let daemon = &status["daemon"];
    writeln!(text, "daemon {} version {}, up {} s", daemon["pid"], plain(&daemon["version"]), daemon["uptime_s"])?;
    writeln!(text, "  socket {}", plain(&daemon["socket"]))?;
    writeln!(text, "  log    {}", plain(&daemon["log"]))?;
    let bytes = |value: &Value| mebibytes(value.as_u64().unwrap_or(0));
    let memory = &status["memory"];
    writeln!(
        text,
        "  memory {} daemon, {} executors; {} graphs known",
        bytes(&memory["daemon_bytes"]),
        bytes(&memory["executor_bytes"]),
        status["graphs"]
    )?;
    section(&mut text, "clients", &status["clients"], |text, client| {
        let (id, pid, program) = (&client["id"], &client["pid"], plain(&client["program"]));
        write!(text, "{id}: pid {pid} {program}, torch {}", plain(&client["torch_version"]))?;
        writeln!(text, ", executor {}, {} graphs, {} parts", client["executor"], client["graphs"], client["parts"])
    })?;
    section(&mut text, "executors", &status["executors"], |text, executor| {
        write!(
            text,
            "{}: pid {}, onnxruntime {}",
            executor["id"],
            executor["pid"],
            plain(&executor["onnxruntime_version"])
        )?;
        let tenant = executor["leased_to"].as_u64().map_or("idle".to_owned(), |client| format!("client {client}"));
        write!(text, ", {} threads, {tenant}", executor["threads"])?;
        let (sessions, runs) = (&executor["sessions"], &executor["runs"]);
        writeln!(text, ", {sessions} sessions, {runs} runs, {}", bytes(&executor["resident_bytes"]))
    })?;
    writeln!(text, "counters")?;
    for (name, value) in status["counters"].as_object().into_iter().flatten() {
        writeln!(text, "  {name} {value}")?;
    }
    section(&mut text, "last observed steps", &status["last_steps"], |text, step| {
        let (graph, part) = (plain(&step["graph"]), &step["part"]);
        writeln!(text, "{graph} part {part} step {}: {} us {}", step["step"], step["run_us"], step["summary"])?;
        match &step["nodes"] {
            serde_json::Value::Null => Ok(()),
            nodes => writeln!(text, "  nodes {nodes}"),
        }
    })?;
    section(&mut text, "quarantine", &status["quarantine"], |text, death| {
        let (name, part, n) = (plain(&death["name"]), &death["part"], &death["deaths_in_a_row"]);
        writeln!(text, "{name} part {part}: {n} deaths, {}: {}", plain(&death["cause"]), plain(&death["dump"]))
    })?;
    Ok(text)
}

fn section(
    text: &mut String,
    title: &str,
    entries: &Value,
    line: impl Fn(&mut String, &Value) -> std::fmt::Result,
) -> std::fmt::Result {
    let entries = entries.as_array().map_or(&[][..], Vec::as_slice);
    writeln!(text, "{title}{}", if entries.is_empty() { ": none" } else { "" })?;
    for entry in entries {
        text.push_str("  ");
        line(text, entry)?;
    }
    Ok(())
}

fn plain(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_section_says_none_when_it_is_empty() {
        let status = json!({ "daemon": { "pid": 7, "version": "0.1.0" }, "counters": { "runs": 3 } });
        let text = text(&status).unwrap();
        for line in ["daemon 7 version 0.1.0", "clients: none", "executors: none", "  runs 3", "quarantine: none"] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
