//! Runs a target over its corpus, then over mutations of it, and keeps what breaks an invariant.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tempfile::TempDir;

use crate::counting::most;
use crate::mutate::Draws;
use crate::target::{Reached, Read, Target};

/// What `cargo test` alone runs: a slice of `make fuzz`.
const SLICE: Duration = Duration::from_secs(5);
/// Processor time of one input.
const MOST_TIME: Duration = Duration::from_secs(1);
/// An input that is not through by then hangs, however busy the machine is.
const HANG: Duration = Duration::from_secs(60);
/// Inputs that are kept to be mutated.
const POOL: usize = 4096;
/// Longer ones are read, not mutated further: they would grow and grow.
const LONGEST: usize = 16 << 10;
/// Findings after which a run ends.
const ENOUGH: usize = 16;

/// What the environment says; `make fuzz` sets it.
struct Settings {
    seconds: Duration,
    iterations: u64,
    seed: u64,
    /// The one input that is run.
    input: Option<PathBuf>,
    folder: PathBuf,
}

impl Settings {
    fn from_environment(target: &Target) -> Self {
        let text = |name: &str| std::env::var(format!("RUST_ORT_FUZZ_{name}")).ok().filter(|text| !text.is_empty());
        let number = |name: &str| text(name).map(|text| text.parse::<u64>().expect("a number"));
        let folder = text("FOLDER").map_or_else(|| root().join("build/fuzz"), PathBuf::from).join(target.name);
        let iterations = number("ITERATIONS");
        let slice = if iterations.is_some() { Duration::MAX } else { SLICE };
        Self {
            seconds: number("SECONDS").map_or(slice, Duration::from_secs),
            iterations: iterations.unwrap_or(u64::MAX),
            seed: number("SEED").unwrap_or(1),
            input: text("INPUT").map(PathBuf::from),
            folder,
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where a target's inputs are kept.
pub fn corpus_folder(target: &Target) -> PathBuf {
    root().join("tests/fuzz/corpus").join(target.name)
}

/// A folder for what a target writes, in memory where there is such a place: many small files for each input.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The inputs that are kept, by file name.
pub fn corpus(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(corpus_folder(target)).into_iter().flatten();
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// One input that broke an invariant.
#[derive(Debug)]
struct Finding {
    path: PathBuf,
    why: String,
}

/// A target while it runs.
struct Run<'t> {
    target: &'t Target,
    settings: Settings,
    read: Read,
    /// The input that is being read, for a process that dies of it: its length, then its bytes.
    current: File,
    n_read: Arc<AtomicU64>,
    n_accepted: u64,
    slowest: Duration,
    most_bytes: usize,
    findings: Vec<Finding>,
}

/// Runs a target as the environment says. Panics when something was found, or when nothing was accepted or nothing refused.
pub fn run(target: &Target) {
    let settings = Settings::from_environment(target);
    fs::create_dir_all(&settings.folder).unwrap();
    let current = File::create(settings.folder.join("current")).unwrap();
    let read = (target.open)();
    let mut run = Run {
        target,
        settings,
        read,
        current,
        n_read: Arc::default(),
        n_accepted: 0,
        slowest: Duration::ZERO,
        most_bytes: 0,
        findings: Vec::new(),
    };
    watch(&run);
    if let Some(input) = run.settings.input.clone() {
        let reached = run.one(&fs::read(&input).unwrap());
        println!("{}: {reached:?}", input.display());
        assert!(run.findings.is_empty(), "{}", run.told());
        return;
    }
    let begun = Instant::now();
    run.all(begun);
    let seconds = begun.elapsed().as_secs_f64();
    let report = json!({
        "target": run.target.name,
        "inputs": run.n_read.load(Ordering::Relaxed),
        "accepted": run.n_accepted,
        "seconds": (seconds * 10.).round() / 10.,
        "seed": run.settings.seed,
        "slowest_ms": run.slowest.as_millis() as u64,
        "most_kib": run.most_bytes / 1024,
        "findings": run.findings.iter().map(|finding| finding.why.clone()).collect::<Vec<_>>(),
    });
    println!("{report}");
    fs::write(run.settings.folder.with_extension("json"), report.to_string()).unwrap();
    fs::remove_file(run.settings.folder.join("current")).unwrap();
    assert!(run.findings.is_empty(), "{}", run.told());
}

/// Ends the process when an input hangs: `current` has it.
fn watch(run: &Run<'_>) {
    let (n_read, folder) = (Arc::clone(&run.n_read), run.settings.folder.clone());
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        // The run holds the other count.
        while Arc::strong_count(&n_read) > 1 {
            std::thread::sleep(Duration::from_millis(100));
            let now = n_read.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > HANG {
                eprintln!("an input hangs: {}", folder.join("current").display());
                std::process::abort();
            }
        }
    });
}

impl Run<'_> {
    fn all(&mut self, begun: Instant) {
        let corpus = corpus(self.target);
        assert!(!corpus.is_empty(), "no corpus: RUST_ORT_REGENERATE=1 cargo test --test fuzz seeds");
        let mut seen = HashSet::new();
        for (name, bytes) in &corpus {
            let reached = self.one(bytes);
            let is_seed = !name.starts_with("found_");
            assert!(!is_seed || reached.is_none_or(|reached| reached.accepted), "{name} is a seed: {reached:?}");
            seen.extend(reached);
        }
        // Mutations of what is refused are, mostly.
        let [mut pool, mut refused] = [corpus.into_values().collect::<Vec<_>>(), Vec::new()];
        let mut draws = Draws::new(self.settings.seed);
        for _ in 0..self.settings.iterations {
            if begun.elapsed() >= self.settings.seconds || self.findings.len() >= ENOUGH {
                break;
            }
            let from = if draws.below(8) == 0 && !refused.is_empty() { &refused } else { &pool };
            let (one, other) = (draws.below(from.len()), draws.below(pool.len()));
            let input = (self.target.mutate)(&mut draws, &from[one], &pool[other]);
            if let Some(reached) = self.one(&input)
                && input.len() <= LONGEST
                && seen.insert(reached)
            {
                let list = if reached.accepted { &mut pool } else { &mut refused };
                if list.len() < POOL {
                    list.push(input);
                }
            }
        }
        let n_read = self.n_read.load(Ordering::Relaxed);
        assert!(self.n_accepted > 0 && self.n_accepted < n_read, "{} of {n_read} accepted", self.n_accepted);
    }

