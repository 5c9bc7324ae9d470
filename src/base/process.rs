//! Processes as the system shows them.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::UNIX_EPOCH;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use rustix::thread::CpuSet;
use rustix::time::Timespec;

use super::cgroup;
use super::identity::Identity;

/// A process, by which its end is known; its id may be another's by then.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process that has this id now. Errors: there is none, or the system knows no such descriptors.
    pub fn of(pid: u32) -> std::io::Result<Self> {
        let none = || std::io::Error::from(Errno::SRCH);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(none)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// Blocks until it has ended.
    pub fn wait(&self) {
        while !self.poll(None) {}
    }

    fn poll(&self, timeout: Option<&Timespec>) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut polled, timeout).is_ok_and(|n| n > 0)
    }
}

/// Inode of this process's namespace of pids: those of another one are other processes' here. 0 where /proc does not tell.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |facts| facts.ino())
}

/// Bytes of a set of CPUs: a bit each of as many as the system's own sets hold.
pub const CPU_BYTES: usize = CpuSet::MAX_CPU / 8;

/// This process's umask; None where /proc does not tell. Asking the system would change it for a moment.
pub fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let bits = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(bits.trim(), 8).ok()
}

/// CPUs that this process may run on, a bit each, the lowest of the first byte first. Empty where the system does not tell.
pub fn cpus() -> Vec<u8> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let mut bits = vec![0; CPU_BYTES];
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).for_each(|cpu| bits[cpu / 8] |= 1 << (cpu % 8));
    bits
}

/// Has all threads that this process has, and those that they start, run on these CPUs alone, given as by [`cpus`]; on all
/// where none is known. Errors: the system's, as where it may run on none of them; some threads may have changed then.
pub fn run_on(cpus: &[u8]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    let is_on = |cpu: usize| cpus.get(cpu / 8).is_some_and(|byte| byte & (1 << (cpu % 8)) != 0);
    let any = cpus.iter().any(|&byte| byte != 0);
    (0..CpuSet::MAX_CPU).filter(|&cpu| !any || is_on(cpu)).for_each(|cpu| set.set(cpu));
    each_thread(|thread| rustix::thread::sched_setaffinity(Some(thread), &set))
}

/// Gives all threads that this process has this niceness. Errors: the system's, as where it is lower than that of now and
/// the process has no right to that.
pub fn set_niceness(niceness: i32) -> std::io::Result<()> {
    each_thread(|thread| rustix::process::setpriority_process(Some(thread), niceness))
}

fn each_thread(change: impl Fn(Pid) -> Result<(), Errno>) -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let Some(thread) = name.to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw) else { continue };
        match change(thread) {
            Err(Errno::SRCH) => {} // it has ended meanwhile
            changed => changed?,
        }
    }
    Ok(())
}

/// Takes off what this process has of whoever started it and that the system lets it take off: CPUs, niceness, and
/// soft limits of resources. Nothing else that a daemon serves has asked for them.
pub fn leave_starter() {
    if let Err(error) = run_on(&[]) {
        tracing::warn!(%error, "the starter's CPUs stay");
    }
    for resource in [Resource::As, Resource::Cpu, Resource::Data, Resource::Fsize, Resource::Memlock, Resource::Nproc] {
        raise_limit(resource);
    }
    let niceness = rustix::process::getpriority_process(None).unwrap_or_default();
    if niceness > 0 && set_niceness(0).is_err() {
        tracing::warn!(
            niceness,
            "whoever started the daemon was nice, and it cannot be less so: nor can its executors"
        );
    }
}

/// What this process makes from now on is its user's alone, unless it says otherwise.
pub fn be_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Lets this process be taken before the daemon where the system wants memory.
pub fn offer_memory() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let given: i32 = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default();
    if let Err(error) = std::fs::write(PATH, (given + 200).min(1000).to_string()) {
        tracing::debug!(%error, "oom_score_adj stays");
    }
}

