//! What was exported of each graph, on disk for every later process: `<state>/plans/v1/<hash of program and graph>`.
//!
//! A cache: whatever is wrong with a file (torn, flipped, of another graph) removes it, and whatever the file system
//! refuses is logged and costs an export, never an error. Several daemons of one user may share the folder.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use thiserror::Error;

use crate::base::files::{TEMPORARY_PREFIX, write_whole};
use crate::base::ids::GraphId;

/// Of the files' format; names the folder, and a folder of another version is discarded.
pub const VERSION: u32 = 1;
/// Bytes before the plan: magic, version, a zero, length of the plan, blake3 of graph and plan. Little-endian.
pub const HEADER_LEN: usize = 56;
const MAGIC: [u8; 8] = *b"RORTPLAN";
/// A temporary file of this age has no writer any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// How much is kept; the plans that were used last stay.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files.
    pub files: usize,
}

/// Why a plan could not be read or kept.
#[derive(Debug, Error)]
enum PlanError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: expected a folder of uid {expected}, got one of uid {got}")]
    Owner { path: PathBuf, expected: u32, got: u32 },
    #[error("{path}: {why}")]
    Damaged { path: PathBuf, why: &'static str },
    #[error("a plan of {bytes} bytes: expected at most {limit}")]
    TooLarge { bytes: u64, limit: u64 },
}

/// The plans of a state folder. Any thread may read and write at any time.
#[derive(Debug)]
pub struct Plans {
    folder: PathBuf,
    bounds: Bounds,
    program: String,
}

impl Plans {
    /// The plans below `state_folder` that `program` may use: a plan also tells what the program's runtime refused, so
    /// one that another program made is not found. Discards those of other versions; nothing else is touched yet.
    pub fn open(state_folder: &Path, bounds: Bounds, program: String) -> Self {
        let all = state_folder.join("plans");
        let own = format!("v{VERSION}");
        for (name, path) in entries(&all) {
            let version = name.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok());
            if version && name != own {
                discard(&path);
            }
        }
        Self { folder: all.join(own), bounds, program }
    }

    /// The plan of a graph; None when there is none that is whole. Marks it as used.
    pub fn get(&self, graph: GraphId) -> Option<Bytes> {
        match self.read(graph) {
            Ok(plan) => plan,
            Err(error) => {
                tracing::warn!(%error, graph = graph.short(), "plan not read; it is exported again");
                if let PlanError::Damaged { path, .. } = &error {
                    warn_of(fs::remove_file(path), path);
                }
                None
            }
        }
    }

    /// Keeps the plan of a graph, in the place of an earlier one. Whether it is kept.
    pub fn put(&self, graph: GraphId, plan: &[u8]) -> bool {
        let kept = self.write(graph, plan);
        if let Err(error) = &kept {
            tracing::warn!(%error, graph = graph.short(), "plan not kept; later processes export again");
        }
        self.trim();
        kept.is_ok()
    }

    fn path(&self, graph: GraphId) -> PathBuf {
        let name =
            blake3::Hasher::new().update(self.program.as_bytes()).update(graph.to_string().as_bytes()).finalize();
        self.folder.join(name.to_hex().as_str())
    }

    fn read(&self, graph: GraphId) -> Result<Option<Bytes>, PlanError> {
        let path = self.path(graph);
        let failed = |error| PlanError::Io { path: path.clone(), error };
        if !self.folder.exists() {
            return Ok(None);
        }
        self.check_owner()?;
        // A pipe in its place is not waited for.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
        let mut file = match File::options().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let facts = file.metadata().map_err(failed)?;
        if !facts.is_file() || facts.len() > self.bounds.bytes {
            return Err(PlanError::Damaged { path, why: "no file, or larger than any plan" });
        }
        let mut bytes = Vec::with_capacity(facts.len() as usize);
        file.read_to_end(&mut bytes).map_err(failed)?;
        let plan = whole(graph, Bytes::from(bytes)).map_err(|why| PlanError::Damaged { path: path.clone(), why })?;
        // Without this it only looks older than it is.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(plan))
    }

    fn write(&self, graph: GraphId, plan: &[u8]) -> Result<(), PlanError> {
        let (bytes, limit) = ((HEADER_LEN + plan.len()) as u64, self.bounds.bytes);
        if bytes > limit {
            return Err(PlanError::TooLarge { bytes, limit });
        }
        let path = self.path(graph);
        let io = |path: &Path, error| PlanError::Io { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(|error| io(&self.folder, error))?;
        self.check_owner()?;
        write_whole(&path, 0o600, &[&header(graph, plan), plan]).map_err(|error| io(&path, error))
    }

    /// Nobody else may have put plans there, or read them.
    fn check_owner(&self) -> Result<(), PlanError> {
        let path = self.folder.clone();
        let io = |error| PlanError::Io { path: path.clone(), error };
        let facts = fs::symlink_metadata(&self.folder).map_err(io)?;
        let (expected, got) = (rustix::process::getuid().as_raw(), facts.uid());
        if !facts.is_dir() || got != expected {
            return Err(PlanError::Owner { path, expected, got });
        }
        if facts.mode() & 0o077 != 0 {
            fs::set_permissions(&self.folder, fs::Permissions::from_mode(0o700)).map_err(io)?;
        }
        Ok(())
    }

    /// Removes the plans that were not used for longest until the rest is within the bounds, and what killed writers
    /// left. Foreign files stay.
    fn trim(&self) {
        let mut plans = Vec::new();
        for (name, path) in entries(&self.folder) {
            let Ok(facts) = fs::symlink_metadata(&path) else { continue };
            let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if name.parse::<GraphId>().is_ok() && facts.is_file() {
                plans.push((used, facts.len(), path));
            } else if name.starts_with(TEMPORARY_PREFIX) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
                warn_of(fs::remove_file(&path), &path);
            }
        }
        plans.sort();
        let mut bytes: u64 = plans.iter().map(|(_, len_bytes, _)| len_bytes).sum();
        let mut files = plans.len();
        for (_, len_bytes, path) in &plans {
            if bytes <= self.bounds.bytes && files <= self.bounds.files {
                break;
            }
            warn_of(fs::remove_file(path), path);
            (bytes, files) = (bytes - len_bytes, files - 1);
        }
    }
}

