//! What a process that runs a dump's models may do.

use std::env;
use std::path::{Path, PathBuf};

use super::arguments::{Arguments, Which};
use super::target::{Target, of_libtorch};
use crate::cli::answer::warn;
use crate::cli::exit::Failure;
use crate::confine::{Confined, Rights, confine, of_the_system};
use crate::protocol::message::CPU_PROVIDER;

/// Confines this process, which has one thread yet and no runtime loaded: it reads what the targets and the libraries need,
/// and writes into the folders `written`, which are there. Where something is missing of it that is told, unless it was
/// asked for.
pub(super) fn around(
    args: &Arguments,
    targets: &[Target],
    library: Option<&Path>,
    written: &[&Path],
) -> Result<(), Failure> {
    if !args.walls.wanted()? {
        return Ok(());
    }
    let confined = match free(args, targets) {
        Some(why) => Confined::not(why),
        None => confine(&rights(targets, library, written)),
    };
    if !confined.is_whole() {
        warn(format_args!("models of the dump run with your rights: confined: {confined}"));
    }
    Ok(())
}

/// Why it is not to be confined.
fn free(args: &Arguments, targets: &[Target]) -> Option<String> {
    let mut providers = targets.iter().flat_map(|target| &target.providers).map(|(name, _)| name.as_str());
    if args.runtime != Which::Ort || of_libtorch(targets).is_some() {
        return Some("libtorch computes".to_owned());
    }
    providers.find(|name| *name != CPU_PROVIDER).map(|name| format!("{name} computes"))
}

fn rights(targets: &[Target], library: Option<&Path>, written: &[&Path]) -> Rights {
    let libraries = targets.iter().flat_map(|target| &target.libraries).map(PathBuf::as_path).chain(library);
    // A link is read where it leads, and what stands beside the file is looked for there.
    let files = libraries.flat_map(|library| [Some(library.to_owned()), library.canonicalize().ok()]).flatten();
    let mut read: Vec<PathBuf> = files.filter_map(|file| Some(file.parent()?.to_owned())).collect();
    read.extend(
        env::split_paths(&env::var_os("LD_LIBRARY_PATH").unwrap_or_default()).filter(|path| path.is_absolute()),
    );
    read.extend(targets.iter().flat_map(Target::reads));
    read.extend(of_the_system());
    Rights { read, write: written.iter().map(|path| path.to_path_buf()).collect() }
}
