//! Files of a dump, read: what is read is held against what the dump says of it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{Damage, DumpError};
use super::layout::{self, FILES_FILE, FILES_SCHEMA, FileList, Version};
use super::store::remove_if_there;
use crate::base::files::read_regular;
use crate::onnx::proto::ModelProto;
use crate::onnx::{self, NamedTensor};

/// A tensor's file in a dump.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorFile {
    /// Its number, in the model's order; 0 where it has a name.
    pub index: u64,
    /// The file.
    pub path: PathBuf,
    /// blake3 that a manifest tells, hexadecimal; None: nothing tells it.
    hash: Option<String>,
}

impl TensorFile {
    pub(super) fn new(index: u64, path: PathBuf, hash: Option<String>) -> Self {
        Self { index, path, hash }
    }

    /// One that nothing tells of.
    pub fn unlisted(path: PathBuf) -> Self {
        Self::new(0, path, None)
    }

    /// The tensor, when it is the one that was written. Errors: [`DumpError::Damaged`], [`DumpError::Onnx`].
    pub fn load(&self) -> Result<NamedTensor, DumpError> {
        let bytes = onnx::read(&self.path)?;
        if let Some(hash) = &self.hash {
            compare(&self.path, &bytes, hash).map_err(DumpError::Damaged)?;
        }
        Ok(onnx::decode_tensor(bytes, &self.path)?)
    }
}

/// A model, external data included, when it is the one that was written, as far as the folder that it is in tells. Errors:
/// [`DumpError::Damaged`], [`DumpError::Onnx`].
pub fn load_model(path: &Path) -> Result<ModelProto, DumpError> {
    let bytes = onnx::read(path)?;
    check_listed(path, &bytes)?;
    Ok(onnx::load_from(bytes, path)?)
}

/// As [`load_model`], but elements that stand in other files stay there: none of these is opened.
pub fn load_model_alone(path: &Path) -> Result<ModelProto, DumpError> {
    let bytes = onnx::read(path)?;
    check_listed(path, &bytes)?;
    Ok(onnx::load_alone_from(bytes, path)?)
}

/// What a folder lists of its files; None where it lists none. Errors: also [`Damage`], and InvalidData for another
/// version.
pub(super) fn list_of(folder: &Path) -> io::Result<Option<FileList>> {
    let path = folder.join(FILES_FILE);
    let bytes = match layout::read_checked(&path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        read => read?,
    };
    layout::versioned(&path, &serde_json::from_slice::<Version<'_>>(&bytes)?.schema, &[FILES_SCHEMA])?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Whether these bytes of a file are those that its folder lists. Errors: [`DumpError::Damaged`], of the file or of the
/// list.
fn check_listed(path: &Path, bytes: &[u8]) -> Result<(), DumpError> {
    match listed(path)? {
        Some(hash) => compare(path, bytes, &hash).map_err(DumpError::Damaged),
        None => Ok(()),
    }
}

/// blake3 that the folder of a file lists of it. Errors: [`DumpError::Damaged`], of the list; [`DumpError::Io`].
fn listed(path: &Path) -> Result<Option<String>, DumpError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let list = list_of(folder).map_err(DumpError::io(&folder.join(FILES_FILE), "read"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(list.and_then(|mut list| list.files.remove(&*name)))
}

/// A JSON file whose seal holds and that is as its folder lists it. Errors: the file system's, [`Damage`], also of one that
/// is listed and gone.
pub(super) fn read_json(path: &Path) -> io::Result<Vec<u8>> {
    let told = |error| match error {
        DumpError::Damaged(damage) => damage.into(),
        other => io::Error::other(other),
    };
    let bytes = match layout::read_checked(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match listed(path).map_err(told)? {
                Some(_) => Damage::new(path, "its folder lists it, and it is gone").into(),
                None => error,
            });
        }
        read => read?,
    };
    check_listed(path, &bytes).map_err(told)?;
    Ok(bytes)
}

/// A text that is as its folder lists it; what is no UTF-8 is replaced. Errors: [`DumpError::Damaged`],
/// [`DumpError::Io`], also of one that is too large.
pub(super) fn read_text(path: &Path) -> Result<String, DumpError> {
    let bytes = read_regular(path, layout::MAX_JSON_BYTES).map_err(DumpError::io(path, "read"))?;
    check_listed(path, &bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the bytes of a file have the hash that is told of it.
pub(super) fn compare(path: &Path, bytes: &[u8], hash: &str) -> Result<(), Damage> {
    let got = blake3::hash(bytes).to_hex();
    if got.as_str() == hash { Ok(()) } else { Err(other_content(path, hash, &got)) }
}

pub(super) fn other_content(path: &Path, expected: &str, got: &str) -> Damage {
    let start = |hash: &str| hash.chars().take(12).collect::<String>();
    Damage::new(path, format!("expected content of blake3 {}…, got {}…", start(expected), start(got)))
}

/// Lists files of a folder beside those that it lists already. `written`: path below the folder → blake3. Returns the new
/// list; None when nothing changes.
pub(super) fn extended(folder: &Path, written: &BTreeMap<String, String>) -> Option<FileList> {
    // A list that cannot be read tells nothing that could be kept.
    let mut list = list_of(folder).ok().flatten().unwrap_or_default();
    let before = list.files.clone();
    list.files.extend(written.iter().map(|(name, hash)| (name.clone(), hash.clone())));
    (list.files != before).then_some(list)
}

/// The list of a folder without files that are about to be written with another content; None when nothing changes.
pub(super) fn without_others(folder: &Path, coming: &BTreeMap<String, String>) -> Option<FileList> {
    let mut list = list_of(folder).ok().flatten()?;
    let n_before = list.files.len();
    list.files.retain(|name, hash| coming.get(name).is_none_or(|new| new == hash));
    (list.files.len() != n_before).then_some(list)
}

/// Lists all files of a folder that somebody is to read elsewhere, those in folders below it included. The list goes
/// last. Errors: the file system's.
pub fn list_folder(folder: &Path) -> io::Result<()> {
    fn below(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(root).map_err(io::Error::other)?.to_string_lossy().into_owned();
            match path.symlink_metadata()?.is_dir() {
                true => below(root, &path, files)?,
                false if name == FILES_FILE => {}
                false => drop(files.insert(name, hash_of(&path)?)),
            }
        }
        Ok(())
    }
    let mut list = FileList::default();
    below(folder, folder, &mut list.files)?;
    crate::base::files::write_whole(&folder.join(FILES_FILE), 0o644, &[&layout::to_json(&list)])
}

/// Removes the list of a folder that is about to be written anew. Errors: the file system's.
pub fn unlist_folder(folder: &Path) -> io::Result<()> {
    remove_if_there(&folder.join(FILES_FILE))
}

/// blake3 of a file's content, hexadecimal. Errors: the file system's; it is no regular file.
pub(super) fn hash_of(path: &Path) -> io::Result<String> {
    let (mut file, _) = crate::base::files::open_regular(path)?;
    Ok(blake3::Hasher::new().update_reader(&mut file)?.finalize().to_string())
}
