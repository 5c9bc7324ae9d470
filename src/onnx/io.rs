//! Models and tensors from and to files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path};

use bytes::Bytes;
use prost::Message;

use super::OnnxError;
use super::proto::{
    GraphProto, ModelProto, NodeProto, SparseTensorProto, StringStringEntryProto, TensorProto,
    tensor_proto::DataLocation,
};
use crate::base::files::write_whole;
use crate::base::footprint::{self, Footprint};

mod shapes {
    use crate::base::footprint::{Field, Shape};
    use crate::onnx::proto;
    include!(concat!(env!("OUT_DIR"), "/onnx_shapes.rs"));
}

/// What protobuf's C++ and Python readers accept in one message.
const PROTOBUF_LIMIT: usize = i32::MAX as usize;
/// What runtimes need to map a tensor of another file straight into memory.
const EXTERNAL_ALIGN: usize = 4096;

/// A model from bytes; tensors share them. External data stays where it is. Errors: [`OnnxError::Decode`].
pub fn decode(bytes: Bytes) -> Result<ModelProto, OnnxError> {
    let n_bytes = bytes.len();
    ModelProto::decode(bytes).map_err(|source| OnnxError::Decode {
        path: None,
        expected: "ModelProto",
        n_bytes,
        source,
    })
}

/// What decoding a model takes: beside its tensors, which share its bytes. Of bytes that are no model, what decoding takes
/// until that is found.
pub fn footprint(model: &[u8]) -> Footprint {
    footprint::of(model, shapes::SHAPES, shapes::ROOT)
}

/// A model from a file, external data included: every tensor holds its elements. Errors: [`OnnxError`].
///
/// ```
/// use rust_ort::onnx::proto::{GraphProto, ModelProto, NodeProto};
/// use rust_ort::onnx::{OnnxError, load, model_text, save, value_info};
/// use rust_ort::tensor::{DType, TensorDesc};
///
/// let desc = TensorDesc::new(DType::F32, [2]).expect("a small shape");
/// let node = NodeProto {
///     op_type: Some("Relu".into()),
///     input: vec!["x".into()],
///     output: vec!["y".into()],
///     ..Default::default()
/// };
/// let graph = GraphProto {
///     input: vec![value_info("x", &desc)],
///     output: vec![value_info("y", &desc)],
///     node: vec![node],
///     ..Default::default()
/// };
/// let model = ModelProto { graph: Some(graph), ..Default::default() };
///
/// let folder = tempfile::tempdir().expect("a folder");
/// let path = folder.path().join("model.onnx");
/// save(&model, &path)?;
/// let text = model_text(&load(&path)?)?;
/// assert!(text.contains("input x: float32[2]") && text.contains("Relu"), "{text}");
/// assert!(load(&folder.path().join("absent.onnx")).is_err());
/// # Ok::<(), OnnxError>(())
/// ```
pub fn load(path: &Path) -> Result<ModelProto, OnnxError> {
    let mut model = decode(read(path)?).map_err(|error| match error {
        OnnxError::Decode { expected, n_bytes, source, .. } => {
            OnnxError::Decode { path: Some(path.to_owned()), expected, n_bytes, source }
        }
        other => other,
    })?;
    read_external(&mut model, path.parent().unwrap_or(Path::new(".")))?;
    Ok(model)
}

/// Write the model to one file: whole or not at all. Errors: [`OnnxError::TooBig`], [`OnnxError::Io`].
pub fn save(model: &ModelProto, path: &Path) -> Result<(), OnnxError> {
    let n_bytes = model.encoded_len();
    if n_bytes > PROTOBUF_LIMIT {
        return Err(OnnxError::TooBig { n_bytes, limit: PROTOBUF_LIMIT });
    }
    write_whole(path, 0o644, &[&model.encode_to_vec()]).map_err(io_error(path, "write"))
}

/// Write the model with every tensor of at least `min_bytes` of raw data in `<path>.data` beside it, each at a multiple
/// of 4096. Takes the model, for the tensors leave it. Errors: as [`save`].
pub fn save_with_external(mut model: ModelProto, path: &Path, min_bytes: usize) -> Result<(), OnnxError> {
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let location = format!("{file_name}.data");
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut offset = 0;
    visit_tensors(&mut model, &mut |tensor| {
        let big = tensor.raw_data.as_ref().is_some_and(|raw| !raw.is_empty() && raw.len() >= min_bytes);
        if let Some(raw) = tensor.raw_data.take_if(|_| big) {
            let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
            tensor.external_data = vec![
                entry("location", location.clone()),
                entry("offset", offset.to_string()),
                entry("length", raw.len().to_string()),
            ];
            tensor.data_location = Some(DataLocation::External as i32);
            let padding = raw.len().next_multiple_of(EXTERNAL_ALIGN) - raw.len();
            offset += raw.len() + padding;
            pieces.push(raw);
            pieces.push(Bytes::from(vec![0; padding]));
        }
        Ok(())
    })?;
    if !pieces.is_empty() {
        let data = path.with_file_name(&location);
        let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
        write_whole(&data, 0o644, &pieces).map_err(io_error(&data, "write"))?;
    }
    save(&model, path)
}

