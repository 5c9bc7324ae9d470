//! `rust-ort cuda-probe` (hidden): one process of two that share CUDA memory, for `make gpu-check` and the tests.
//!
//! One JSON object a line on stdin, one answer a line on stdout, in order: `share` or `open`, then `read` and `write`, then
//! `close`. Whoever shares has an event `ready` that the other waits for, whoever opens has `done`; with `numbers` the two are
//! numbers in memory, whoever shares is the client and hands over by `write` what the other does then. The pattern of seed s has
//! byte i = (31 i + s) mod 251, so nothing but a seed needs to travel.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::exit::{Exit, Outcome};
use crate::base::ids::{DeviceUuid, SegmentId};
use crate::base::log;
use crate::compare::{
    Compared, DeviceMeter, DevicePair, Exact, Excused, Explained, Measured, Noise, Pair, Range, Tolerance,
};
use crate::cuda::{
    self, Allocation, CudaError, Device, Event, InUse, IpcHandle, Mapping, Memory, Pinned, Pool, Span, Stream,
};
use crate::runtime::ort::probe_regions;
use crate::shm::{End, Lanes, Numbers, Segment, Slot};
use crate::tensor::{DType, TensorBuf, TensorDesc};

/// Largest tensor that the probe takes.
const LIMIT_BYTES: u64 = 1 << 30;

/// Longest pause in `write`.
const LIMIT_MS: u32 = 10_000;

/// What was handed over is waited for so long.
const PATIENCE: Duration = Duration::from_secs(12);

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Command {
    /// What this process sees.
    Devices,
    /// What is free on a device.
    Memory { device: Which },
    /// Be an executor: errors for want of memory tell who holds it.
    Serve { client: Option<u32> },
    /// What this process holds of the memory of devices.
    Held,
    /// Allocate, and say by what another process opens it.
    Share {
        device: Which,
        len_bytes: u64,
        #[serde(default)]
        numbers: bool,
        #[serde(default)]
        slot: u32,
    },
    /// The allocation that an address lies in.
    At { address: u64 },
    /// The handle of an allocation that `at` or `share` told.
    Export { id: u64, base: u64, len_bytes: u64, ordinal: i32 },
    /// Map a tensor of another process and open the events that order the two processes' streams.
    Open {
        device: Which,
        memory: String,
        offset: u64,
        len_bytes: u64,
        ready: String,
        done: String,
        /// Where the numbers are, in the place of the events.
        #[serde(default)]
        numbers: Option<PathBuf>,
        #[serde(default)]
        slot: u32,
    },
    /// Wait for the other's event on the own stream (unless unordered), copy the tensor to the host, count bytes that are not
    /// the pattern's.
    Read {
        seed: u64,
        #[serde(default)]
        unordered: bool,
        #[serde(default)]
        slot: u32,
    },
    /// Queue, after the other's event, a pause and a copy of the pattern, record the own event, answer without waiting.
    Write {
        seed: u64,
        delay_ms: u32,
        #[serde(default)]
        slot: u32,
    },
    /// What is found of a pair of vectors, and of the two the other way round, by the device and by the host. Bytes are
    /// hexadecimal. exact and terms: float64; step: of a value that drifted.
    Measure {
        device: Which,
        dtype: DType,
        reference: String,
        candidate: String,
        #[serde(default)]
        equal_nan: bool,
        exact: Option<String>,
        terms: Option<String>,
        step: Option<f64>,
    },
    /// Take so many bytes each out of a pool, give them back, and trim it.
    Pool { device: Which, len_bytes: Vec<u64> },
    /// Kernels of regions: what each is off from the CPU's; of many elements, how fast it is.
    Regions {
        device: Which,
        #[serde(default)]
        many: bool,
    },
    /// Wait for the stream, unmap or free.
    Close {
        #[serde(default)]
        slot: u32,
    },
}

/// All of it taken at once, then given back.
fn pool(device: &Arc<Device>, len_bytes: &[u64]) -> Result<Value, CudaError> {
    let stream = Stream::new(device)?;
    let Some(pool) = Pool::new(device)? else { return Ok(json!({"pool": false})) };
    let mut taken = Vec::new();
    let asked = len_bytes.iter().try_for_each(|&len| {
        taken.push(pool.take(&stream, len as usize)?);
        Ok(())
    });
    let given = taken.iter().try_for_each(|&address| pool.give(&stream, address));
    asked.and(given).and_then(|()| pool.trim())?;
    Ok(json!({"pool": true, "addresses": taken}))
}