/// Resident bytes of a process, 0 when there is no such one.
pub fn resident_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Name of the program that a process runs, of 15 bytes at most; empty when there is no such process.
pub fn name_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    // Any bytes that the process likes.
    let printable = |letter: char| if letter.is_control() { '?' } else { letter };
    String::from_utf8_lossy(&name).trim().chars().map(printable).collect()
}

/// This process's program: equal for the same file alone, whatever its version says.
pub fn own_program() -> String {
    let facts = std::fs::metadata("/proc/self/exe").ok();
    let written =
        facts.as_ref().and_then(|facts| facts.modified().ok()).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let (len_bytes, nanoseconds) = (facts.map_or(0, |facts| facts.len()), written.map_or(0, |at| at.as_nanos()));
    format!("{} {len_bytes} {nanoseconds}", env!("CARGO_PKG_VERSION"))
}

/// Bytes of memory that the machine has.
pub fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// A command that runs this very program, also when an upgrade put another file in its place since: a child is then of
/// the same build as its parent.
pub fn own_command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("rust-ort");
    command
}

/// Variable and value with which ONNX Runtime makes no telemetry system (1.31: a thread, a database, a probe of the
/// machine), which it makes before it can be told by its API that none is wanted.
pub const NO_TELEMETRY: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// The file that this program was started from.
#[derive(Debug)]
pub struct Program {
    /// None when it was replaced even before.
    started: Option<(PathBuf, Identity)>,
}

impl Program {
    /// As it is now.
    pub fn own() -> Self {
        let path = std::env::current_exe().ok();
        Self { started: path.and_then(|path| Identity::at(&path).ok().map(|identity| (path, identity))) }
    }

    /// Whether another file is in its place by now, or none.
    pub fn is_replaced(&self) -> bool {
        self.started.as_ref().is_some_and(|(path, started)| Identity::at(path).ok().as_ref() != Some(started))
    }
}

/// Lets this process and those that it starts have as many descriptors as the hard limit says: a client's segments take
/// one each here and in its executor. Nothing that we start is a user's program, which might `select` on small numbers.
pub fn raise_descriptor_limit() {
    raise_limit(Resource::Nofile);
}

fn raise_limit(resource: Resource) {
    let Rlimit { current, maximum } = getrlimit(resource);
    if current != maximum
        && let Err(error) = setrlimit(resource, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(?resource, %error, "the limit stays");
    }
}

/// How many descriptors this process may have, in words.
pub fn descriptor_limit() -> String {
    getrlimit(Resource::Nofile).current.map_or_else(|| "any number".to_owned(), |limit| limit.to_string())
}

/// Why the system gives this process no thread or process, in words: what bounds their number, and what to do.
pub fn no_thread(error: &std::io::Error) -> String {
    let user = match getrlimit(Resource::Nproc).current {
        Some(limit) => format!("RLIMIT_NPROC is {limit} (ulimit -u)"),
        None => "RLIMIT_NPROC bounds nothing".to_owned(),
    };
    let group = match cgroup::pids_max() {
        Some(limit) => format!("pids.max of its cgroup is {limit}"),
        None => "no pids.max of a cgroup is known".to_owned(),
    };
    format!("no thread: {error}; {user}, {group}: raise the one that is reached, or end other processes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_moves_to_the_cpus_that_it_is_given() {
        let before = cpus();
        let n_on: u32 = before.iter().map(|byte| byte.count_ones()).sum();
        assert!(n_on > 0 && before.len() == CPU_BYTES);
        run_on(&before).unwrap();
        assert_eq!(cpus(), before);
        assert!(run_on(&[0; CPU_BYTES]).is_ok(), "none known: all");
        assert!(cpus().iter().zip(&before).all(|(now, before)| now & before == *before));
        run_on(&before).unwrap();
        assert_ne!(pid_namespace(), 0);
        assert!(umask().is_some_and(|umask| umask <= 0o777));
    }
}
