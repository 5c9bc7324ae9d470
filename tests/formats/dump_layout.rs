//! What a dump holds, byte for byte where it matters, and what happens to one that is there already.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rust_ort::base::ids::{GraphId, StepId};
use rust_ort::compare::{Policy, judge};
use rust_ort::dump::reader::{self, Completeness, Place};
use rust_ort::dump::{CallsToDump, DumpError, EagerValues, GraphRecord, Run, RunSpec, gc, verify};
use rust_ort::onnx::load_tensor;
use rust_ort::tensor::{DType, Shape, SharedTensor, TensorBuf, TensorDesc};
use serde_json::{Value, json};

fn spec(folder: &Path) -> RunSpec {
    RunSpec {
        folder: folder.to_owned(),
        run: "llama".to_owned(),
        clean: false,
        calls: CallsToDump::All,
        run_json: r#"{"torch": "2.13.0"}"#.to_owned(),
        umask: Default::default(),
    }
}

fn record(id: u8, name: &str) -> GraphRecord<'_> {
    GraphRecord {
        graph: GraphId::from_bytes([id; 32]),
        name,
        direction: "forward",
        dynamo_text: "dynamo",
        joint_text: "joint",
        fx_text: "fx",
        parts_json: r#"{"parts": []}"#,
    }
}

fn tensor(value: f32) -> TensorBuf {
    TensorBuf::from_f32([2], &[value, 1.]).unwrap()
}

fn write_step(run: &Run, graph: &str, step: u64) {
    let (weight, input) = (tensor(7.), tensor(step as f32));
    let named = |name: &str, tensor: &'_ TensorBuf| (name.to_owned(), tensor.clone());
    let inputs = [named("w", &weight), named("x", &input)];
    let views: Vec<_> = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.shared())).collect();
    let folder = run.begin_step(graph, 0, StepId(step), &views).unwrap();
    let (reference, candidate) = (tensor(1.), tensor(2.));
    run.references(&folder, &[("y".to_owned(), reference.shared())]);
    run.actuals(&folder, &[("y".to_owned(), candidate.shared())]);
    run.comparison(&folder, &[judge("y", &reference.view(), &candidate.view(), None)], Policy::default());
    run.finish(&folder);
}

fn written(folder: &Path, steps: u64) {
    let run = Run::open(&spec(folder)).unwrap();
    let graph = run.graph(&record(1, "0_0-forward")).unwrap();
    run.part(&graph, 0, b"model", r#"{"values": []}"#).unwrap();
    run.optimized(&graph, 0, b"optimized").unwrap();
    (0..steps).for_each(|step| write_step(&run, &graph, step));
    let report = run.flush();
    assert_eq!((report.lost, report.written), (vec![], 10 + 6 * steps));
}

#[test]
fn a_tensor_file_that_is_longer_than_its_header_says_is_damaged_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1);
    let step = folder.path().join("llama/0_0-forward/part_0/test_data_set_0");
    assert!(verify(&step).unwrap().is_whole());
    let path = step.join("input_0.pb");
    let bytes = fs::read(&path).unwrap();
    for (start, why) in [(bytes.as_slice(), "its header is of a file of"), (&[], "do not begin as a tensor")] {
        fs::remove_file(&path).unwrap();
        fs::write(&path, start).unwrap();
        // Of zeros that are on no disk: reading them would take an hour.
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        let found = verify(&step).unwrap();
        assert!(found.damaged.len() == 1 && found.damaged[0].to_string().contains(why), "{found:?}");
        assert!(found.bytes < 1 << 20);
    }
}

fn listing(folder: &Path) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, list: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(root, &path, list),
                false => list.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    let mut list = Vec::new();
    walk(folder, folder, &mut list);
    list.sort();
    list
}

/// Without its seal, which it has.
fn parse(path: impl AsRef<Path>) -> Value {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let seal = value.as_object_mut().unwrap().remove("seal").unwrap();
    assert_eq!(seal.as_str().unwrap().len(), 64);
    value
}

