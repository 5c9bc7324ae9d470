//! Processes as the system shows them.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::UNIX_EPOCH;

/// How a process ended: "killed by signal 9", "exited with code 2".
pub fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Resident bytes of a process, 0 when there is no such one.
pub fn resident_bytes(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
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
