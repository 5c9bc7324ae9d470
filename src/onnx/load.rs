//! Models from bytes and files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use bytes::Bytes;
use prost::Message as _;

use super::OnnxError;
use super::footprint::footprint;
use super::proto::{ModelProto, TensorProto, tensor_proto::DataLocation};
use super::walk::tensors_mut;
use crate::base::files::read_regular;
use crate::base::footprint::Footprint;
use crate::base::limits;

/// A model from bytes; tensors share them. External data stays where it is. Errors: [`OnnxError::Decode`].
pub fn decode(bytes: Bytes) -> Result<ModelProto, OnnxError> {
    decode_from(bytes, "model".to_owned())
}

/// A model from bytes that came without a folder, so that no file can be meant. Errors: also [`OnnxError::External`] for a
/// tensor whose elements stand in another file: a runtime would look for it from wherever its process was started, and
/// what it found would be in no key of a session.
pub fn decode_whole(bytes: Bytes) -> Result<ModelProto, OnnxError> {
    let mut model = decode(bytes)?;
    match tensors_mut(&mut model).into_iter().find(|tensor| tensor.data_location() == DataLocation::External) {
        None => Ok(model),
        Some(tensor) => {
            let entry = tensor.external_data.iter().find(|entry| entry.key() == "location");
            let location = entry.map_or("", |entry| entry.value()).to_owned();
            let reason = "a model that is handed over brings no files; load the data into the model before \
                          (`onnx.external_data_helper.load_external_data_for_model(model, folder)`)";
            Err(OnnxError::External { name: tensor.name().to_owned(), location, reason: reason.to_owned() })
        }
    }
}

fn decode_from(bytes: Bytes, place: String) -> Result<ModelProto, OnnxError> {
    let n_bytes = bytes.len();
    ModelProto::decode(bytes).map_err(|source| OnnxError::Decode { place, expected: "ModelProto", n_bytes, source })
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
/// assert!(text.contains("input: name='x' type=dtype('float32') shape=[2]") && text.contains("Relu"), "{text}");
/// assert!(load(&folder.path().join("absent.onnx")).is_err());
/// # Ok::<(), OnnxError>(())
/// ```
pub fn load(path: &Path) -> Result<ModelProto, OnnxError> {
    load_from(read(path)?, path)
}

/// As [`load`], from the bytes that [`read`] gave of the file. Errors: also [`OnnxError::Expands`].
pub fn load_from(bytes: Bytes, path: &Path) -> Result<ModelProto, OnnxError> {
    let mut model = load_alone_from(bytes, path)?;
    read_external(&mut model, path.parent().unwrap_or(Path::new(".")))?;
    Ok(model)
}

/// As [`load_from`], but what stands in other files stays there: none is opened.
pub fn load_alone_from(bytes: Bytes, path: &Path) -> Result<ModelProto, OnnxError> {
    check_footprint(footprint(&bytes), bytes.len(), path)?;
    decode_from(bytes, path.display().to_string())
}

/// Read the elements of every tensor that stands in another file below `folder` into its `raw_data`. A location that is
/// absolute, climbs with `..`, leads out of the folder through a link, or is no plain file is refused.
/// Errors: [`OnnxError::External`].
pub fn read_external(model: &mut ModelProto, folder: &Path) -> Result<(), OnnxError> {
    let mut files: BTreeMap<String, Bytes> = BTreeMap::new();
    let external = |tensor: &&mut TensorProto| tensor.data_location() == DataLocation::External;
    tensors_mut(model).into_iter().filter(external).try_for_each(|tensor| read_one(tensor, folder, &mut files))
}

/// Files, as the model names them, in which elements of its tensors stand.
pub fn external_locations(model: &mut ModelProto) -> BTreeSet<String> {
    let external = tensors_mut(model).into_iter().filter(|tensor| tensor.data_location() == DataLocation::External);
    let entries = external.flat_map(|tensor| &tensor.external_data).filter(|entry| entry.key() == "location");
    entries.map(|entry| entry.value().to_owned()).collect()
}

/// files: those read so far, by location.
fn read_one(tensor: &mut TensorProto, folder: &Path, files: &mut BTreeMap<String, Bytes>) -> Result<(), OnnxError> {
    let entry =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key() == key).map(|entry| entry.value().to_owned());
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
    let Some(end) = offset.checked_add(length).filter(|&end| end <= file.len()) else {
        let n_bytes = file.len();
        return Err(fail(format!(
            "bytes {offset} to {offset}+{length} are asked of a file of {n_bytes}; copy the whole file again"
        )));
    };
    tensor.raw_data = Some(file.slice(offset..end));
    tensor.external_data.clear();
    tensor.data_location = None;
    Ok(())
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
    read_regular(&path, limits::file_bytes()).map(Bytes::from).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => "it is no plain file".to_owned(),
        _ => tell(error),
    })
}

