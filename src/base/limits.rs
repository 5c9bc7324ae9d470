//! Every limit, in one table. A peer that reaches one gets an error with its number.

use std::time::Duration;

use super::process::machine_bytes;

/// Clients at a time, the command line's included.
pub const CONNECTIONS: usize = 256;
/// Connections beside those at a time: silent ones, and those that only ask or stop, which make room for newer ones.
pub const ASKING: usize = 8;
/// Names and values of a client's variables for its executor.
pub const ENVIRONMENT_BYTES: usize = 2 << 20;
/// A log that is longer is cut.
pub const LOG_BYTES: u64 = 8 << 20;
/// Warnings of one place in the sources that a process logs within [`WARNINGS_WITHIN`]; those beyond are counted.
pub const WARNINGS: u32 = 20;
/// See [`WARNINGS`].
pub const WARNINGS_WITHIN: Duration = Duration::from_secs(60);
/// The end of a log that is kept when it is cut.
pub const OLD_LOG_BYTES: u64 = 1 << 20;
/// Data sets of an earlier daemon that a client asks for when it opens a dump again.
pub const ANSWERED_STEPS: usize = 4096;
/// Time from connecting to a complete `Hello`.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for a client to take a frame whole, after which it is disconnected.
pub const SEND: Duration = Duration::from_secs(30);
/// Time for all clients together to be told that the daemon ends; after it each that has room is told.
pub const LAST_NOTICE: Duration = Duration::from_millis(200);
/// Largest body before `Hello` is answered.
pub const HELLO_BYTES: u32 = 64 << 10;
/// Largest body after it.
pub const BODY_BYTES: u32 = 1 << 30;
/// A body is read in steps of this size, so that memory follows the bytes that came, not those announced.
pub const BODY_STEP_BYTES: usize = 1 << 20;
/// Time without a byte of a body that was announced, after which its connection ends: what came of it counts.
pub const BODY_STALL: Duration = Duration::from_secs(30);
/// Requests of one client that wait for the one that is served.
pub const WAITING_REQUESTS: usize = 64;
/// Segments of one client; the daemon has a descriptor for each.
pub const SEGMENTS: u64 = 4096;
/// Segments of all clients.
pub const ALL_SEGMENTS: u64 = 32_768;
/// Segments that a client may have whatever the others have; what is left of all is common.
pub const SHARE_OF_SEGMENTS: u64 = ALL_SEGMENTS / 2 / CONNECTIONS as u64;
/// Bytes of one segment.
pub const SEGMENT_BYTES: u64 = 1 << 40;
/// Bytes of one client's segments: addresses, of which a process has 2^47.
pub const CLIENT_SEGMENT_BYTES: u64 = 1 << 43;
/// Bytes of all clients' segments.
pub const ALL_SEGMENT_BYTES: u64 = 1 << 46;
/// Bytes of segments that a client may have whatever the others have; what is left of all is common. By length, not by
/// what is in memory: the daemon maps a segment whole, and a sparse one takes as many addresses as a full one.
pub const SHARE_OF_SEGMENT_BYTES: u64 = ALL_SEGMENT_BYTES / 2 / CONNECTIONS as u64;
/// Longest name of a graph, run, value or file in a message, in bytes.
pub const NAME_BYTES: usize = 1024;
/// Longest folder name (graph, run) in bytes: file systems take 255, and suffixes are added.
pub const FOLDER_NAME_BYTES: usize = 200;
/// Patterns of a rule, each no longer than a name: they are looked for in every node.
pub const PATTERNS: usize = 65_536;
/// Lanes of one client.
pub const LANES: u32 = 64;
/// Graphs of one client.
pub const GRAPHS: usize = 16_384;
/// Parts prepared in one lease.
pub const PARTS: usize = 65_536;
/// Bytes that the daemon keeps for one client: models, texts, node tables, plans and requests on their way.
pub const KEPT_BYTES: u64 = 8 << 30;
/// The same of all clients, where the operator sets nothing else; a quarter of the machine's memory when that is less.
pub const ALL_KEPT_BYTES: u64 = 32 << 30;
/// A request up to this size is taken whatever is kept: it may be the one that gives back.
pub const SMALL_BODY_BYTES: u32 = HELLO_BYTES;
/// What a request may decode to whatever is kept, beside its own bytes: as much as the handles of such a small one take.
pub const SMALL_DECODED_BYTES: usize = 2 << 20;
/// Comparisons of nodes that one client has open at a time.
pub const NODE_TABLES: usize = 64;
/// Nodes in all open comparisons of one client.
pub const NODE_ROWS: usize = 65_536;
/// Models of single nodes that a dumped comparison keeps: those of the first local mismatches.
pub const NODE_REPRODUCTIONS: usize = 4;
/// Bytes of those that the daemon holds for one client until they are written.
pub const NODE_REPRODUCTION_BYTES: usize = 1 << 30;
/// Bytes of compiled code that are kept; what was used longest ago goes.
pub const COMPILED_CODE_BYTES: u64 = 256 << 20;
/// Bytes that a model's or a tensor's file may take decoded, beside so many times its length: structs and texts, without
/// the tensors, which share its bytes. A graph of 100,000 nodes takes some hundred MB.
pub const DECODED_FILE_BYTES: usize = 1 << 30;
/// See [`DECODED_FILE_BYTES`]: numbers of a tensor that are not in its `raw_data` are copied, into a vector that grows.
pub const DECODED_FILE_FACTOR: usize = 16;
/// Executors at a time.
pub const EXECUTORS: usize = 64;
/// Executors without a client that are kept warm.
pub const IDLE_EXECUTORS: usize = 4;
/// Resident bytes of idle executors together; above it the one that idles longest ends. A quarter of the machine's
/// memory when that is less.
pub const IDLE_BYTES: u64 = 16 << 30;
/// Time for which an executor without a client is kept that holds memory of a device: a context alone takes hundreds of
/// megabytes of it, and what sessions and their runs took is kept, too. A script that is run again at once finds it warm;
/// one that is done gives the memory back to whoever else trains there. RUST_ORT_IDLE_DEVICE_TIMEOUT_S sets another.
pub const IDLE_ON_DEVICE: Duration = Duration::from_secs(60);
/// Time for all executors together to look what they hold of devices' memory, when status is asked; of those that do not
/// answer, what they said last is shown.
pub const EXECUTOR_COUNT: Duration = Duration::from_secs(1);
/// Threads an executor may be asked for.
pub const THREADS: u32 = 1024;
/// Time for an executor to load its library.
pub const EXECUTOR_START: Duration = Duration::from_secs(120);
/// Time for an executor to end a departed client's calls, after which it is killed.
pub const EXECUTOR_RESET: Duration = Duration::from_secs(5);
/// Time for an executor to answer what takes it no time (a segment, a lane, a release), after which it is killed: the
/// thread that reads the client's requests waits for it.
pub const EXECUTOR_ANSWER: Duration = Duration::from_secs(30);
/// Time for what a client cancelled to end, after which its executor is killed: a kernel hangs, and whatever the client asks
/// next may wait for it. What ONNX Runtime does to make a session is one step, which may take longer.
pub const EXECUTOR_CANCEL: Duration = Duration::from_secs(10);
/// Time for a lost executor's post-mortem, which its client waits for.
pub const POST_MORTEM: Duration = Duration::from_secs(60);
/// Deaths in a row after which a part is refused.
pub const DEATHS: u32 = 3;
/// Logs of daemons and executors that are gone, newest first, which a starting daemon leaves in the state folder.
pub const LOGS: usize = 20;
/// Quarantine folders, newest first, which a starting daemon leaves in the state folder.
pub const QUARANTINE_FOLDERS: usize = 20;
/// Time for which a quarantine folder stays however many are newer: its client has yet to be told of it, and to look.
pub const QUARANTINE_AGE: Duration = Duration::from_secs(60);
/// Shared libraries that are remembered by content; above it those go that were loaded longest ago.
pub const KNOWN_LIBRARIES: usize = 256;
/// Bytes of exported plans in the state folder; above it those go that were used longest ago.
pub const PLAN_BYTES: u64 = 1 << 30;
/// Files of exported plans in the state folder.
pub const PLAN_FILES: usize = 4096;
/// Time for open dumps to be written when the daemon ends; what is not by then is told.
pub const STOP_DUMPS: Duration = Duration::from_secs(30);
/// Bytes of inputs that a post-mortem writes down; of a call with more, the model alone.
pub const REPRODUCTION_BYTES: u64 = 16 << 30;
/// Bytes that a post-mortem leaves free on the disk.
pub const DISK_LEFT_BYTES: u64 = 1 << 30;
/// Steps that status shows.
pub const LAST_STEPS: usize = 32;

/// Bytes of a model's or a tensor's file that is read: what the machine has.
pub fn file_bytes() -> u64 {
    machine_bytes()
}

/// Bytes of all tensors of a file of feeds, and of all feeds that are made up for a model: they are held for each model, and
/// once more while it runs.
pub fn feeds_bytes() -> u64 {
    machine_bytes() / 4
}

/// Bytes of memory that one JSON file of a dump takes: a quarter of the machine's.
pub fn json_memory() -> u64 {
    machine_bytes() / 4
}

/// What may be kept for all clients where nothing else is set.
pub fn all_kept_bytes() -> u64 {
    ALL_KEPT_BYTES.min(machine_bytes() / 4)
}
