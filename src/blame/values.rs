//! Eager's values of a part, read when they are asked for.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::base::ids::ValueName;
use crate::dump::DumpError;
use crate::dump::reader::TensorFile;
use crate::onnx::NamedTensor;
use crate::tensor::TensorDesc;

/// {name: value}, of which so many bytes are kept in memory.
#[derive(Debug, Default)]
pub struct Values {
    files: BTreeMap<ValueName, TensorFile>,
    given: HashMap<ValueName, Rc<NamedTensor>>,
    descs: HashMap<ValueName, TensorDesc>,
    kept: RefCell<Kept>,
    limit_bytes: usize,
}

/// Those that were read last.
#[derive(Debug, Default)]
struct Kept {
    tensors: HashMap<ValueName, (u64, Rc<NamedTensor>)>,
    n_bytes: usize,
    n_reads: u64,
}

impl Values {
    /// Those in `files`, and those `given`, which take precedence. Reads every file once to know what it holds. Errors:
    /// [`DumpError`] of a file.
    pub fn new(
        files: BTreeMap<ValueName, TensorFile>,
        given: Vec<NamedTensor>,
        limit_bytes: usize,
    ) -> Result<Self, DumpError> {
        let mut descs = HashMap::with_capacity(files.len());
        for (name, file) in &files {
            descs.insert(name.clone(), file.load()?.desc);
        }
        descs.extend(given.iter().map(|tensor| (tensor.name.clone(), tensor.desc.clone())));
        let given = given.into_iter().map(|tensor| (tensor.name.clone(), Rc::new(tensor))).collect();
        Ok(Self { files, given, descs, kept: RefCell::default(), limit_bytes })
    }

    /// Those that are in memory, of nodes too.
    pub fn held(tensors: Vec<NamedTensor>) -> Self {
        let descs = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.desc.clone())).collect();
        let given = tensors.into_iter().map(|tensor| (tensor.name.clone(), Rc::new(tensor))).collect();
        Self { given, descs, ..Self::default() }
    }

    /// Whether there is a value of this name.
    pub fn has(&self, name: &str) -> bool {
        self.descs.contains_key(name)
    }

    /// What each of them is.
    pub fn descs(&self) -> &HashMap<ValueName, TensorDesc> {
        &self.descs
    }

    /// A value; None where there is none. Errors: [`DumpError`] of its file.
    pub fn get(&self, name: &str) -> Result<Option<Rc<NamedTensor>>, DumpError> {
        if let Some(given) = self.given.get(name) {
            return Ok(Some(Rc::clone(given)));
        }
        let Some(file) = self.files.get(name) else { return Ok(None) };
        if let Some(known) = self.kept.borrow_mut().touched(name) {
            return Ok(Some(known));
        }
        let tensor = Rc::new(file.load()?);
        self.kept.borrow_mut().keep(name, &tensor, self.limit_bytes);
        Ok(Some(tensor))
    }
}

impl Kept {
    fn touched(&mut self, name: &str) -> Option<Rc<NamedTensor>> {
        self.n_reads += 1;
        let (read, tensor) = self.tensors.get_mut(name)?;
        *read = self.n_reads;
        Some(Rc::clone(tensor))
    }

    fn keep(&mut self, name: &str, tensor: &Rc<NamedTensor>, limit_bytes: usize) {
        let len_bytes = tensor.desc.len_bytes();
        while self.n_bytes + len_bytes > limit_bytes {
            let oldest = self.tensors.iter().min_by_key(|(_, (read, _))| *read).map(|(name, _)| name.clone());
            let Some((_, gone)) = oldest.and_then(|name| self.tensors.remove(&name)) else { return };
            self.n_bytes -= gone.desc.len_bytes();
        }
        self.n_bytes += len_bytes;
        self.tensors.insert(name.to_owned(), (self.n_reads, Rc::clone(tensor)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx;
    use crate::tensor::TensorBuf;

    #[test]
    fn values_are_read_again_when_there_is_no_room_to_keep_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, value: f32| {
            let tensor = TensorBuf::from_f32([2], &[value, value]).unwrap();
            let path = folder.path().join(format!("{name}.pb"));
            let header = onnx::tensor_header(name, &tensor.view());
            std::fs::write(&path, [&header, tensor.view().bytes()].concat()).unwrap();
            (name.to_owned(), TensorFile::unlisted(path))
        };
        let files = BTreeMap::from([file("a", 1.), file("b", 2.), file("c", 3.)]);
        let given = files["b"].load().unwrap();
        for limit_bytes in [0, 8, 16, 1000] {
            let values = Values::new(files.clone(), vec![given.clone()], limit_bytes).unwrap();
            for name in ["a", "c", "a", "b", "a", "c"] {
                let expected = files[name].load().unwrap();
                assert_eq!(*values.get(name).unwrap().unwrap(), expected, "{limit_bytes}");
                assert!(values.kept.borrow().n_bytes <= limit_bytes);
            }
            assert!(values.get("d").unwrap().is_none() && !values.has("d"));
            assert_eq!(values.descs()["c"].len_bytes(), 8);
        }
    }
}
