//! `values_<step>`: what eager gave at each node of a part in one call, and for the part's inputs where the candidate was
//! given something else. Each value is a file by its name; the manifest goes last.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::layout::{self, MANIFEST_FILE, VALUES_SCHEMA, ValueSet};
use super::store::remove_if_there;
use crate::base::ids::{StepId, ValueName};
use crate::base::sync::lock;
use crate::tensor::SharedTensor;

/// Eager's values of some nodes.
#[derive(Debug, Default)]
pub struct EagerValues<'a> {
    /// Inputs of the part that eager has other values of.
    pub inputs: Vec<(ValueName, SharedTensor<'a>)>,
    /// In graph order.
    pub nodes: Vec<(ValueName, SharedTensor<'a>)>,
}

/// A folder of eager's values being written. It stays incomplete until [`Run::finish_values`](super::Run::finish_values).
#[derive(Clone, Debug)]
pub struct ValuesFolder(Arc<State>);

#[derive(Debug)]
struct State {
    folder: PathBuf,
    manifest: Mutex<ValueSet>,
}

impl ValuesFolder {
    /// run: its id. Of a graph's folder, the part's number and the call's.
    pub(super) fn new(run: &str, part_folder: &Path, (graph, part, step): (&str, u32, StepId)) -> Self {
        let manifest = ValueSet {
            schema: VALUES_SCHEMA.to_owned(),
            run: run.to_owned(),
            graph: graph.to_owned(),
            part,
            step: step.0,
            inputs: Vec::new(),
            nodes: Vec::new(),
            lost: Vec::new(),
        };
        let folder = part_folder.join(layout::values_folder(step.0));
        Self(Arc::new(State { folder, manifest: Mutex::new(manifest) }))
    }

    /// `…/values_<step>`.
    pub fn path(&self) -> &Path {
        &self.0.folder
    }

    pub(super) fn manifest(&self) -> MutexGuard<'_, ValueSet> {
        lock(&self.0.manifest)
    }
}

/// Folders of values that are being written: a call's data set, which begins later, leaves them where they are.
#[derive(Debug, Default)]
pub(super) struct OpenValues(Mutex<BTreeMap<PathBuf, Weak<State>>>);

impl OpenValues {
    pub(super) fn add(&self, values: &ValuesFolder) {
        let mut open = lock(&self.0);
        open.retain(|_, state| state.strong_count() > 0);
        open.insert(values.0.folder.clone(), Arc::downgrade(&values.0));
    }

    /// Removes what another run left of a call.
    pub(super) fn remove_old(&self, part_folder: &Path, step: StepId) -> io::Result<()> {
        let folder = part_folder.join(layout::values_folder(step.0));
        match lock(&self.0).get(&folder).is_some_and(|state| state.strong_count() > 0) {
            true => Ok(()),
            false => remove_values(part_folder, step.0),
        }
    }
}

/// Removes eager's values of a call. The manifest goes first: what is half removed must not read as whole.
pub(super) fn remove_values(part_folder: &Path, step: u64) -> io::Result<()> {
    let folder = part_folder.join(layout::values_folder(step));
    if !folder.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
        return Ok(());
    }
    remove_if_there(&folder.join(MANIFEST_FILE))?;
    fs::remove_dir_all(folder)
}