/// A device by its place among the visible or by its name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Which {
    Ordinal(i32),
    Name(String),
}

impl Which {
    fn device(&self) -> Result<Arc<Device>, String> {
        match self {
            Self::Ordinal(ordinal) => Device::of_ordinal(*ordinal).map_err(text),
            Self::Name(name) => {
                Device::by_uuid(name.parse::<DeviceUuid>().map_err(|error| error.to_string())?).map_err(text)
            }
        }
    }
}

fn text(error: CudaError) -> String {
    error.to_string()
}

/// Serve one probe on stdin and stdout. Error unless every command succeeded.
pub(super) fn run() -> Outcome {
    log::start(std::io::stderr);
    let all_ok = serve(std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(if all_ok { Exit::Success } else { Exit::Error })
}

/// Answer every command of `input`; true when all succeeded. Errors: the pipe's.
fn serve(input: impl BufRead, mut output: impl Write) -> std::io::Result<bool> {
    let (mut probes, mut meters) = (BTreeMap::new(), Meters::new());
    let mut all_ok = true;
    for line in input.lines() {
        let result = serde_json::from_str(&line?)
            .map_err(|error| format!("bad command: {error}"))
            .and_then(|command| obey(&mut probes, &mut meters, command));
        all_ok &= result.is_ok();
        let mut answer = result.unwrap_or_else(|error| json!({ "error": error }));
        answer["ok"] = answer.get("error").is_none().into();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(all_ok)
}

/// What measures on each device that was asked for.
type Meters = BTreeMap<i32, DeviceMeter>;

fn obey(probes: &mut BTreeMap<u32, Probe>, meters: &mut Meters, command: Command) -> Result<Value, String> {
    let not_open = || "nothing is open; send open first".to_owned();
    match command {
        Command::Devices => {
            let visible = Device::visible().map_err(text)?.iter().map(DeviceUuid::to_string).collect::<Vec<_>>();
            Ok(json!({"driver_version": cuda::driver_version().map_err(text)?, "visible": visible}))
        }
        Command::Memory { device } => {
            let (free, total) = device.device()?.memory().map_err(text)?;
            Ok(json!({"free_bytes": free, "total_bytes": total}))
        }
        Command::Serve { client } => {
            cuda::serve(client);
            Ok(json!({}))
        }
        Command::Held => Ok(match InUse::now() {
            InUse::Nothing => json!({"bytes": 0}),
            InUse::Bytes(bytes) => json!({"bytes": bytes}),
            InUse::Unknown => json!({"bytes": null}),
        }),
        Command::At { address } => Allocation::at(address).map(|found| told(&found)).map_err(text),
        Command::Export { id, base, len_bytes, ordinal } => {
            let handle = Allocation { id, base, len_bytes, ordinal }.export().map_err(text)?;
            Ok(json!({"memory": hex(handle)}))
        }
        Command::Share { device, len_bytes, numbers, slot } => {
            may_open(probes, slot, len_bytes)?;
            let (probe, answer) = Probe::share(&device.device()?, len_bytes, numbers)?;
            probes.insert(slot, probe);
            Ok(answer)
        }
        Command::Open { device, memory, offset, len_bytes, ready, done, numbers, slot } => {
            may_open(probes, slot, len_bytes)?;
            let (memory, ready, done) = (bytes_of(&memory)?, bytes_of(&ready)?, bytes_of(&done)?);
            let device = device.device()?;
            let open = || {
                let handles = [
                    IpcHandle::memory_from_torch(&memory).map_err(text)?,
                    IpcHandle::from_bytes(&ready).map_err(text)?,
                    IpcHandle::from_bytes(&done).map_err(text)?,
                ];
                Probe::open(&device, handles, numbers.as_deref(), (offset, len_bytes))
            };
            let answer = json!({
                "driver_version": cuda::driver_version().map_err(text)?,
                "device": format!("{} {}", device.uuid(), device.name()),
            });
            probes.insert(slot, open()?);
            Ok(answer)
        }
        Command::Read { seed, unordered, slot } => {
            probes.get(&slot).ok_or_else(not_open)?.read(seed, unordered).map_err(text)
        }
        Command::Write { seed, delay_ms, slot } => {
            probes.get(&slot).ok_or_else(not_open)?.write(seed, delay_ms).map_err(text)
        }
        Command::Pool { device, len_bytes } => pool(&device.device()?, &len_bytes).map_err(text),
        Command::Measure { device, dtype, reference, candidate, equal_nan, exact, terms, step } => {
            let double = |hex: Option<String>| hex.map(|hex| vector(DType::F64, &hex)).transpose();
            let (exact, terms) = (double(exact)?, double(terms)?);
            let (reference, candidate) = (vector(dtype, &reference)?, vector(dtype, &candidate)?);
            let explained = match (&terms, step) {
                (_, Some(step)) => Explained::Drift { step },
                (Some(terms), None) => Explained::Terms(terms),
                (None, None) => Explained::Kernel,
            };
            let pair = Pair {
                tolerance: Some(Tolerance { equal_nan, ..Tolerance::for_dtype(dtype) }),
                terms: terms.as_ref(),
                exact: exact.as_ref().map(|value| Exact {
                    value,
                    explained,
                    factor: Noise::FACTOR,
                    excused: Excused::Nothing,
                }),
                signatures: true,
                ..Pair::new("y", &reference, &candidate, None)
            };
            let reversed = Pair { reference: &candidate, candidate: &reference, ..pair.clone() };
            let device = on_device(&device.device()?, meters, [&pair, &reversed])?;
            let host = [pair, reversed].map(|pair| {
                let range = Range::of(&pair.reference.view());
                told_pair(pair.map(TensorBuf::shared).compared(), range)
            });
            Ok(json!({"device": device, "host": host}))
        }
        Command::Regions { device, many } => Ok(json!({"regions": probe_regions(&device.device()?, many)})),
        Command::Close { slot } => probes.remove(&slot).ok_or_else(not_open)?.close().map_err(text),
    }
}

fn may_open(probes: &BTreeMap<u32, Probe>, slot: u32, len_bytes: u64) -> Result<(), String> {
    if probes.contains_key(&slot) {
        return Err("a tensor is open already; send close first".to_owned());
    }
    if len_bytes > LIMIT_BYTES {
        return Err(format!("{len_bytes} bytes: the probe takes at most {LIMIT_BYTES}"));
    }
    Ok(())
}

fn told(allocation: &Allocation) -> Value {
    let Allocation { id, base, len_bytes, ordinal } = allocation;
    json!({"id": id, "base": base, "len_bytes": len_bytes, "ordinal": ordinal})
}

enum Block {
    Own(Memory),
    Others(Mapping),
}

/// Fields drop in this order: the stream's work ends before what it uses goes.
struct Probe {
    device: Arc<Device>,
    stream: Stream,
    block: Block,
    offset: u64,
    len_bytes: u64,
    order: Order,
}

/// What orders the streams of the two processes.
enum Order {
    /// What the other process records, and what this one does.
    Events { others: Event, own: Event },
    /// Of which end this is; the number of the call that is handed over.
    Numbers { slot: Slot, end: End, number: Cell<u32> },
}

impl Order {
    fn numbers(lanes: &Arc<Lanes>, end: End, device: &Arc<Device>) -> Result<Self, CudaError> {
        let numbers = Numbers::new(lanes, end, device)?;
        numbers.try_out(device)?;
        Ok(Self::Numbers { slot: numbers.slot(1, device)?, end, number: Cell::new(0) })
    }
}

impl Probe {
    fn share(device: &Arc<Device>, len_bytes: u64, numbers: bool) -> Result<(Self, Value), String> {
        let memory = Memory::new(device, len_bytes).map_err(text)?;
        let allocation = Allocation::at(memory.start().addr().get() as u64).map_err(text)?;
        let mut answer = told(&allocation);
        answer["memory"] = hex(allocation.export().map_err(text)?).into();
        let (ready, done) = (Event::interprocess(device).map_err(text)?, Event::interprocess(device).map_err(text)?);
        answer["ready"] = hex(ready.handle().map_err(text)?).into();
        answer["done"] = hex(done.handle().map_err(text)?).into();
        let order = if numbers {
            let lanes = Lanes::create(SegmentId(1), 1, 64 << 10).map_err(|error| error.to_string())?;
            let fd = lanes.segment().fd().as_raw_fd();
            answer["numbers"] = format!("/proc/{}/fd/{fd}", std::process::id()).into();
            Order::numbers(&lanes, End::Client, device).map_err(text)?
        } else {
            Order::Events { others: done, own: ready }
        };
        let stream = Stream::new(device).map_err(text)?;
        let block = Block::Own(memory);
        Ok((Self { device: device.clone(), stream, block, offset: 0, len_bytes, order }, answer))
    }

    fn open(
        device: &Arc<Device>,
        handles: [IpcHandle; 3],
        numbers: Option<&Path>,
        (offset, len_bytes): (u64, u64),
    ) -> Result<Self, String> {
        let [memory, ready, done] = handles;
        let range = CudaError::Range { offset, len_bytes, limit: isize::MAX as u64 };
        let end = offset.checked_add(len_bytes).filter(|end| *end <= isize::MAX as u64).ok_or(text(range))?;
        let stream = Stream::new(device).map_err(text)?;
        let block = Block::Others(Mapping::open(device, &memory, end).map_err(text)?);
        let order = match numbers {
            Some(path) => {
                let file = File::options().read(true).write(true).open(path).map_err(|error| error.to_string())?;
                let len = file.metadata().map_err(|error| error.to_string())?.len();
                let segment = Segment::map(SegmentId(1), file.into(), len).map_err(|error| error.to_string())?;
                let lanes = Lanes::map(segment).map_err(|error| error.to_string())?;
                Order::numbers(&lanes, End::Executor, device).map_err(text)?
            }
            None => Order::Events {
                others: Event::open(device, &ready).map_err(text)?,
                own: Event::open(device, &done).map_err(text)?,
            },
        };
        Ok(Self { stream, block, offset, len_bytes, order, device: device.clone() })
    }

    fn span(&self) -> Result<Span<'_>, CudaError> {
        match &self.block {
            Block::Own(memory) => memory.span(self.offset, self.len_bytes),
            Block::Others(mapping) => mapping.span(self.offset, self.len_bytes),
        }
    }

    fn read(&self, seed: u64, unordered: bool) -> Result<Value, CudaError> {
        let was_done = match &self.order {
            Order::Events { others, .. } => others.is_done()?,
            Order::Numbers { slot, end: End::Client, .. } => slot.undone() == 0,
            Order::Numbers { slot, end: End::Executor, number } => slot.is_ready(number.get().wrapping_add(1)),
        };
        if !unordered {
            self.wait()?;
        }
        self.settle()?;
        let host = self.stream.read(self.span()?)?;
        let wrong = || host.bytes().iter().enumerate().filter(|(i, byte)| **byte != pattern(seed, *i));
        Ok(json!({
            "len_bytes": self.len_bytes,
            "was_done": was_done,
            "wrong_bytes": wrong().count(),
            "first_wrong": wrong().next().map(|(i, byte)| json!({"at": i, "got": byte, "expected": pattern(seed, i)})),
        }))
    }

    fn write(&self, seed: u64, delay_ms: u32) -> Result<Value, CudaError> {
        let written = self.queue_write(seed, delay_ms);
        if let (Err(_), Order::Numbers { slot, end: End::Executor, number }) = (&written, &self.order) {
            slot.end_now(number.get());
        }
        written
    }

    fn queue_write(&self, seed: u64, delay_ms: u32) -> Result<Value, CudaError> {
        let mut host = Pinned::new(&self.device, self.len_bytes as usize)?;
        host.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(seed, i));
        if let Order::Events { others, .. } = &self.order {
            self.stream.wait(others)?;
        }
        self.stream.pause(delay_ms.min(LIMIT_MS))?;
        self.stream.write(self.span()?, host)?;
        match &self.order {
            Order::Events { own, .. } => self.stream.record(own)?,
            // From here on the stream waits for the other process.
            Order::Numbers { slot, end: End::Client, .. } => slot.hand_over(&self.stream, slot.next())?,
            Order::Numbers { slot, end: End::Executor, number } => slot.end(&self.stream, number.get())?,
        }
        Ok(json!({}))
    }

    /// What comes on the stream now comes behind what the other process did last.
    fn wait(&self) -> Result<(), CudaError> {
        match &self.order {
            Order::Events { others, .. } => self.stream.wait(others),
            Order::Numbers { end: End::Client, .. } => Ok(()),
            Order::Numbers { slot, end: End::Executor, number } => {
                number.update(|number| number.wrapping_add(1));
                slot.begin(&self.stream, number.get())
            }
        }
    }

    /// Of whoever shares, with numbers: what it handed over is done, or let go of. Errors: Handle where nobody did it.
    fn settle(&self) -> Result<(), CudaError> {
        let Order::Numbers { slot, end: End::Client, .. } = &self.order else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        while slot.undone() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if slot.undone() == 0 {
            return Ok(());
        }
        slot.release();
        Err(CudaError::Handle { what: "number", reason: "the other process did not write it".to_owned() })
    }

    fn close(self) -> Result<Value, CudaError> {
        let _ = self.settle();
        self.stream.synchronize()?;
        if let Block::Others(mapping) = self.block {
            mapping.close()?;
        }
        Ok(json!({}))
    }
}

