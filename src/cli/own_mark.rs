//! A mark on what this program keeps in folders of others: a dump comes from anywhere, seals anybody can make, and what was
//! found of it is believed again only where this user's own program wrote it, here. Its key is `<state>/kept.key`.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::base::files::{open_regular, random_name, write_whole};
use crate::daemon::paths;

const FILE: &str = "kept.key";
/// Hexadecimal digits of two random names.
const LEN: usize = 64;
/// Of what is marked: the mark itself is not marked, nor is the seal that every file of a dump has.
const FIELD: &str = "mark";
const SEAL: &str = "seal";

/// Who marks.
pub(super) struct Keeper([u8; 32]);

impl Keeper {
    /// This user's, made where there is none yet. To be asked for while files may be read. Errors: the state folder cannot be
    /// read or written, or the key may be read or written by somebody else.
    pub(super) fn of_user() -> Result<Self, String> {
        let state = paths::state().map_err(|error| error.to_string())?;
        Self::below(&state).map_err(|error| format!("{}: {error}", state.join(FILE).display()))
    }

    fn below(state: &Path) -> io::Result<Self> {
        let file = state.join(FILE);
        match read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        paths::make_private(state)?;
        let drawn = random_name()? + &random_name()?;
        write_whole(&file, 0o600, &[drawn.as_bytes()])?;
        // Another program's, which made one at the same time, may be in its place.
        read(&file)
    }

    /// The mark on a value, whatever mark it has.
    pub(super) fn mark(&self, value: &impl Serialize) -> Result<String, serde_json::Error> {
        // Numbers as they are read from a file.
        let mut value: Value = serde_json::from_slice(&serde_json::to_vec(value)?)?;
        if let Some(fields) = value.as_object_mut() {
            fields.remove(FIELD);
            fields.remove(SEAL);
        }
        Ok(blake3::keyed_hash(&self.0, value.to_string().as_bytes()).to_string())
    }

    /// Whether a value has the mark.
    pub(super) fn made(&self, value: &Value) -> bool {
        value[FIELD].as_str().is_some_and(|told| self.mark(value).is_ok_and(|mark| mark == told))
    }
}

fn read(file: &Path) -> io::Result<Keeper> {
    let (opened, facts) = open_regular(file)?;
    let own = rustix::process::getuid().as_raw();
    if facts.uid() != own || facts.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("expected a file of uid {own} with mode 0600; remove it")));
    }
    let mut text = String::new();
    opened.take(2 * LEN as u64).read_to_string(&mut text)?;
    if text.len() != LEN {
        return Err(io::Error::other("no key; remove it"));
    }
    Ok(Keeper(blake3::hash(text.as_bytes()).into()))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_another_marked_or_was_changed_is_not_ones_own() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let own = Keeper::below(here.path()).unwrap();
        let mut value = json!({ "nodes": [0.1, 1e300, 3], "seal": "x" });
        assert!(!own.made(&value));
        value["mark"] = own.mark(&value).unwrap().into();
        assert!(own.made(&value));
        assert!(Keeper::below(here.path()).unwrap().made(&value), "the key stays");
        assert!(!Keeper::below(there.path()).unwrap().made(&value));
        value["nodes"][2] = 4.into();
        assert!(!own.made(&value));
    }

    #[test]
    fn a_key_that_others_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        Keeper::below(folder.path()).unwrap();
        let file = folder.path().join(FILE);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(Keeper::below(folder.path()).is_err());
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "short").unwrap();
        set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(Keeper::below(folder.path()).is_err());
    }
}