#[test]
fn the_layout_is_the_documented_one() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1);
    let hash_of = |file: &str| {
        let path = folder.path().join("llama/0_0-forward/part_0/test_data_set_0").join(file);
        format!("tensors/{}.pb", blake3::hash(&fs::read(path).unwrap()).to_hex())
    };
    let mut expected: Vec<String> = [
        "dynamo.txt",
        "files.json",
        "fx.txt",
        "joint.txt",
        "part_0/comparison_0.json",
        "part_0/files.json",
        "part_0/model.onnx",
        "part_0/model.ort.onnx",
        "part_0/provenance.json",
        "part_0/test_data_set_0/actual_0.pb",
        "part_0/test_data_set_0/input_0.pb",
        "part_0/test_data_set_0/input_1.pb",
        "part_0/test_data_set_0/manifest.json",
        "part_0/test_data_set_0/output_0.pb",
        "parts.json",
    ]
    .map(|file| format!("llama/0_0-forward/{file}"))
    .to_vec();
    expected.push("llama/run.json".to_owned());
    expected.extend(["input_0.pb", "input_1.pb", "output_0.pb", "actual_0.pb"].map(hash_of));
    expected.sort();
    assert_eq!(listing(folder.path()), expected);
}

#[test]
fn every_json_names_its_schema_and_keeps_the_clients_fields() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1);
    let graph = folder.path().join("llama/0_0-forward");
    let mut run = parse(folder.path().join("llama/run.json"));
    let id = run.as_object_mut().unwrap().remove("id").unwrap();
    assert_eq!((run, id.as_str().unwrap().len()), (json!({"schema": "rust_ort/run/3", "torch": "2.13.0"}), 32));
    let parts = json!({
        "schema": "rust_ort/parts/2", "graph_id": "01".repeat(32), "name": "0_0-forward", "direction": "forward",
        "parts": [],
    });
    assert_eq!(parse(graph.join("parts.json")), parts);
    let provenance = json!({"schema": "rust_ort/provenance/2", "values": []});
    assert_eq!(parse(graph.join("part_0/provenance.json")), provenance);
    let manifest = parse(graph.join("part_0/test_data_set_0/manifest.json"));
    assert_eq!(manifest["schema"], "rust_ort/data_set/3");
    let first = &manifest["inputs"][0];
    assert_eq!(
        (&first["file"], &first["name"], &first["dtype"], &first["dims"]),
        (&json!("input_0.pb"), &json!("w"), &json!("float32"), &json!([2]),)
    );
    assert_eq!((&manifest["comparison"], &manifest["lost"]), (&json!("comparison_0.json"), &json!([])));
    let comparison = parse(graph.join("part_0/comparison_0.json"));
    assert_eq!(comparison["schema"], "rust_ort/comparison/4");
    let counts = [("match", 0), ("noise", 0), ("tie", 0), ("open_order", 0), ("mismatch", 1), ("not_compared", 0)];
    let counts: serde_json::Map<_, _> =
        counts.into_iter().chain([("failed", 0)]).map(|(kind, n)| (kind.to_owned(), json!(n))).collect();
    assert_eq!(comparison["summary"], json!(counts));
    assert_eq!(comparison["policy"], json!({"given": null, "through": null, "noise_factor": 1.5}));
}

#[test]
fn a_weight_that_stays_equal_is_one_file_however_many_steps_hold_it() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 5);
    let part = folder.path().join("llama/0_0-forward/part_0");
    assert_eq!(fs::metadata(part.join("test_data_set_0/input_0.pb")).unwrap().nlink(), 6);
    // w, y as eager and as ONNX Runtime gave it, and five inputs x.
    assert_eq!(fs::read_dir(folder.path().join("tensors")).unwrap().count(), 8);
}

#[test]
fn every_dtype_and_the_empty_shapes_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    let shapes = [vec![], vec![0], vec![2, 3]].map(|dims| Shape::new(dims).unwrap());
    let mut tensors = Vec::new();
    for &dtype in DType::ALL {
        for shape in &shapes {
            let bytes = (0..shape.len_bytes(dtype)).map(|at| at as u8).collect();
            let desc = TensorDesc { dtype, shape: shape.clone() };
            tensors.push((format!("{dtype}-{shape}"), TensorBuf::new(desc, bytes).unwrap()));
        }
    }
    let views: Vec<(String, SharedTensor<'_>)> = tensors.iter().map(|(name, t)| (name.clone(), t.shared())).collect();
    let step = run.begin_step("g", 0, StepId(0), &views).unwrap();
    for (index, (name, expected)) in tensors.iter().enumerate() {
        let read = load_tensor(&step.path().join(format!("input_{index}.pb"))).unwrap();
        assert_eq!(&read.name, name);
        assert_eq!(&read.view().to_owned(), expected);
    }
}