/// Removes the plans of a folder, and the folder when nothing else is in it: `plans/v2` may be anybody's name.
fn discard(folder: &Path) {
    if !fs::symlink_metadata(folder).is_ok_and(|facts| facts.is_dir()) {
        return;
    }
    for (name, path) in entries(folder) {
        let ours = name.parse::<GraphId>().is_ok() || name.starts_with(TEMPORARY_PREFIX);
        if ours && fs::symlink_metadata(&path).is_ok_and(|facts| facts.is_file()) {
            warn_of(fs::remove_file(&path), &path);
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
        removed => warn_of(removed, folder),
    }
    tracing::info!(path = %folder.display(), "plans of another version discarded");
}

fn header(graph: GraphId, plan: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(plan.len() as u64).to_le_bytes());
    header[24..].copy_from_slice(checksum(graph, plan).as_bytes());
    header
}

fn checksum(graph: GraphId, plan: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(graph.to_string().as_bytes()).update(plan).finalize()
}

/// The plan in a file's bytes. Errors: what is wrong with them.
fn whole(graph: GraphId, mut file: Bytes) -> Result<Bytes, &'static str> {
    let found = file.get(..HEADER_LEN).ok_or("shorter than a header")?.to_vec();
    let plan = file.split_off(HEADER_LEN);
    let expected = header(graph, &plan);
    if found[..16] != expected[..16] {
        Err("no plan of this version")
    } else if found[16..24] != expected[16..24] {
        Err("cut short or written on")
    } else if found != expected {
        Err("its checksum is another graph's or another plan's")
    } else {
        Ok(plan)
    }
}

/// Names and paths in a folder that need not be there; names that are no text are foreign.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let named = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, entry.path()));
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| named(entry.ok()?)).collect()
}

