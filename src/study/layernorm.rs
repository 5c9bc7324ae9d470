//! LayerNormalization → MatMul → Add by one runtime, by the other, and by both mixed: which kernel makes the difference.
//!
//! Made again: onnx-diagnostic's example plot_layer_norm_discrepancies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::StudyError;
use super::finding::Finding;
use super::graph::{self, model as model_of, node, value, with_int};
use super::matrix::max_diff;
use super::number::{round, tensor};
use super::plot::{Panel, Plot, Series};
use super::random::Random;
use super::run::{Runtimes, Setup, named, only};
use crate::blame::{Answer, Case, Contribution, Parts, Progress, Settings as BlameSettings, Strategy, Values, examine};
use crate::compare::{MaxDiff, Tolerance, significant};
use crate::dump::{NODES_SCHEMA, NodeTable};
use crate::onnx;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::protocol::message::Optimization;
use crate::runtime::{self, leased};
use crate::tensor::{DType, TensorBuf, TensorView};

const INPUTS: [&str; 5] = ["X", "scale", "bias", "weights", "bias2"];
/// Inputs of the first node.
const HEAD: [&str; 3] = ["X", "scale", "bias"];
/// Inputs of the two others.
const TAIL: [&str; 3] = ["norm", "weights", "bias2"];
/// What the example was run on.
const SEED: &str = "onnx-diagnostic's plot_layer_norm_discrepancies on a CPU that it does not name";
/// For one examination.
const BUDGET: Duration = Duration::from_secs(120);

/// Sizes and kinds of the numbers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of X.
    pub batch: usize,
    /// Rows of each of the batch.
    pub rows: usize,
    /// Length of a row.
    pub size: usize,
    /// float32, float16, bfloat16.
    pub dtypes: Vec<DType>,
    /// Of the numbers.
    pub seed: u64,
}

impl Settings {
    /// The example's on a CPU: the first 2 of 32.
    pub const BATCH: usize = 2;
    /// The example's.
    pub const ROWS: usize = 1024;
    /// The example's.
    pub const SIZE: usize = 1152;
}

/// The whole study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// What it ran on.
    pub setup: Setup,
    /// Shape of X.
    pub shape: [usize; 3],
    /// By dtype.
    pub parts: Vec<Part>,
    /// The example's, and whether they hold here.
    pub findings: Vec<Finding>,
}

/// What was found of a dtype. Everything is None, or empty, where libtorch was not run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Of the numbers.
    pub dtype: DType,
    /// We had every node of ONNX Runtime's compute in float32 and round: its CPU provider has no kernels of bfloat16.
    pub widened: bool,
    /// ONNX Runtime (candidate) against libtorch (reference).
    pub difference: Option<MaxDiff>,
    /// LayerNormalization by one, MatMul and Add by the other.
    pub mixed: Vec<Mixed>,
    /// Who is to blame, by the command `blame`'s own means; the reference is libtorch's.
    pub blamed: Vec<Blamed>,
}

/// The model by two runtimes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mixed {
    /// "ORT-TORCH": LayerNormalization by ONNX Runtime, the rest by libtorch; "TORCH-ORT": the other way around.
    pub model: String,
    /// Against ONNX Runtime alone.
    pub diff_ort: Option<MaxDiff>,
    /// Against libtorch alone.
    pub diff_torch: Option<MaxDiff>,
}

/// An examination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Blamed {
    /// What counts as different: "default", by dtype, or "exact": every bit.
    pub tolerance: String,
    /// What it came to.
    pub answer: Answer,
}

/// The example's model. X [a, b, c], scale, bias, bias2 [c], weights [c, c] → Z [a, b, c].
pub fn model(dtype: DType) -> ModelProto {
    let all = ["a", "b", "c"];
    let graph = GraphProto {
        name: Some("layer_norm_matmul_add".to_owned()),
        node: vec![
            with_int(node("LayerNormalization", &HEAD, "norm"), "axis", -1),
            node("MatMul", &["norm", "weights"], "mm"),
            node("Add", &["mm", "bias2"], "Z"),
        ],
        input: vec![
            value("X", dtype, &all),
            value("scale", dtype, &["c"]),
            value("bias", dtype, &["c"]),
            value("weights", dtype, &["c", "c"]),
            value("bias2", dtype, &["c"]),
        ],
        output: vec![value("Z", dtype, &all)],
        value_info: vec![value("norm", dtype, &all), value("mm", dtype, &all)],
        ..GraphProto::default()
    };
    model_of(18, 9, graph)
}