#[test]
fn inputs_are_on_disk_before_the_run_and_the_set_is_incomplete_until_it_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    let input = tensor(1.);
    let step = run.begin_step("g", 0, StepId(3), &[("x".to_owned(), input.shared())]).unwrap();
    assert!(step.path().join("input_0.pb").is_file());
    let part = folder.path().join("llama/g/part_0");
    let state = |part: &Path| reader::steps(part).unwrap().remove(0).state;
    assert!(matches!(state(&part), Completeness::Incomplete(reason) if reason.contains("no manifest")));
    run.finish(&step);
    run.flush();
    assert_eq!(state(&part), Completeness::Complete);
    fs::remove_file(step.path().join("input_0.pb")).unwrap();
    assert!(matches!(state(&part), Completeness::Incomplete(reason) if reason == "input_0.pb is missing"));
    fs::write(step.path().join("manifest.json"), "{").unwrap();
    assert!(matches!(state(&part), Completeness::Damaged(_)));
}

/// So large that several threads write them.
#[test]
fn inputs_that_are_written_side_by_side_stand_in_the_models_order() {
    const N: usize = 1 << 18;
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    let value = |index: usize| TensorBuf::from_f32([N as i64], &vec![index as f32; N]).unwrap();
    let tensors: Vec<_> = (0..12).map(value).collect();
    let inputs: Vec<_> =
        tensors.iter().enumerate().map(|(index, tensor)| (format!("x{index}"), tensor.shared())).collect();
    for step in 0..2 {
        let folder = run.begin_step("g", 0, StepId(step), &inputs).unwrap();
        for (index, tensor) in tensors.iter().enumerate() {
            let read = load_tensor(&folder.path().join(format!("input_{index}.pb"))).unwrap();
            assert_eq!(
                (read.name.as_str(), read.view().bytes()),
                (format!("x{index}").as_str(), tensor.view().bytes())
            );
        }
        run.finish(&folder);
        assert_eq!(run.flush().lost, Vec::<String>::new());
        let names = |entry: &Value| (entry["name"].clone(), entry["file"].clone());
        let told: Vec<_> =
            parse(folder.path().join("manifest.json"))["inputs"].as_array().unwrap().iter().map(names).collect();
        let expected = |index: usize| (json!(format!("x{index}")), json!(format!("input_{index}.pb")));
        assert_eq!(told, (0..12).map(expected).collect::<Vec<_>>());
    }
    assert_eq!(fs::read_dir(folder.path().join("tensors")).unwrap().count(), 12);
}

#[test]
fn only_the_calls_asked_for_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    for (calls, expected) in
        [(CallsToDump::None, [false, false]), (CallsToDump::First, [true, false]), (CallsToDump::All, [true, true])]
    {
        let run = Run::open(&RunSpec { calls, ..spec(folder.path()) }).unwrap();
        assert_eq!(run.wants("g", 0, StepId(8)), expected[0]);
        run.begin_step("g", 0, StepId(8), &[]).unwrap();
        assert_eq!((run.wants("g", 0, StepId(8)), run.wants("g", 0, StepId(9))), (expected[0], expected[1]));
        assert_eq!(run.wants("g", 1, StepId(9)), calls != CallsToDump::None);
    }
}

#[test]
fn another_graph_of_the_same_name_gets_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    assert_eq!(run.graph(&record(1, "0_0-forward")).unwrap(), "0_0-forward");
    assert_eq!(run.graph(&record(2, "0_0-forward")).unwrap(), "0_0-forward.2");
    assert_eq!(run.graph(&record(1, "0_0-forward")).unwrap(), "0_0-forward");
    drop(run);
    let carried_on = Run::open(&spec(folder.path())).unwrap();
    assert_eq!(carried_on.graph(&record(2, "0_0-forward")).unwrap(), "0_0-forward.2");
    assert_eq!(carried_on.graph(&record(3, "0_0-forward")).unwrap(), "0_0-forward.3");
}