fn warn_of(removed: io::Result<()>, path: &Path) {
    match removed {
        // Another daemon may have been faster.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "old plan stays");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ROOMY: Bounds = Bounds { bytes: 1 << 20, files: 100 };

    fn graph(n: u8) -> GraphId {
        GraphId::from_bytes([n; 32])
    }

    fn store(bounds: Bounds) -> (tempfile::TempDir, Plans) {
        let state = tempfile::tempdir().unwrap();
        let plans = Plans::open(state.path(), bounds, "a".to_owned());
        (state, plans)
    }

    /// Which of the graphs below 10 are in the folder; every file is one of them.
    fn kept(plans: &Plans) -> Vec<u8> {
        let found: Vec<PathBuf> = entries(&plans.folder).into_iter().map(|(_, path)| path).collect();
        let kept: Vec<u8> = (0..10).filter(|&n| found.contains(&plans.path(graph(n)))).collect();
        assert_eq!(found.len(), kept.len(), "{found:?}");
        kept
    }

    fn used(plans: &Plans, n: u8, ago_s: u64) {
        let file = File::options().write(true).open(plans.path(graph(n))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(ago_s)).unwrap();
    }

    #[test]
    fn a_plan_is_found_by_its_graph_alone_and_by_later_daemons() {
        let (state, plans) = store(ROOMY);
        assert_eq!(plans.get(graph(1)), None);
        assert!(plans.put(graph(1), b"one") && plans.put(graph(1), b"newer") && plans.put(graph(2), b""));
        let later = Plans::open(state.path(), ROOMY, "a".to_owned());
        assert_eq!(later.get(graph(1)).as_deref(), Some(&b"newer"[..]));
        assert_eq!(later.get(graph(2)).as_deref(), Some(&b""[..]));
        assert_eq!(later.get(graph(3)), None);
        // Another program's runtime may refuse other nodes.
        assert_eq!(Plans::open(state.path(), ROOMY, "b".to_owned()).get(graph(1)), None);
    }

    #[test]
    fn others_cannot_read_plans() {
        let (_state, plans) = store(ROOMY);
        plans.put(graph(1), b"one");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&plans.folder), mode(&plans.path(graph(1)))), (0o700, 0o600));
        fs::set_permissions(&plans.folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(plans.get(graph(1)).is_some());
        assert_eq!(mode(&plans.folder), 0o700);
    }

    #[test]
    fn a_plan_with_any_byte_flipped_or_cut_is_removed_and_can_be_kept_again() {
        let (_state, plans) = store(ROOMY);
        plans.put(graph(1), b"content");
        let path = plans.path(graph(1));
        let good = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..good.len()).map(|at| good[..at].to_vec()).collect();
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 0x10;
            damaged.push(flipped);
        }
        damaged.push([good.as_slice(), b"x"].concat());
        for bytes in damaged {
            fs::write(&path, bytes).unwrap();
            assert_eq!(plans.get(graph(1)), None);
            assert!(!path.exists());
        }
        assert!(plans.put(graph(1), b"content"));
        assert_eq!(fs::read(&path).unwrap(), good);
    }

    #[test]
    fn plans_of_another_version_go_and_what_is_no_plan_stays() {
        let state = tempfile::tempdir().unwrap();
        let (old, mixed) = (state.path().join("plans/v0"), state.path().join("plans/v7"));
        for folder in [&old, &mixed] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(graph(1).to_string()), "plan").unwrap();
            fs::write(folder.join(format!("{TEMPORARY_PREFIX}1")), "half a plan").unwrap();
        }
        fs::create_dir(mixed.join("2026")).unwrap();
        fs::write(mixed.join("house.dwg"), "drawing").unwrap();
        Plans::open(state.path(), ROOMY, "a".to_owned());
        let left: Vec<String> = entries(&mixed).into_iter().map(|(name, _)| name).collect();
        assert!(!old.exists() && left.len() == 2 && left.contains(&"house.dwg".to_owned()), "{left:?}");
    }

    #[test]
    fn a_plan_under_another_graphs_name_is_not_taken() {
        let (_state, plans) = store(ROOMY);
        plans.put(graph(1), b"one");
        fs::rename(plans.path(graph(1)), plans.path(graph(2))).unwrap();
        assert_eq!((plans.get(graph(2)), kept(&plans).len()), (None, 0));
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let (_state, plans) = store(Bounds { files: 3, ..ROOMY });
        (1..=3).for_each(|n| assert!(plans.put(graph(n), b"plan")));
        (1..=3).for_each(|n| used(&plans, n, 100 * u64::from(n)));
        assert!(plans.get(graph(3)).is_some());
        plans.put(graph(4), b"plan");
        assert_eq!(kept(&plans), [1, 3, 4]);
    }

    #[test]
    fn bytes_are_bounded_and_a_plan_beyond_the_bound_is_not_kept() {
        let size = HEADER_LEN as u64 + 100;
        let (_state, plans) = store(Bounds { bytes: 2 * size, files: 100 });
        (1..=3).for_each(|n| {
            assert!(plans.put(graph(n), &[n; 100]));
            used(&plans, n, 100 - u64::from(n));
        });
        assert_eq!(kept(&plans), [2, 3]);
        assert!(!plans.put(graph(4), &[4; 400]));
        assert_eq!(kept(&plans), [2, 3]);
    }

    #[test]
    fn another_versions_folder_is_discarded_and_foreign_ones_are_not() {
        let state = tempfile::tempdir().unwrap();
        for folder in ["v0", "v2", "vx", "mine"] {
            fs::create_dir_all(state.path().join("plans").join(folder)).unwrap();
            let plan = state.path().join("plans").join(folder).join(graph(1).to_string());
            fs::write(plan, "plan").unwrap();
        }
        let plans = Plans::open(state.path(), ROOMY, "a".to_owned());
        plans.put(graph(1), b"one");
        let mut found: Vec<String> = entries(&state.path().join("plans")).into_iter().map(|(name, _)| name).collect();
        found.sort();
        assert_eq!(found, ["mine", "v1", "vx"]);
    }

    #[test]
    fn garbage_and_leftovers_do_not_disturb() {
        let (_state, plans) = store(Bounds { files: 2, ..ROOMY });
        plans.put(graph(1), b"one");
        fs::write(plans.folder.join("notes.txt"), "mine").unwrap();
        let (old, fresh) = (plans.folder.join(".tmp-1-0"), plans.folder.join(".tmp-1-1"));
        fs::write(&old, "half").unwrap();
        fs::write(&fresh, "half").unwrap();
        File::options().write(true).open(&old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        symlink("/etc/hostname", plans.path(graph(5))).unwrap();
        fs::create_dir(plans.path(graph(6))).unwrap();
        assert_eq!((plans.get(graph(5)), plans.get(graph(6))), (None, None));
        plans.put(graph(2), b"two");
        assert!(!old.exists() && fresh.exists() && plans.folder.join("notes.txt").exists());
        assert_eq!(plans.get(graph(2)).as_deref(), Some(&b"two"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_the_plan_alone() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("plans"), "a file where the folder belongs").unwrap();
        let plans = Plans::open(state.path(), ROOMY, "a".to_owned());
        assert!(!plans.put(graph(1), b"one"));
        assert_eq!(plans.get(graph(1)), None);
    }

    #[test]
    fn writers_and_readers_side_by_side_never_see_half_a_plan() {
        let (state, plans) = store(ROOMY);
        plans.put(graph(1), &[0; 5000]);
        std::thread::scope(|scope| {
            for n in 0..4_u8 {
                let other = Plans::open(state.path(), ROOMY, "a".to_owned());
                scope.spawn(move || {
                    for round in 0..100_u8 {
                        assert!(other.put(graph(1), &[n.wrapping_mul(round); 5000]));
                        let plan = other.get(graph(1)).expect("whole at any time");
                        assert!(plan.len() == 5000 && plan.iter().all(|byte| *byte == plan[0]));
                    }
                });
            }
        });
        assert_eq!(kept(&plans), [1]);
    }
}