/// Read the elements of every tensor that stands in another file below `folder` into its `raw_data`. A location that is
/// absolute, climbs with `..`, leads out of the folder through a link, or is no plain file is refused.
/// Errors: [`OnnxError::External`].
pub fn read_external(model: &mut ModelProto, folder: &Path) -> Result<(), OnnxError> {
    let mut files: BTreeMap<String, Bytes> = BTreeMap::new();
    visit_tensors(model, &mut |tensor| {
        if tensor.data_location() != DataLocation::External {
            return Ok(());
        }
        let entry = |key: &str| {
            tensor.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value().to_owned())
        };
        let location = entry("location").unwrap_or_default();
        let fail =
            |reason: String| OnnxError::External { name: tensor.name().to_owned(), location: location.clone(), reason };
        if !files.contains_key(&location) {
            let bytes = read_below(folder, &location).map_err(fail)?;
            files.insert(location.clone(), bytes);
        }
        let file = &files[&location];
        let number = |key: &str, default: usize| match entry(key) {
            None => Ok(default),
            Some(text) => text.parse::<usize>().map_err(|_| fail(format!("{key} {text:?} is no number of bytes"))),
        };
        let offset = number("offset", 0)?;
        let length = number("length", file.len().saturating_sub(offset))?;
        let end = offset.checked_add(length).filter(|&end| end <= file.len());
        let Some(end) = end else {
            let n_bytes = file.len();
            return Err(fail(format!(
                "bytes {offset} to {offset}+{length} are asked of a file of {n_bytes}; copy the whole file again"
            )));
        };
        let raw = file.slice(offset..end);
        tensor.raw_data = Some(raw);
        tensor.external_data.clear();
        tensor.data_location = None;
        Ok(())
    })
}

fn read_below(folder: &Path, location: &str) -> Result<Bytes, String> {
    let relative = Path::new(location);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if location.is_empty() || location.contains('\0') || !plain {
        return Err("it must name a file below the model's folder; move the file there".to_owned());
    }
    let tell = |error: io::Error| format!("cannot read: {error}; copy it beside the model");
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = folder.canonicalize().map_err(tell)?;
    let path = folder.join(relative).canonicalize().map_err(tell)?;
    if !path.starts_with(&folder) {
        return Err("a link leads it out of the model's folder; copy the file there".to_owned());
    }
    if !fs::metadata(&path).map_err(tell)?.is_file() {
        return Err("it is no plain file".to_owned());
    }
    fs::read(&path).map(Bytes::from).map_err(tell)
}