#[test]
fn clean_removes_a_dump_of_ours_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 2);
    let clean = RunSpec { clean: true, ..spec(folder.path()) };
    drop(Run::open(&clean).unwrap());
    assert_eq!(listing(folder.path()), ["llama/run.json"]);

    let theirs = folder.path().join("llama");
    fs::write(theirs.join("run.json"), r#"{"schema": "something else"}"#).unwrap();
    fs::write(theirs.join("thesis.txt"), "years").unwrap();
    for spec in [clean.clone(), spec(folder.path())] {
        let error = Run::open(&spec).err().unwrap();
        assert!(matches!(error, DumpError::NotOurs { .. }), "{error}");
    }
    assert!(theirs.join("thesis.txt").is_file());

    fs::write(theirs.join("run.json"), r#"{"schema": "rust_ort/run/99"}"#).unwrap();
    assert!(matches!(Run::open(&spec(folder.path())), Err(DumpError::OtherVersion { .. })));
    let error = Run::open(&clean).err().unwrap();
    assert!(
        matches!(&error, DumpError::Stranger { stranger, .. } if *stranger == theirs.join("thesis.txt")),
        "{error}"
    );
    fs::remove_file(theirs.join("thesis.txt")).unwrap();
    drop(Run::open(&clean).unwrap());
    assert_eq!(listing(folder.path()), ["llama/run.json"]);
}

#[test]
fn clean_removes_nothing_where_one_thing_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 2);
    let clean = RunSpec { clean: true, ..spec(folder.path()) };
    let run = folder.path().join("llama");
    let part = run.join("0_0-forward/part_0");
    fs::write(part.join(".tmp-4194305-7"), "half").unwrap();
    let strangers = [
        run.join("notes.txt"),
        run.join(".tmp-99999999-draft"),
        run.join("0_0-forward/part_x"),
        part.join("model.onnx.bak"),
        part.join("test_data_set_0/input_0.npy"),
        part.join("test_data_set_0/mine"),
    ];
    for stranger in strangers {
        let is_folder = stranger.extension().is_none() && !stranger.ends_with(".tmp-99999999-draft");
        if is_folder { fs::create_dir(&stranger) } else { fs::write(&stranger, "mine") }.unwrap();
        let before = listing(folder.path());
        let error = Run::open(&clean).err().unwrap();
        assert!(matches!(&error, DumpError::Stranger { stranger: named, .. } if *named == stranger), "{error}");
        assert_eq!(listing(folder.path()), before);
        if is_folder { fs::remove_dir(&stranger) } else { fs::remove_file(&stranger) }.unwrap();
    }
    drop(Run::open(&clean).unwrap());
    assert_eq!(listing(folder.path()), ["llama/run.json"]);
}

#[test]
fn clean_does_not_follow_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    written(elsewhere.path(), 1);
    std::os::unix::fs::symlink(elsewhere.path().join("llama"), folder.path().join("llama")).unwrap();
    assert!(matches!(Run::open(&RunSpec { clean: true, ..spec(folder.path()) }), Err(DumpError::NotOurs { .. })));
    assert!(elsewhere.path().join("llama/run.json").is_file());
}

#[test]
fn a_dump_has_one_writer_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    for clean in [false, true] {
        assert!(matches!(Run::open(&RunSpec { clean, ..spec(folder.path()) }), Err(DumpError::Busy { .. })));
    }
    drop(run);
    assert!(Run::open(&spec(folder.path())).is_ok());
}

#[test]
fn names_and_json_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |run: &str| Run::open(&RunSpec { run: run.to_owned(), ..spec(folder.path()) });
    assert!(matches!(open("../escape"), Err(DumpError::BadName { .. })));
    assert!(matches!(open("tensors"), Err(DumpError::BadName { .. })));
    let bad = RunSpec { run_json: "{".to_owned(), ..spec(folder.path()) };
    assert!(matches!(Run::open(&bad), Err(DumpError::BadJson { .. })));
    let run = Run::open(&spec(folder.path())).unwrap();
    assert!(matches!(run.graph(&record(1, "a/b")), Err(DumpError::BadName { .. })));
    assert!(matches!(run.part("..", 0, b"", ""), Err(DumpError::BadName { .. })));
    assert!(matches!(run.begin_step("/etc", 0, StepId(0), &[]), Err(DumpError::BadName { .. })));
    assert_eq!(listing(folder.path()), ["llama/run.json"]);
}

#[test]
fn a_step_written_again_holds_nothing_of_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    write_step(&run, "g", 0);
    run.flush();
    let input = tensor(5.);
    let step = run.begin_step("g", 0, StepId(0), &[("x".to_owned(), input.shared())]).unwrap();
    run.finish(&step);
    run.flush();
    let part = folder.path().join("llama/g/part_0");
    assert_eq!(listing(&part), ["test_data_set_0/input_0.pb", "test_data_set_0/manifest.json"]);
}

