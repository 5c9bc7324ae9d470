//! Who holds a device's memory, in an executor's words: itself, its client, others.
//!
//! An executor alone asks: NVIDIA's management library is not loaded into a user's program, nor into the daemon.

use std::fmt;
use std::sync::Mutex;

use super::nvml::{self, Holder, NvmlError};
use crate::base::bytes::Bytes;
use crate::base::ids::DeviceUuid;
use crate::base::process::name_of;
use crate::base::sync::lock;

/// Others that are named one by one, those with the most.
const NAMED: usize = 4;

/// Some, of a process that is an executor.
static EXECUTOR: Mutex<Option<Serves>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Serves {
    client: Option<u32>,
}

/// This process is an executor, and whose: from now on errors for want of memory tell who holds it. `client`: a pid.
pub fn serve(client: Option<u32>) {
    *lock(&EXECUTOR) = Some(Serves { client });
}

/// Who holds the memory of a device; as text it goes behind what is free of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// This process is no executor.
    NotAsked,
    /// Nobody tells.
    Unknown(NvmlError),
    /// This executor, its client, then the others, those with the most first.
    By(Vec<By>),
}

/// A process, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// What it is to the executor.
    pub who: Who,
    /// Its process.
    pub pid: u32,
    /// Its program's name; empty where it is not to be seen, as in another container.
    pub name: String,
    /// None where the driver does not tell.
    pub bytes: Option<u64>,
}

/// What a process is to the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Itself.
    Executor,
    /// Its client.
    Client,
    /// None of them.
    Other,
}

impl Held {
    /// Of the device's memory, now.
    pub fn now(device: DeviceUuid) -> Self {
        let Some(serves) = *lock(&EXECUTOR) else { return Self::NotAsked };
        match nvml::holders(device) {
            Ok(holders) => Self::By(by(holders, std::process::id(), serves.client)),
            Err(error) => Self::Unknown(error),
        }
    }
}

fn by(holders: Vec<Holder>, own: u32, client: Option<u32>) -> Vec<By> {
    let who = |pid| match pid {
        pid if pid == own => Who::Executor,
        pid if Some(pid) == client => Who::Client,
        _ => Who::Other,
    };
    let of = |Holder { pid, bytes }| By { who: who(pid), pid, name: name_of(pid), bytes };
    let mut found: Vec<By> = holders.into_iter().map(of).collect();
    found.sort_by_key(|by| (by.who, std::cmp::Reverse(by.bytes), by.pid));
    found
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self {
            Self::NotAsked => return f.write_str("other processes and torch's cache count, too"),
            Self::Unknown(error) => return write!(f, "who holds the rest is not known ({error})"),
            Self::By(by) if by.is_empty() => {
                return f.write_str("who holds the rest is not known (no process is told)");
            }
            Self::By(by) => by,
        };
        f.write_str("held: ")?;
        let n_named = by.iter().filter(|by| by.who != Who::Other).count() + NAMED;
        let (named, rest) = by.split_at(n_named.min(by.len()));
        for (at, by) in named.iter().enumerate() {
            write!(f, "{}{by}", if at == 0 { "" } else { ", " })?;
        }
        if !rest.is_empty() {
            let bytes = rest.iter().map(|by| by.bytes).sum::<Option<u64>>();
            write!(f, ", {} others {}", rest.len(), amount(bytes))?;
        }
        Ok(())
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, pid, name, bytes } = self;
        let space = if name.is_empty() { "" } else { " " };
        match who {
            Who::Executor => write!(f, "this executor (pid {pid})")?,
            Who::Client => write!(f, "the client{space}{name} (pid {pid})")?,
            Who::Other if name.is_empty() => write!(f, "pid {pid}")?,
            Who::Other => write!(f, "{name} (pid {pid})")?,
        }
        write!(f, " {}", amount(*bytes))
    }
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown amount".to_owned(), |bytes| Bytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32, gib: Option<u64>) -> Holder {
        Holder { pid, bytes: gib.map(|gib| gib << 30) }
    }

    #[test]
    fn the_executor_comes_first_then_its_client_then_who_holds_most() {
        // No such processes: pids are below 2^22.
        let pid = |n: u32| (1 << 30) + n;
        let holders = (0..8_u32).map(|n| holder(pid(n), Some(n.into()))).chain([holder(pid(9), None)]);
        let held = Held::By(by(holders.collect(), pid(2), Some(pid(1))));
        let expected = format!(
            "held: this executor (pid {}) 2.0 GiB, the client (pid {}) 1.0 GiB, pid {} 7.0 GiB, pid {} 6.0 GiB, pid {} 5.0 \
             GiB, pid {} 4.0 GiB, 3 others an unknown amount",
            pid(2),
            pid(1),
            pid(7),
            pid(6),
            pid(5),
            pid(4)
        );
        assert_eq!(held.to_string(), expected);
    }

    #[test]
    fn a_process_that_is_to_be_seen_is_named() {
        let own = std::process::id();
        let name = name_of(own);
        assert!(!name.is_empty());
        let text = |executor, client| Held::By(by(vec![holder(own, Some(3))], executor, client)).to_string();
        assert_eq!(text(0, None), format!("held: {name} (pid {own}) 3.0 GiB"));
        assert_eq!(text(0, Some(own)), format!("held: the client {name} (pid {own}) 3.0 GiB"));
        assert_eq!(text(own, Some(own)), format!("held: this executor (pid {own}) 3.0 GiB"));
    }

    #[test]
    fn what_nobody_tells_is_said_and_not_counted_as_nothing() {
        let error = NvmlError::Library { reason: "libnvidia-ml.so.1: no such file".to_owned() };
        let unknown = "who holds the rest is not known (NVIDIA's management library: libnvidia-ml.so.1: no such file)";
        assert_eq!(Held::Unknown(error).to_string(), unknown);
        assert_eq!(Held::By(Vec::new()).to_string(), "who holds the rest is not known (no process is told)");
    }
}