/// Content of a model's or a tensor's file, which may come from anywhere: a pipe or a device is refused, and a file that is
/// larger than the machine's memory. Errors: [`OnnxError::Io`].
pub fn read(path: &Path) -> Result<Bytes, OnnxError> {
    read_regular(path, limits::file_bytes()).map(Bytes::from).map_err(OnnxError::io(path, "read"))
}

/// Whether a file may be decoded. Errors: [`OnnxError::Expands`].
pub(super) fn check_footprint(footprint: Footprint, n_bytes: usize, path: &Path) -> Result<(), OnnxError> {
    let needed = footprint.text_bytes.saturating_add(footprint.n_bytes);
    let limit = n_bytes.saturating_mul(limits::DECODED_FILE_FACTOR).saturating_add(limits::DECODED_FILE_BYTES);
    if needed > limit {
        return Err(OnnxError::Expands { place: path.display().to_string(), n_bytes, needed, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::onnx::proto::{GraphProto, StringStringEntryProto};
    use crate::onnx::{NamedTensor, save};

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

    fn entries(pairs: &[(&str, &str)]) -> Vec<StringStringEntryProto> {
        let entry =
            |&(key, value): &(&str, &str)| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn a_model_that_is_handed_over_has_no_data_in_files() {
        let encoded = |model: &ModelProto| Bytes::from(model.encode_to_vec());
        let whole = model_of(vec![tensor("w", &[1])]);
        assert_eq!(decode_whole(encoded(&whole)).unwrap(), whole);
        let error = decode_whole(encoded(&external(&[("location", "w.bin")]))).unwrap_err().to_string();
        let expected = ["\"w\"", "\"w.bin\"", "load the data into the model"];
        assert!(expected.iter().all(|text| error.contains(text)), "{error}");
    }

    fn external(pairs: &[(&str, &str)]) -> ModelProto {
        model_of(vec![TensorProto {
            name: Some("w".into()),
            dims: vec![4],
            data_type: Some(2),
            data_location: Some(1),
            external_data: entries(pairs),
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
        let (mut outside, mut data) = (model.clone(), Vec::new());
        for tensor in outside.graph.as_mut().unwrap().initializer.iter_mut().skip(1) {
            let raw = tensor.raw_data.take().unwrap();
            let (offset, length) = (data.len().to_string(), raw.len().to_string());
            tensor.data_location = Some(1);
            tensor.external_data = entries(&[("location", "data"), ("offset", &offset), ("length", &length)]);
            data.extend(raw);
        }
        fs::write(folder.path().join("data"), data).unwrap();
        save(&outside, &path).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 400);
        assert_eq!(load(&path).unwrap(), model);
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

    /// Two bytes a node: 8 MB of them would take a gigabyte.
    #[test]
    fn a_small_file_that_decodes_to_much_is_refused_before_it_is_decoded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let nodes = [0x0a, 0].repeat(4 << 20);
        let mut model = vec![0x3a];
        prost::encoding::encode_varint(nodes.len() as u64, &mut model);
        model.extend(nodes);
        fs::write(&path, &model).unwrap();
        let text = load(&path).unwrap_err().to_string();
        assert!(text.contains("model.onnx: 8388613 bytes would take ") && text.contains("at most 1207"), "{text}");
        // Empty strings, of a tensor.
        fs::write(&path, [0x32, 0].repeat(16 << 20)).unwrap();
        let text = crate::onnx::load_tensor(&path).unwrap_err().to_string();
        assert!(text.contains("would take "), "{text}");
    }

    #[test]
    fn pipes_and_devices_are_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            for error in [load(path).unwrap_err(), crate::onnx::load_tensor(path).unwrap_err()] {
                assert!(error.to_string().contains("expected a regular file"), "{error}");
            }
        }
        let error = read_external(&mut external(&[("location", "pipe")]), folder.path()).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{error}");
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