#[test]
fn only_the_newest_steps_stay_when_asked_and_their_tensors_go_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    (0..6).for_each(|step| write_step(&run, "g", step));
    drop(run);
    assert_eq!(gc(folder.path(), Some(2), false).unwrap().steps, 4);
    let steps = |folder: &Path| {
        let steps = reader::steps(&folder.join("llama/g/part_0")).unwrap();
        steps.into_iter().map(|step| step.step).collect::<Vec<_>>()
    };
    assert_eq!(steps(folder.path()), [4, 5]);
    assert_eq!(fs::read_dir(folder.path().join("tensors")).unwrap().count(), 5);
    assert!(!folder.path().join("llama/g/part_0/comparison_3.json").exists());
}

#[test]
fn gc_removes_old_steps_unheld_tensors_and_leftovers_but_no_incomplete_step() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 4);
    let part = folder.path().join("llama/0_0-forward/part_0");
    fs::remove_file(part.join("test_data_set_0/manifest.json")).unwrap();
    let leftover = folder.path().join("tensors/.tmp-4194305-0");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::create(&leftover).unwrap().set_modified(old).unwrap();
    let fresh = folder.path().join("tensors/.tmp-4194305-1");
    fs::write(&fresh, "").unwrap();
    let draft = folder.path().join("llama/.tmp-4194305-draft");
    fs::File::create(&draft).unwrap().set_modified(old).unwrap();
    fs::remove_dir_all(part.join("test_data_set_3")).unwrap();
    let removed = gc(folder.path(), Some(1), false).unwrap();
    // Step 1 goes, its tensor with it; so does step 3's, which nothing holds any more.
    assert_eq!((removed.steps, removed.tensors, removed.leftovers), (1, 2, 1));
    let steps: Vec<_> = reader::steps(&part).unwrap().iter().map(|step| step.step).collect();
    assert_eq!(steps, [0, 2]);
    assert!(!leftover.exists() && fresh.exists() && draft.exists());
    assert_eq!(gc(folder.path(), None, false).unwrap(), Default::default());
}

/// Eager's values of a call as a comparison of nodes writes them: two batches, then the data set, then the end.
fn write_values(run: &Run, step: u64) {
    let values = run.begin_values("g", 0, StepId(step)).unwrap();
    let (weight, first, second) = (tensor(7.), tensor(10. + step as f32), tensor(20. + step as f32));
    let named = |name: &str, tensor: &'_ TensorBuf| (name.to_owned(), tensor.clone());
    for (name, node) in [("mm", &first), ("relu", &second)] {
        let (inputs, nodes) = ([named("w", &weight)], [named(name, node)]);
        let shared = |list: &'_ [(String, TensorBuf)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let of = EagerValues {
            inputs: shared(&inputs).into_iter().zip(inputs.iter().map(|(_, tensor)| tensor.shared())).collect(),
            nodes: shared(&nodes).into_iter().zip(nodes.iter().map(|(_, tensor)| tensor.shared())).collect(),
        };
        run.values(&values, &of);
    }
    write_step(run, "g", step);
    run.finish_values(values);
}

#[test]
fn eagers_values_are_files_by_name_and_whole_with_their_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    let part = folder.path().join("llama/g/part_0");
    let values = run.begin_values("g", 0, StepId(0)).unwrap();
    run.values(&values, &EagerValues { nodes: vec![("mm".to_owned(), tensor(1.).shared())], ..Default::default() });
    assert!(part.join("values_0/mm.pb").is_file());
    assert_eq!(reader::values(&part, 0).unwrap(), None, "no manifest yet");
    drop(values);
    write_values(&run, 0);
    assert_eq!(run.flush().lost, Vec::<String>::new());
    let found = reader::values(&part, 0).unwrap().expect("whole");
    let expected = [("mm", 10.), ("relu", 20.), ("w", 7.)];
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, value) in expected {
        assert_eq!(found[name].path, part.join(format!("values_0/{name}.pb")));
        let read = found[name].load().unwrap();
        assert_eq!((read.name.as_str(), read.view().to_owned()), (name, tensor(value)));
    }
    let manifest = parse(part.join("values_0/manifest.json"));
    assert_eq!(
        (&manifest["schema"], &manifest["step"], &manifest["lost"]),
        (&json!("rust_ort/values/3"), &json!(0), &json!([]))
    );
    let names = |what: &str| manifest[what].as_array().unwrap().iter().map(|e| e["name"].clone()).collect::<Vec<_>>();
    assert_eq!((names("inputs"), names("nodes")), (vec![json!("w")], vec![json!("mm"), json!("relu")]));
    // The same weight is an input of the data set: one file.
    assert_eq!(fs::metadata(part.join("values_0/w.pb")).unwrap().nlink(), 3);
    assert_eq!(reader::values(&part, 1).unwrap(), None);
    fs::remove_file(part.join("values_0/mm.pb")).unwrap();
    assert_eq!(reader::values(&part, 0).unwrap(), None, "a file is missing");
    fs::write(part.join("values_0/manifest.json"), "{").unwrap();
    assert!(reader::values(&part, 0).is_err());
}