fn vector(dtype: DType, hex: &str) -> Result<TensorBuf, String> {
    let bytes = bytes_of(hex)?;
    let n_elements = (bytes.len() / dtype.size_bytes()) as i64;
    let desc = TensorDesc::new(dtype, [n_elements]).map_err(|error| error.to_string())?;
    TensorBuf::new(desc, bytes).map_err(|error| error.to_string())
}

fn told_pair(compared: Compared, range: Option<Range>) -> Value {
    json!({"verdict": compared.verdict, "signatures": compared.signatures, "range": range})
}

/// What the device finds, of all pairs at once. Errors: CUDA's, and that they are not comparable.
fn on_device(
    device: &Arc<Device>,
    meters: &mut Meters,
    pairs: [&Pair<'_, &TensorBuf>; 2],
) -> Result<[Value; 2], String> {
    let stream = Stream::new(device).map_err(text)?;
    let mut memory = BTreeMap::new();
    for tensor in pairs.iter().flat_map(|pair| pair.tensors()) {
        if let Entry::Vacant(new) = memory.entry(std::ptr::from_ref::<TensorBuf>(tensor)) {
            new.insert(put(device, &stream, tensor).map_err(text)?);
        }
    }
    let span = |tensor: &TensorBuf| memory[&std::ptr::from_ref(tensor)].span(0, tensor.desc().len_bytes() as u64);
    let asked = pairs.map(|pair| {
        let desc = pair.reference.desc();
        let tolerance = pair.comparable([desc, pair.candidate.desc()])?;
        let exact = pair.exact.map(|exact| {
            let terms = exact.explained.terms().map(|terms| span(terms)).transpose()?;
            let explained = exact.explained.map(|_| terms.expect("of those that are by terms"));
            Ok((span(exact.value)?, explained))
        });
        Ok::<_, String>(DevicePair {
            desc,
            reference: span(pair.reference).map_err(text)?,
            candidate: span(pair.candidate).map_err(text)?,
            tolerance,
            terms: pair.terms.map(&span).transpose().map_err(text)?,
            exact: exact.transpose().map_err(text)?,
            signatures: pair.signatures,
        })
    });
    let [one, other] = asked;
    let asked = [one?, other?];
    let meter = match meters.entry(device.ordinal()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(DeviceMeter::new(device).map_err(text)?),
    };
    let found: [Measured; 2] =
        (meter.measure(&stream, &asked).map_err(text)?).try_into().map_err(|_| "two were asked for".to_owned())?;
    let ranges = meter.ranges(&stream, &asked.map(|pair| (pair.desc, pair.reference))).map_err(text)?;
    let mut told =
        pairs.iter().zip(&asked).zip(found).zip(ranges).map(|(((pair, asked), found), range)| {
            told_pair(pair.of_measured(asked.desc, &asked.tolerance, found), range)
        });
    Ok(std::array::from_fn(|_| told.next().expect("two were asked for")))
}

fn put(device: &Arc<Device>, stream: &Stream, tensor: &TensorBuf) -> Result<Memory, CudaError> {
    let bytes = tensor.view().bytes();
    let memory = Memory::new(device, bytes.len().max(1) as u64)?;
    let mut host = Pinned::new(device, bytes.len())?;
    host.bytes_mut().copy_from_slice(bytes);
    stream.write(memory.span(0, bytes.len() as u64)?, host)?;
    Ok(memory)
}

fn pattern(seed: u64, index: usize) -> u8 {
    ((31 * index as u64).wrapping_add(seed) % 251) as u8
}

fn hex(handle: IpcHandle) -> String {
    handle.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
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