/// The example's numbers, in the model's order: float16 ones, uniform in 0..1, X in −60..60; then in the dtype.
fn feeds(settings: &Settings, dtype: DType) -> Result<Vec<TensorBuf>, StudyError> {
    let Settings { batch, rows, size, seed, .. } = *settings;
    let mut random = Random::new(seed);
    let half = |value: f32| round(value, DType::F16);
    let mut uniform = |n: usize| -> Vec<f32> { (0..n).map(|_| half(random.uniform() as f32)).collect() };
    let x: Vec<f32> = uniform(batch * rows * size);
    let x: Vec<f32> = x.into_iter().map(|value| round(round(value - 0.5, DType::F16) * 120., DType::F16)).collect();
    let mut all = vec![tensor(dtype, &[batch, rows, size], &x)?];
    for dims in [&[size][..], &[size], &[size, size], &[size]] {
        all.push(tensor(dtype, dims, &uniform(dims.iter().product()))?);
    }
    Ok(all)
}

/// Makes the study. `done`: told of each part. Errors: [`StudyError`].
pub fn study(runtimes: &Runtimes<'_>, settings: &Settings, done: &mut dyn FnMut()) -> Result<Study, StudyError> {
    let mut parts = Vec::new();
    for &dtype in &settings.dtypes {
        parts.push(part(runtimes, settings, dtype)?);
        done();
    }
    let findings = findings(&parts);
    let shape = [settings.batch, settings.rows, settings.size];
    Ok(Study { setup: runtimes.setup(settings.seed), shape, parts, findings })
}

fn part(runtimes: &Runtimes<'_>, settings: &Settings, dtype: DType) -> Result<Part, StudyError> {
    let exported = model(dtype);
    let tensors = feeds(settings, dtype)?;
    let views: Vec<TensorView<'_>> = tensors.iter().map(TensorBuf::view).collect();
    let ran = runtimes.on_onnxruntime(&exported, dtype, Optimization::All, &views)?;
    let widened = ran.widened;
    let ort = only("layernorm", ran.outputs)?;
    let Some(torch) = runtimes.on_libtorch(&exported, &views)? else {
        return Ok(Part { dtype, widened, difference: None, mixed: Vec::new(), blamed: Vec::new() });
    };
    let torch = only("layernorm", torch)?;
    let (head, tail) = (onnx::cut(&exported, &HEAD, &["norm"])?, onnx::cut(&exported, &TAIL, &["Z"])?);
    let on_ort = |model: &ModelProto, feeds: &[TensorView<'_>]| {
        only("a half", runtimes.on_onnxruntime(model, dtype, Optimization::All, feeds)?.outputs)
    };
    let on_torch = |model: &ModelProto, feeds: &[TensorView<'_>]| {
        only("a half", runtimes.on_libtorch(model, feeds)?.unwrap_or_default())
    };
    let by_ort = on_ort(&head, &views[..3])?;
    let by_torch = on_torch(&head, &views[..3])?;
    let ort_torch = on_torch(&tail, &[by_ort.view(), views[3], views[4]])?;
    let torch_ort = on_ort(&tail, &[by_torch.view(), views[3], views[4]])?;
    let mixed = |model: &str, got: &TensorBuf| Mixed {
        model: model.to_owned(),
        diff_ort: max_diff(&ort, got),
        diff_torch: max_diff(&torch, got),
    };
    Ok(Part {
        dtype,
        widened,
        difference: max_diff(&torch, &ort),
        mixed: vec![mixed("ORT-TORCH", &ort_torch), mixed("TORCH-ORT", &torch_ort)],
        blamed: blamed(runtimes, &exported, &tensors)?,
    })
}

