//! `rust-ort cuda-probe`, asked line by line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::stand_in::StandIn;

pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(stand_in: &StandIn, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rust-ort"));
        stand_in.equip(command.arg("cuda-probe")).envs(environment.iter().copied());
        Self::of(command)
    }

    pub fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: answered {answer:?}"))
    }

    /// The answer, be it an error.
    pub fn try_ask(&mut self, op: &str, arguments: Value) -> Value {
        let mut command = arguments;
        command["op"] = op.into();
        self.say(&command.to_string())
    }

    #[track_caller]
    pub fn ask(&mut self, op: &str, arguments: Value) -> Value {
        let answer = self.try_ask(op, arguments);
        assert_eq!(answer["ok"], true, "{op}: {answer}");
        answer
    }

    #[track_caller]
    pub fn error(&mut self, op: &str, arguments: Value) -> String {
        let answer = self.try_ask(op, arguments);
        assert_eq!(answer["ok"], false, "{op}: {answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Opens what another shared.
    #[track_caller]
    pub fn open(&mut self, slot: u32, shared: &Value) -> Value {
        self.ask("open", opening(slot, shared))
    }

    /// SIGKILL, and nothing left of the process.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Exit code and what it logged.
    pub fn end(mut self) -> (i32, String) {
        drop(self.stdin.take());
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code().unwrap(), log)
    }
}

impl Drop for Peer {
    /// After a failed assertion: this process's own child, by its handle.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `open` of what `share` answered.
pub fn opening(slot: u32, shared: &Value) -> Value {
    json!({
        "slot": slot, "device": 0, "offset": 0, "len_bytes": shared["len_bytes"], "memory": shared["memory"],
        "ready": shared["ready"], "done": shared["done"], "numbers": shared["numbers"],
    })
}