pub(super) fn read(path: &Path) -> Result<Bytes, OnnxError> {
    fs::read(path).map(Bytes::from).map_err(io_error(path, "read"))
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> OnnxError {
    move |source| OnnxError::Io { path: path.to_owned(), action, source }
}

type Visit<'a> = dyn FnMut(&mut TensorProto) -> Result<(), OnnxError> + 'a;

/// Every tensor of the model, those in attributes, subgraphs, functions and training graphs included.
fn visit_tensors(model: &mut ModelProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    for graph in model.graph.iter_mut() {
        visit_graph(graph, visit)?;
    }
    for training in &mut model.training_info {
        for graph in training.initialization.iter_mut().chain(&mut training.algorithm) {
            visit_graph(graph, visit)?;
        }
    }
    model.functions.iter_mut().flat_map(|function| &mut function.node).try_for_each(|node| visit_node(node, visit))
}

fn visit_graph(graph: &mut GraphProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    graph.initializer.iter_mut().try_for_each(&mut *visit)?;
    graph.sparse_initializer.iter_mut().try_for_each(|sparse| visit_sparse(sparse, visit))?;
    graph.node.iter_mut().try_for_each(|node| visit_node(node, visit))
}

fn visit_sparse(sparse: &mut SparseTensorProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    sparse.values.iter_mut().chain(&mut sparse.indices).try_for_each(visit)
}

fn visit_node(node: &mut NodeProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    for attribute in &mut node.attribute {
        attribute.t.iter_mut().chain(&mut attribute.tensors).try_for_each(&mut *visit)?;
        let mut sparse = attribute.sparse_tensor.iter_mut().chain(&mut attribute.sparse_tensors);
        sparse.try_for_each(|sparse| visit_sparse(sparse, visit))?;
        attribute.g.iter_mut().chain(&mut attribute.graphs).try_for_each(|graph| visit_graph(graph, visit))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::NamedTensor;
    use proptest::prelude::*;

    fn tensor(name: &str, raw: &[u8]) -> TensorProto {
        TensorProto {
            name: Some(name.into()),
            dims: vec![raw.len() as i64],
            data_type: Some(2),
            raw_data: Some(Bytes::copy_from_slice(raw)),
            ..Default::default()
        }
    }

    fn model_of(initializer: Vec<TensorProto>) -> ModelProto {
        ModelProto { graph: Some(GraphProto { initializer, ..Default::default() }), ..Default::default() }
    }

    fn external(pairs: &[(&str, &str)]) -> ModelProto {
        let entry =
            |&(key, value): &(&str, &str)| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
        model_of(vec![TensorProto {
            name: Some("w".into()),
            dims: vec![4],
            data_type: Some(2),
            data_location: Some(1),
            external_data: pairs.iter().map(entry).collect(),
            ..Default::default()
        }])
    }

    #[test]
    fn a_saved_model_loads_equal_with_or_without_external_data() {
        let folder = tempfile::tempdir().unwrap();
        let model = model_of(vec![tensor("small", &[1; 3]), tensor("big", &[2; 5000]), tensor("bigger", &[3; 9000])]);
        let path = folder.path().join("model.onnx");
        save(&model, &path).unwrap();
        assert_eq!(load(&path).unwrap(), model);
        save_with_external(model.clone(), &path, 100).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 400);
        assert_eq!(fs::metadata(folder.path().join("model.onnx.data")).unwrap().len(), 8192 + 12288);
        assert_eq!(load(&path).unwrap(), model);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn presence_survives_a_round_trip() {
        let mut model = model_of(vec![]);
        model.doc_string = Some(String::new());
        model.model_version = Some(0);
        assert_eq!(decode(Bytes::from(model.encode_to_vec())).unwrap(), model);
    }

    #[test]
    fn external_data_outside_the_folder_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("inner");
        fs::create_dir(&folder).unwrap();
        fs::write(outer.path().join("secret"), [1, 2, 3, 4]).unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret"), folder.join("link")).unwrap();
        fs::create_dir(folder.join("directory")).unwrap();
        let absolute = outer.path().join("secret");
        for (location, expected) in [
            ("../secret", "below the model's folder"),
            ("a/../../secret", "below the model's folder"),
            (absolute.to_str().unwrap(), "below the model's folder"),
            ("", "below the model's folder"),
            ("link", "out of the model's folder"),
            ("directory", "no plain file"),
            ("absent", "cannot read"),
        ] {
            let error = read_external(&mut external(&[("location", location)]), &folder).unwrap_err();
            assert!(error.to_string().contains(expected), "{location}: {error}");
        }
    }

    #[test]
    fn external_ranges_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("data"), [1, 2, 3, 4, 5, 6]).unwrap();
        let read = |pairs: &[(&str, &str)]| {
            let mut model = external(&[&[("location", "data")], pairs].concat());
            read_external(&mut model, folder.path()).map(|()| model.graph.unwrap().initializer[0].clone())
        };
        let good = read(&[("offset", "2"), ("length", "4")]).unwrap();
        assert_eq!(NamedTensor::from_proto(&good).unwrap().view().bytes(), [3, 4, 5, 6]);
        for pairs in [
            &[("offset", "3"), ("length", "4")][..],
            &[("offset", "18446744073709551615"), ("length", "2")],
            &[("offset", "-1")],
            &[("offset", "7")],
            &[("length", "x")],
        ] {
            assert!(matches!(read(pairs), Err(OnnxError::External { .. })), "{pairs:?}");
        }
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        assert!(load(&path).unwrap_err().to_string().contains("model.onnx: cannot read"));
        fs::write(&path, [255; 100]).unwrap();
        let text = load(&path).unwrap_err().to_string();
        assert!(text.contains("model.onnx: 100 bytes that are no ONNX ModelProto"), "{text}");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(Bytes::from(bytes));
        }
    }
}
