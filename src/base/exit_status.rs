//! How a process ended, and what is known of why.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::Signal;

use super::cgroup;

/// Who ended a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The code that it ran: ONNX Runtime, a custom operator.
    Crash,
    /// Another process, or the kernel.
    Other,
    /// Itself, or nobody knows.
    Itself,
}

const SIGNALS: [(Signal, &str, By); 11] = [
    (Signal::SEGV, "SIGSEGV", By::Crash),
    (Signal::BUS, "SIGBUS", By::Crash),
    (Signal::ILL, "SIGILL", By::Crash),
    (Signal::FPE, "SIGFPE", By::Crash),
    (Signal::ABORT, "SIGABRT", By::Crash),
    (Signal::TRAP, "SIGTRAP", By::Crash),
    (Signal::SYS, "SIGSYS", By::Crash),
    (Signal::KILL, "SIGKILL", By::Other),
    (Signal::TERM, "SIGTERM", By::Other),
    (Signal::INT, "SIGINT", By::Other),
    (Signal::HUP, "SIGHUP", By::Other),
];

/// How a process ended: "crashed (signal 11, SIGSEGV)", "killed from outside (signal 9, SIGKILL)", "exited with code 2".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// None: the system did not tell.
    status: Option<ExitStatus>,
    /// Processes that the kernel killed for want of memory while it lived; None where that is not told.
    oom_kills: Option<u64>,
}

impl Ended {
    /// From its status; `before`: as it was when the process started.
    pub fn of(status: std::io::Result<ExitStatus>, before: OomKills) -> Self {
        let OomKills(now) = OomKills::now();
        let oom_kills = now.zip(before.0).map(|(now, before)| now.saturating_sub(before));
        Self { status: status.ok(), oom_kills }
    }

    /// Who ended it.
    pub fn by(&self) -> By {
        self.signal().map_or(By::Itself, |(_, known)| known.map_or(By::Other, |(_, by)| by))
    }

    /// As displayed, with what crashed.
    pub fn cause(&self) -> String {
        match self.by() {
            By::Crash => format!("ONNX Runtime or a custom operator {self}"),
            By::Other | By::Itself => self.to_string(),
        }
    }

    fn signal(&self) -> Option<(i32, Option<(&'static str, By)>)> {
        let number = self.status?.signal()?;
        let known = SIGNALS.iter().find(|(signal, ..)| signal.as_raw() == number);
        Some((number, known.map(|&(_, name, by)| (name, by))))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((number, known)) = self.signal() else {
            return match self.status.and_then(|status| status.code()) {
                Some(code) => write!(f, "exited with code {code}"),
                None => f.write_str("ended, the system does not tell how"),
            };
        };
        match known {
            Some((name, By::Crash)) => write!(f, "crashed (signal {number}, {name})"),
            Some((name @ "SIGKILL", _)) => {
                write!(f, "killed from outside (signal {number}, {name})")?;
                match self.oom_kills {
                    Some(0) => Ok(()),
                    Some(n) => {
                        write!(f, ", by the kernel for want of memory as it seems: it killed {n} since this one began")
                    }
                    None => f.write_str(", often by the kernel for want of memory, which `dmesg` tells"),
                }
            }
            Some((name, _)) => write!(f, "ended by somebody (signal {number}, {name})"),
            None => write!(f, "ended by signal {number}"),
        }
    }
}

/// Processes that the kernel has killed for want of memory so far; None where that is not told.
#[derive(Clone, Copy, Debug, Default)]
pub struct OomKills(Option<u64>);

impl OomKills {
    /// Of the memory cgroup that this process is in, and those in it; else of one above it, or of the machine. Source: the
    /// kernel's cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control).
    pub fn now() -> Self {
        let of_machine = std::iter::once_with(|| std::fs::read_to_string("/proc/vmstat").unwrap_or_default());
        let texts = cgroup::texts("memory", ["memory.events", "memory.oom_control"]).chain(of_machine);
        Self(texts.into_iter().find_map(|text| count(&text)))
    }
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(raw: i32, oom_kills: Option<u64>) -> Ended {
        Ended { status: Some(ExitStatus::from_raw(raw)), oom_kills }
    }

    #[test]
    fn a_crash_is_told_from_a_kill_and_a_kill_from_a_request() {
        for (raw, oom_kills, by, text) in [
            (11, None, By::Crash, "crashed (signal 11, SIGSEGV)"),
            (6, Some(1), By::Crash, "crashed (signal 6, SIGABRT)"),
            (9, Some(0), By::Other, "killed from outside (signal 9, SIGKILL)"),
            (
                9,
                None,
                By::Other,
                "killed from outside (signal 9, SIGKILL), often by the kernel for want of memory, which `dmesg` tells",
            ),
            (15, Some(0), By::Other, "ended by somebody (signal 15, SIGTERM)"),
            (24, Some(0), By::Other, "ended by signal 24"),
            (2 << 8, Some(0), By::Itself, "exited with code 2"),
        ] {
            let ended = ended(raw, oom_kills);
            assert_eq!((ended.by(), ended.to_string().as_str()), (by, text));
        }
        assert!(ended(9, Some(2)).to_string().contains("for want of memory as it seems: it killed 2"));
        assert_eq!(ended(11, None).cause(), "ONNX Runtime or a custom operator crashed (signal 11, SIGSEGV)");
        assert_eq!(ended(9, Some(0)).cause(), "killed from outside (signal 9, SIGKILL)");
    }

    #[test]
    fn kills_for_want_of_memory_are_counted_in_files_of_each_kind() {
        assert_eq!(count("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(count("nr_free_pages 12\n"), None);
    }
}