#[test]
fn a_value_whose_name_is_no_file_name_is_lost_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    let values = run.begin_values("g", 0, StepId(0)).unwrap();
    let value = tensor(1.);
    let nodes = ["../mm", "relu"].map(|name| (name.to_owned(), value.shared()));
    run.values(&values, &EagerValues { nodes: nodes.into(), ..Default::default() });
    run.finish_values(values);
    let lost = run.flush().lost;
    assert!(matches!(&lost[..], [lost] if lost.contains("\"../mm\"")), "{lost:?}");
    let part = folder.path().join("llama/g/part_0");
    assert_eq!(listing(&part), ["values_0/manifest.json", "values_0/relu.pb"]);
    assert_eq!(reader::values(&part, 0).unwrap(), None, "not all of it is there");
}

#[test]
fn eagers_values_go_with_their_step_and_disturb_no_other_reader() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::open(&spec(folder.path())).unwrap();
    (0..3).for_each(|step| write_values(&run, step));
    run.flush();
    let part = folder.path().join("llama/g/part_0");
    let steps = |part: &Path| reader::steps(part).unwrap().into_iter().map(|step| step.step).collect::<Vec<_>>();
    assert_eq!(steps(&part), [0, 1, 2]);
    // A call of the same number without values.
    write_step(&run, "g", 1);
    drop(run);
    assert!(!part.join("values_1").exists() && part.join("values_2").exists());
    fs::write(part.join("values_0/notes.txt"), "mine").unwrap();
    let removed = gc(folder.path(), Some(1), false).unwrap();
    assert_eq!((removed.steps, removed.kept.len()), (1, 1), "{removed:?}");
    fs::remove_file(part.join("values_0/notes.txt")).unwrap();
    assert_eq!(gc(folder.path(), Some(1), false).unwrap().steps, 1);
    assert_eq!(steps(&part), [2]);
    assert!(!part.join("values_0").exists() && part.join("values_2/manifest.json").is_file());
    // w, mm and relu of step 2; x, the reference and the candidate of its data set.
    assert_eq!(fs::read_dir(folder.path().join("tensors")).unwrap().count(), 6);
    drop(Run::open(&RunSpec { clean: true, ..spec(folder.path()) }).unwrap());
    assert_eq!(listing(folder.path()), ["llama/run.json"]);
}

#[test]
fn every_place_of_a_dump_is_found() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), 1);
    let at = |path: &str| reader::find(&folder.path().join(path));
    assert!(matches!(at(""), Ok(Place::Folder(runs)) if runs.len() == 1));
    assert!(matches!(at("llama"), Ok(Place::Run(run)) if run.graphs.len() == 1));
    assert!(matches!(at("llama/0_0-forward"), Ok(Place::Graph(graph)) if graph.parts.len() == 1));
    assert!(matches!(at("llama/0_0-forward/part_0"), Ok(Place::Part(part)) if part.steps.len() == 1));
    let step = "llama/0_0-forward/part_0/test_data_set_0";
    assert!(matches!(at(step), Ok(Place::Step(step)) if (step.n_inputs, step.n_actuals) == (2, 1)));
    assert!(matches!(at("llama/0_0-forward/part_0/model.onnx"), Ok(Place::Model(_))));
    assert!(matches!(at(&format!("{step}/input_0.pb")), Ok(Place::Tensor(_))));
    assert!(matches!(at("tensors"), Err(DumpError::NoDump { .. })));
    assert!(matches!(at("nothing"), Err(DumpError::Io { .. })));
}