/// Asks the room that the command `blame` asks, with libtorch's values of every node as what is right.
fn blamed(runtimes: &Runtimes<'_>, exported: &ModelProto, feeds: &[TensorBuf]) -> Result<Vec<Blamed>, StudyError> {
    let mut with_nodes = exported.clone();
    if let Some(graph) = &mut with_nodes.graph {
        graph.output.splice(0..0, graph.value_info.clone());
    }
    let views: Vec<TensorView<'_>> = feeds.iter().map(TensorBuf::view).collect();
    let nodes = runtimes.on_libtorch(&with_nodes, &views)?.unwrap_or_default();
    let mut known = named(&INPUTS, feeds);
    known.extend(named(&["norm", "mm", "Z"], &nodes));
    let spec = runtimes.spec(Optimization::All);
    let mut found = Vec::new();
    for (name, tolerance) in [("default", None), ("exact", Some(Tolerance::EXACT))] {
        let mut case = Case::new(Parts {
            model: exported.clone(),
            named_values: graph::values(exported),
            described: Default::default(),
            spec: spec.clone(),
            judging: None,
            tolerance,
            feeds: named(&INPUTS, feeds),
            actuals: Vec::new(),
            values: Values::held(known.clone()).into(),
            table: NodeTable {
                schema: NODES_SCHEMA.to_owned(),
                run: String::new(),
                graph: "layernorm".to_owned(),
                part: 0,
                step: 0,
                plain: Vec::new(),
                nodes: Vec::new(),
            },
        })?;
        // As a part of a graph would have run.
        let part = case.part(case.model.clone(), case.named_values.clone(), spec.clone());
        let session = runtime::session(runtimes.onnxruntime, &part)?;
        case.actuals = named(&["Z"], &session.fetch(&leased(&views)?)?.0);
        // Each node's own error is asked for: bisection would stop at the last that hides those before it.
        let settings = BlameSettings { strategy: Some(Strategy::Linear), output: None, budget: BUDGET, follow: false };
        let answer = examine(&case, runtimes.onnxruntime, &settings, &[], &mut Silent)?;
        found.push(Blamed { tolerance: name.to_owned(), answer });
    }
    Ok(found)
}

struct Silent;

impl Progress for Silent {
    fn at(&mut self, _done: usize, _of: usize) {}
    fn found(&mut self, _contribution: &Contribution) {}
}

impl Study {
    /// The discrepancies as the example draws them: of the whole models, and of the mixed ones.
    pub fn plot(&self) -> Plot {
        let abs = |diff: &Option<MaxDiff>| diff.as_ref().map(|diff| diff.abs);
        let panel = |title: &str, series: Vec<(&str, Vec<Option<f64>>)>| Panel {
            title: title.to_owned(),
            y_label: "max |difference|".to_owned(),
            categories: self.parts.iter().map(|part| part.dtype.to_string()).collect(),
            log_y: true,
            series: series.into_iter().enumerate().map(|(at, (label, values))| points(at, label, &values)).collect(),
            ..Panel::default()
        };
        let of = |model: &str, diff: fn(&Mixed) -> &Option<MaxDiff>| {
            let found = |part: &Part| abs(diff(part.mixed.iter().find(|mixed| mixed.model == model)?));
            self.parts.iter().map(found).collect::<Vec<_>>()
        };
        let whole = self.parts.iter().map(|part| abs(&part.difference)).collect();
        let mixed = vec![
            ("ORT-TORCH, from ort", of("ORT-TORCH", |mixed| &mixed.diff_ort)),
            ("ORT-TORCH, from torch", of("ORT-TORCH", |mixed| &mixed.diff_torch)),
            ("TORCH-ORT, from ort", of("TORCH-ORT", |mixed| &mixed.diff_ort)),
            ("TORCH-ORT, from torch", of("TORCH-ORT", |mixed| &mixed.diff_torch)),
        ];
        Plot {
            title: "LayerNorm(X) @ W + B".to_owned(),
            panels: vec![
                panel("ORT against torch", vec![("ort, from torch", whole)]),
                panel("one kernel of the other runtime", mixed),
            ],
        }
    }
}

/// A value a category, beside those of other series, or one would hide the other.
fn points(series: usize, label: &str, values: &[Option<f64>]) -> Series {
    let shift = series as f64 * 0.06;
    let known = values.iter().enumerate().filter_map(|(at, value)| Some((at as f64 + shift, (*value)?)));
    Series { label: label.to_owned(), points: known.collect() }
}

fn text(value: f64) -> String {
    significant(value, 4)
}