    /// Reads one input. None when it broke an invariant.
    fn one(&mut self, input: &[u8]) -> Option<Reached> {
        let kept = [&(input.len() as u32).to_le_bytes(), input].concat();
        self.current.write_all_at(&kept, 0).unwrap();
        let before = processor_time();
        let mut outcome = None;
        let read = &mut self.read;
        let bytes = most(|| outcome = Some(catch_unwind(AssertUnwindSafe(|| read(input)))));
        let spent = processor_time() - before;
        self.n_read.fetch_add(1, Ordering::Relaxed);
        (self.slowest, self.most_bytes) = (self.slowest.max(spent), self.most_bytes.max(bytes));
        let limit = (self.target.most_bytes)(input.len());
        match outcome.expect("it was run") {
            Err(panic) => self.found(input, said(&*panic)),
            Ok(_) if bytes > limit => self.found(input, format!("takes {bytes} bytes: expected at most {limit}")),
            Ok(_) if spent > MOST_TIME => self.found(input, format!("takes {} ms", spent.as_millis())),
            Ok(reached) => {
                self.n_accepted += u64::from(reached.accepted);
                return Some(reached);
            }
        }
        None
    }

    /// Keeps one input of each kind of finding.
    fn found(&mut self, input: &[u8], why: String) {
        let kind = |why: &str| why.chars().filter(|c| !c.is_ascii_digit()).take(60).collect::<String>();
        if self.findings.iter().all(|finding| kind(&finding.why) != kind(&why)) {
            let path = self.settings.folder.join(&blake3::hash(input).to_hex()[..16]);
            fs::write(&path, input).unwrap();
            self.findings.push(Finding { path, why });
        }
        // What it kept may be in pieces.
        self.read = (self.target.open)();
    }

    fn told(&self) -> String {
        let line = |finding: &Finding| {
            let Finding { path, why } = finding;
            let again = format!("make fuzz ARGS=\"--target {} --input {}\"", self.target.name, path.display());
            format!("{}: {why}\n  again: {again}\n", self.target.name)
        };
        self.findings.iter().map(line).collect()
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

/// Of this thread: a busy machine makes no input slow.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
