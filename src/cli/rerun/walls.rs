//! What a process that runs a dump's models may do.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::arguments::{Arguments, Which};
use super::target::{Target, of_libtorch};
use crate::cli::answer::warn;
use crate::cli::exit::Failure;
use crate::cli::walls_argument::WallsArgument;
use crate::confine::{Confined, Rights, Wall, confine, of_the_system};
use crate::dump::Damage;
use crate::protocol::message::CPU_PROVIDER;

/// Files outside its rights are closed to this process.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// How to do without them.
const AROUND: &str = "--no-confine or RUST_ORT_CONFINE=off";

/// What a file that is closed is told by: by the system, and by its loader, which looks for what a library needs elsewhere.
const CLOSED_BY: [&str; 2] = ["Permission denied", "cannot open shared object file"];

/// Confines this process, which has one thread yet and no runtime loaded: it reads what the targets and the libraries need,
/// and writes into the folders `written`, which are there. Where something is missing of it that is told, unless it was
/// asked for.
pub(super) fn around(
    args: &Arguments,
    targets: &[Target],
    library: Option<&Path>,
    written: &[&Path],
) -> Result<(), Failure> {
    build(&args.walls, free(args, targets), || rights(targets, library, written))
}

/// The same of a process that has read everything but the libraries that it runs, and writes nothing.
pub(crate) fn around_libraries(walls: &WallsArgument, providers: &[String], code: &[&Path]) -> Result<(), Failure> {
    build(walls, of_device(providers.iter().map(String::as_str)), || {
        let read = folders(code.iter().copied()).into_iter().chain(of_the_system()).collect();
        Rights { read, write: Vec::new() }
    })
}

/// `free`: why there are none.
fn build(walls: &WallsArgument, free: Option<String>, rights: impl FnOnce() -> Rights) -> Result<(), Failure> {
    if !walls.wanted()? {
        return Ok(());
    }
    let confined = match free {
        Some(why) => Confined::not(why),
        None => confine(&rights()),
    };
    CLOSED.store(confined.files == Wall::Holds, Ordering::Relaxed);
    if !confined.is_whole() {
        warn(format_args!("models of the dump run with your rights: confined: {confined}"));
    }
    Ok(())
}

/// The failure, with the way around the walls where they may be its reason.
pub(crate) fn explained(failure: Failure) -> Failure {
    let text = failure.to_string();
    let is_closed = CLOSED.load(Ordering::Relaxed) && CLOSED_BY.iter().any(|sign| text.contains(sign));
    if !is_closed || text.contains(AROUND) || Damage::of(failure.as_ref()).is_some() {
        return failure;
    }
    format!(
        "{text}; models of a dump run where the part, the folders of the libraries and the system's files alone can be read: \
         what a link leads to, or a library looks for elsewhere, is read with {AROUND}, if you trust this dump"
    )
    .into()
}

/// Why it is not to be confined.
fn free(args: &Arguments, targets: &[Target]) -> Option<String> {
    let providers = targets.iter().flat_map(|target| &target.providers).map(|(name, _)| name.as_str());
    if args.runtime != Which::Ort || of_libtorch(targets).is_some() {
        return Some("libtorch computes".to_owned());
    }
    of_device(providers)
}

fn of_device<'a>(mut providers: impl Iterator<Item = &'a str>) -> Option<String> {
    providers.find(|name| *name != CPU_PROVIDER).map(|name| format!("{name} computes"))
}

/// Folders of libraries, and those where the loader looks for what they need.
fn folders<'a>(libraries: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    // A link is read where it leads, and what stands beside the file is looked for there.
    let files =
        libraries.flat_map(|library| [std::path::absolute(library).ok(), library.canonicalize().ok()]).flatten();
    let folders = files.filter_map(|file| Some(file.parent()?.to_owned()));
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.chain(env::split_paths(&path).filter(|path| path.is_absolute())).collect()
}

fn rights(targets: &[Target], library: Option<&Path>, written: &[&Path]) -> Rights {
    let libraries = targets.iter().flat_map(|target| &target.libraries).map(PathBuf::as_path).chain(library);
    let mut read = folders(libraries);
    read.extend(targets.iter().flat_map(Target::reads));
    read.extend(of_the_system());
    Rights { read, write: written.iter().map(|path| path.to_path_buf()).collect() }
}