fn findings(parts: &[Part]) -> Vec<Finding> {
    let of = |dtype: DType| parts.iter().find(|part| part.dtype == dtype);
    let difference = |dtype| of(dtype)?.difference.as_ref();
    let mixed = |dtype, model: &str| -> Option<(f64, f64)> {
        let mixed = of(dtype)?.mixed.iter().find(|mixed| mixed.model == model)?;
        Some((mixed.diff_ort.as_ref()?.abs, mixed.diff_torch.as_ref()?.abs))
    };
    let mut found = vec![
        Finding::new(
            "float32: the two runtimes differ, by less than 0.001 everywhere",
            (SEED, "abs 1.526e-4, 1484455 of 2359296 above 0, 2032 above 1e-4, none above 1e-3"),
            difference(DType::F32).map(|diff| {
                let [differ, above, clearly, ..] = diff.rep.0;
                let here = format!("abs {}, {differ} of {} above 0, {above} above 1e-4", text(diff.abs), diff.n);
                (format!("{here}, {clearly} above 1e-3"), differ > 0 && clearly == 0)
            }),
        ),
        Finding::new(
            "float16: where they differ, it is by a whole step of float16: more than 0.1",
            (SEED, "abs 0.25, 585826 of 2359296 above 0, as many above 0.1"),
            difference(DType::F16).map(|diff| {
                let [differ, _, _, _, whole, ..] = diff.rep.0;
                let here = format!("abs {}, {differ} of {} above 0, {whole} above 0.1", text(diff.abs), diff.n);
                (here, differ > 0 && differ == whole)
            }),
        ),
        Finding::new(
            "the discrepancy is higher for float16 than for float32",
            (SEED, "0.25 against 1.526e-4"),
            difference(DType::F16)
                .zip(difference(DType::F32))
                .map(|(f16, f32)| (format!("{} against {}", text(f16.abs), text(f32.abs)), f16.abs > f32.abs)),
        ),
    ];
    for (dtype, [first, second]) in [
        (
            DType::F32,
            ["9.155e-5 from libtorch, 1.526e-4 from ONNX Runtime", "0.0188 from libtorch, 0.0188 from ONNX Runtime"],
        ),
        (DType::F16, ["0.5 from libtorch, 0.25 from ONNX Runtime", "0.5 from libtorch, 0.25 from ONNX Runtime"]),
    ] {
        let here = |(ort, torch): (f64, f64)| format!("{} from libtorch, {} from ONNX Runtime", text(torch), text(ort));
        found.push(Finding::new(
            format!("{dtype}: ONNX Runtime's LayerNormalization in the place of libtorch's changes what comes out"),
            (SEED, first),
            mixed(dtype, "ORT-TORCH").map(|(ort, torch)| (here((ort, torch)), torch > 0.)),
        ));
        found.push(Finding::new(
            format!("{dtype}: ONNX Runtime's MatMul in the place of libtorch's changes what comes out"),
            (SEED, format!("{second} (there Add stays libtorch's)")),
            mixed(dtype, "TORCH-ORT").map(|(ort, torch)| (here((ort, torch)), torch > 0.)),
        ));
    }
    found.push(Finding::new(
        "float32: with ONNX Runtime's MatMul alone it is a hundred times what the two whole models differ by",
        (SEED, "0.0188 against 1.526e-4"),
        mixed(DType::F32, "TORCH-ORT").zip(difference(DType::F32)).map(|((_, torch), whole)| {
            (format!("{} against {}", text(torch), text(whole.abs)), torch > 50. * whole.abs)
        }),
    ));
    found
}

#[cfg(test)]
mod tests {
    use super::super::number::values;
    use super::*;

    #[test]
    fn the_model_is_cut_between_its_first_two_nodes() {
        let model = model(DType::F16);
        let (head, tail) = (onnx::cut(&model, &HEAD, &["norm"]).unwrap(), onnx::cut(&model, &TAIL, &["Z"]).unwrap());
        let ops = |model: &ModelProto| -> Vec<String> {
            model.graph.iter().flat_map(|graph| &graph.node).map(|node| node.op_type().to_owned()).collect()
        };
        assert_eq!(
            (ops(&head), ops(&tail)),
            (vec!["LayerNormalization".to_owned()], vec!["MatMul".to_owned(), "Add".to_owned()])
        );
        assert!(tail.graph.unwrap().input.iter().all(|input| input.r#type.is_some()));
    }

    #[test]
    fn the_numbers_are_float16_whatever_the_type() {
        let settings = Settings { batch: 1, rows: 2, size: 8, dtypes: Vec::new(), seed: 3 };
        let [wide, half] = [DType::F32, DType::F16].map(|dtype| feeds(&settings, dtype).unwrap());
        assert_eq!((wide.len(), half.len()), (5, 5));
        for (wide, half) in wide.iter().zip(&half) {
            assert_eq!(values(wide), values(half));
        }
        assert!(values(&wide[0]).iter().all(|x| x.abs() <= 60.) && values(&wide[3]).len() == 64);
    }
}
