//! `rust-ort cuda-probe` (hidden): the Rust side of `make gpu-check`'s CUDA IPC probe.
//!
//! One JSON object a line on stdin, one answer a line on stdout, in order: `open`, then `read` and `write`, then `close`.
//! The pattern of seed s has byte i = (31 i + s) mod 251, so nothing but a seed needs to travel.

mod ipc;

use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use self::ipc::{Cuda, CudaError, Event, IpcHandle, Mapping, Stream};
use super::exit::{Exit, Outcome};

/// Largest tensor that the probe takes.
const LIMIT_BYTES: u64 = 1 << 30;

/// Arguments of `rust-ort cuda-probe`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// The CUDA runtime library, e.g. libcudart.so.13
    #[arg(long, default_value = "libcudart.so")]
    pub library: PathBuf,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Command {
    /// Map a tensor and open the events that order the two processes' streams.
    Open { device: i32, memory: String, offset: u64, len_bytes: u64, ready: String, done: String },
    /// Wait for `ready` on the own stream, copy the tensor to the host, count bytes that are not the pattern's.
    Read { seed: u64 },
    /// Queue a pause and a copy of the pattern, record `done`, answer without waiting.
    Write { seed: u64, delay_ms: u32 },
    /// Wait for the stream, unmap.
    Close,
}

/// Serve one probe on stdin and stdout. Error unless every command succeeded.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let (stdin, mut stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    let all_ok = match Cuda::load(&arguments.library) {
        Ok(cuda) => serve(&cuda, stdin, stdout)?,
        Err(error) => {
            answer(&mut stdout, &json!({"ok": false, "error": error.to_string()}))?;
            false
        }
    };
    Ok(if all_ok { Exit::Success } else { Exit::Error })
}

/// Answer every command of `input`; true when all succeeded. Errors: the pipe's.
pub fn serve(cuda: &Cuda, input: impl BufRead, mut output: impl Write) -> std::io::Result<bool> {
    let mut probe = None;
    let mut all_ok = true;
    for line in input.lines() {
        let line = line?;
        let result = serde_json::from_str(&line)
            .map_err(|error| format!("bad command: {error}"))
            .and_then(|command| obey(cuda, &mut probe, command));
        all_ok &= result.is_ok();
        answer(&mut output, &result.unwrap_or_else(|error| json!({"ok": false, "error": error})))?;
    }
    Ok(all_ok)
}

fn answer(mut output: impl Write, value: &Value) -> std::io::Result<()> {
    writeln!(output, "{value}")?;
    output.flush()
}

fn obey<'c>(cuda: &'c Cuda, probe: &mut Option<Probe<'c>>, command: Command) -> Result<Value, String> {
    let not_open = || "nothing is open; send open first".to_owned();
    match command {
        Command::Open { device, memory, offset, len_bytes, ready, done } => {
            if probe.is_some() {
                return Err("a tensor is open already; send close first".to_owned());
            }
            let handles = Handles { memory: bytes_of(&memory)?, ready: bytes_of(&ready)?, done: bytes_of(&done)? };
            let opened = Probe::open(cuda, device, &handles, offset, len_bytes)?;
            let versions = cuda.versions().map_err(|error| error.to_string())?;
            *probe = Some(opened);
            Ok(json!({"ok": true, "runtime_version": versions.runtime, "driver_version": versions.driver}))
        }
        Command::Read { seed } => probe.as_ref().ok_or_else(not_open)?.read(seed).map_err(|error| error.to_string()),
        Command::Write { seed, delay_ms } => {
            probe.as_ref().ok_or_else(not_open)?.write(seed, delay_ms).map_err(|error| error.to_string())
        }
        Command::Close => probe.take().ok_or_else(not_open)?.close().map_err(|error| error.to_string()),
    }
}

struct Handles {
    memory: Vec<u8>,
    ready: Vec<u8>,
    done: Vec<u8>,
}

/// Fields drop in this order: the stream's work ends before what it uses goes.
struct Probe<'c> {
    cuda: &'c Cuda,
    stream: Stream<'c>,
    mapping: Mapping<'c>,
    ready: Event<'c>,
    done: Event<'c>,
}

impl<'c> Probe<'c> {
    fn open(cuda: &'c Cuda, device: i32, handles: &Handles, offset: u64, len_bytes: u64) -> Result<Self, String> {
        if len_bytes > LIMIT_BYTES {
            return Err(format!("{len_bytes} bytes: the probe takes at most {LIMIT_BYTES}"));
        }
        let open = || -> Result<Self, CudaError> {
            let memory = IpcHandle::memory_from_torch(&handles.memory)?;
            let (ready, done) = (IpcHandle::event(&handles.ready)?, IpcHandle::event(&handles.done)?);
            cuda.device_count()?;
            cuda.set_device(device)?;
            Ok(Self {
                cuda,
                stream: cuda.stream()?,
                mapping: cuda.open_memory(memory, offset, len_bytes)?,
                ready: cuda.open_event(ready)?,
                done: cuda.open_event(done)?,
            })
        };
        open().map_err(|error| error.to_string())
    }

    fn read(&self, seed: u64) -> Result<Value, CudaError> {
        let mut host = self.cuda.pinned(self.mapping.len_bytes())?;
        self.stream.wait(&self.ready)?;
        self.stream.read(&self.mapping, &mut host)?;
        let wrong = || host.bytes().iter().enumerate().filter(|(i, byte)| **byte != pattern(seed, *i));
        Ok(json!({
            "ok": true,
            "len_bytes": self.mapping.len_bytes(),
            "wrong_bytes": wrong().count(),
            "first_wrong": wrong().next().map(|(i, byte)| json!({"at": i, "got": byte, "expected": pattern(seed, i)})),
        }))
    }

    fn write(&self, seed: u64, delay_ms: u32) -> Result<Value, CudaError> {
        let mut host = self.cuda.pinned(self.mapping.len_bytes())?;
        host.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(seed, i));
        self.stream.wait(&self.ready)?;
        self.stream.pause(delay_ms.min(10_000))?;
        self.stream.write(&self.mapping, host)?;
        self.stream.record(&self.done)?;
        Ok(json!({"ok": true}))
    }

    fn close(self) -> Result<Value, CudaError> {
        self.stream.synchronize()?;
        self.mapping.close()?;
        Ok(json!({"ok": true}))
    }
}

fn pattern(seed: u64, index: usize) -> u8 {
    ((31 * index as u64).wrapping_add(seed) % 251) as u8
}

fn bytes_of(hex: &str) -> Result<Vec<u8>, String> {
    let bad = || format!("a handle must be hexadecimal bytes, got {:?}", hex.chars().take(20).collect::<String>());
    if hex.len() % 2 == 1 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(bad());
    }
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).map_err(|_| bad())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_the_one_the_python_side_makes() {
        assert_eq!((0..6).map(|i| pattern(5, i)).collect::<Vec<_>>(), [5, 36, 67, 98, 129, 160]);
        assert_eq!(pattern(0, 1 << 20), 101);
    }

    #[test]
    fn handle_text_is_hexadecimal_or_refused() {
        assert_eq!(bytes_of("00ff7F"), Ok(vec![0, 255, 127]));
        for text in ["0", "0g", "é0", "+1", " 1"] {
            assert!(bytes_of(text).is_err(), "{text}");
        }
    }
}
