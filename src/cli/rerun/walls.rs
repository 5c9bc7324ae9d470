//! What a process that runs a dump's models may do.

use std::env;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use super::arguments::{Arguments, Which};
use super::rules::text_of;
use super::target::{Target, of_libtorch};
use crate::cli::answer::warn;
use crate::cli::exit::Failure;
use crate::cli::walls_argument::WallsArgument;
use crate::confine::{Confined, Rights, Wall, confine, of_the_system};
use crate::dump::Damage;
use crate::protocol::message::{CPU_PROVIDER, Provider};

/// Files outside its rights are closed to this process.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// How to do without them.
const AROUND: &str = "--no-confine or RUST_ORT_CONFINE=off";

/// What a file that is closed is told by: by the system, and by its loader, which looks for what a library needs elsewhere.
const CLOSED_BY: [&str; 2] = ["Permission denied", "cannot open shared object file"];

/// Errors: what the dump ran with cannot be confined, and neither was that named on the command line nor its walls turned
/// off: a dump takes none of them down. Asked before anything is written, and before a library is loaded.
pub(super) fn refuse_unconfined(args: &Arguments, targets: &[Target]) -> Result<(), Failure> {
    if !args.walls.wanted()? {
        return Ok(());
    }
    match targets.iter().find_map(|target| of_the_dump(args, target)) {
        None => Ok(()),
        Some(why) => Err(format!("{why}, or, if you trust this dump, with {AROUND}").into()),
    }
}

/// Why a target cannot be confined, by what its dump alone says, and what else may be done.
fn of_the_dump(args: &Arguments, target: &Target) -> Option<String> {
    let freed = |what: &str, instead: &str| {
        format!(
            "{}: it ran with {what}, which cannot be confined: its models would have your rights to files, network and \
             programs; {instead}",
            target.title()
        )
    };
    if args.runtime != Which::Ort {
        return None;
    }
    let device = of_device(&target.providers).filter(|_| args.provider.is_empty());
    let rule = of_libtorch(slice::from_ref(target)).filter(|_| args.on.is_empty());
    match (device, rule) {
        (Some(name), _) => Some(freed(name, &format!("run it with --provider {CPU_PROVIDER}"))),
        (None, Some(rule)) => {
            Some(freed(&format!("libtorch ({})", text_of(rule)), "run all of it on ONNX Runtime with --on 'ort:*'"))
        }
        (None, None) => None,
    }
}

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
    let device = providers.iter().find(|name| *name != CPU_PROVIDER);
    build(walls, device.map(|name| computes(name)), || {
        let read = folders(code.iter().copied()).into_iter().chain(of_the_system()).collect();
        Rights { read, write: Vec::new() }
    })
}

/// `free`: why there are none.
fn build(walls: &WallsArgument, free: Option<String>, rights: impl FnOnce() -> Rights) -> Result<(), Failure> {
    let confined = match (free, walls.wanted()?) {
        (Some(why), _) => Confined::not(why),
        (None, false) => return Ok(()),
        (None, true) => confine(&rights()),
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
    if args.runtime != Which::Ort || of_libtorch(targets).is_some() {
        return Some("libtorch computes".to_owned());
    }
    targets.iter().find_map(|target| of_device(&target.providers)).map(computes)
}

fn of_device(providers: &[Provider]) -> Option<&str> {
    providers.iter().map(|(name, _)| name.as_str()).find(|name| *name != CPU_PROVIDER)
}

fn computes(provider: &str) -> String {
    format!("{provider} computes")
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
