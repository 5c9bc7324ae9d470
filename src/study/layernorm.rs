//! LayerNormalization → MatMul → Add by one runtime, by the other, and by both mixed: which kernel makes the difference.
//!
//! Made again: onnx-diagnostic's example plot_layer_norm_discrepancies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::StudyError;
use super::finding::Finding;
use super::graph::{self, model as model_of, node, value, with_int};
use super::matrix::max_diff;
use super::number::{Number, round, tensor, tf32, values};
use super::plot::{Form, Panel, Plot, Series};
use super::random::Random;
use super::run::{Runtimes, Setup, named, only};
use super::sums::tensor_core_product;
use crate::blame::{Answer, Case, Contribution, Parts, Progress, Settings as BlameSettings, Strategy, Values, examine};
use crate::compare::{MaxDiff, Tolerance, significant};
use crate::dump::{NODES_SCHEMA, NodeTable};
use crate::onnx;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::protocol::message::{CPU_PROVIDER, CUDA_PROVIDER, Optimization};
use crate::runtime::{self, leased};
use crate::tensor::{DType, TensorBuf, TensorView};

const INPUTS: [&str; 5] = ["X", "scale", "bias", "weights", "bias2"];
/// Inputs of the first node.
const HEAD: [&str; 3] = ["X", "scale", "bias"];
/// What the example was run on.
const SEED: &str = "onnx-diagnostic's plot_layer_norm_discrepancies on a CPU that it does not name";
/// What it says of a CPU or of CUDA, and runs on CUDA: its evaluator hands the kernels of ONNX Runtime no device.
const SEED_CUDA: &str = "onnx-diagnostic's plot_layer_norm_discrepancies on an NVIDIA GPU that it does not name; its \
                         kernels of ONNX Runtime, which its evaluator hands no device, run there in the rows of a CPU, too";
/// By each runtime alone; LayerNormalization by ONNX Runtime and the rest by libtorch; MatMul alone by ONNX Runtime.
pub const MODELS: [&str; 4] = ["TORCH", "ORT", "ORT-TORCH", "TORCH-ORT"];
/// libtorch, the operands of the product rounded to TF32 and added in float32.
pub const TORCH_TF32: &str = "TORCH-TF32";
/// The same by ONNX Runtime, as its CUDA provider runs the whole model.
pub const ORT_TF32: &str = "ORT-TF32";
/// libtorch, the product as tensor cores compute it: their sums are cut off, too.
pub const TORCH_CUT: &str = "TORCH-TF32, cut";
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
    /// [`MODELS`]; of float32 those of TF32, too.
    pub mixed: Vec<Mixed>,
    /// Who is to blame, by the command `blame`'s own means; the reference is libtorch's.
    pub blamed: Vec<Blamed>,
}

/// The model by two runtimes, or with another product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mixed {
    /// Its label.
    pub model: String,
    /// Against ONNX Runtime alone.
    pub diff_ort: Option<MaxDiff>,
    /// Against libtorch alone.
    pub diff_torch: Option<MaxDiff>,
    /// Against [`ORT_TF32`]; float32 only.
    pub diff_tf32: Option<MaxDiff>,
    /// Mean of what comes out.
    pub mean: Number,
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
    let shape = [settings.batch, settings.rows, settings.size];
    let as_claimed = shape == [Settings::BATCH, Settings::ROWS, Settings::SIZE];
    let mut findings = Finding::judged(findings(&parts), as_claimed && runtimes.provider == CPU_PROVIDER);
    findings.extend(Finding::judged(of_tf32(&parts, runtimes.provider == CUDA_PROVIDER), as_claimed));
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
    let mixed = mixed(&Kernels::of(runtimes, &exported, dtype)?, &tensors, &ort, &torch)?;
    let difference = max_diff(&torch, &ort);
    Ok(Part { dtype, widened, difference, mixed, blamed: blamed(runtimes, &exported, &tensors)? })
}

/// The model's three nodes, each by either runtime.
struct Kernels<'a> {
    runtimes: &'a Runtimes<'a>,
    dtype: DType,
    /// LayerNormalization, MatMul, Add.
    nodes: [ModelProto; 3],
}

/// Who runs a node.
#[derive(Clone, Copy)]
enum By {
    Ort,
    Torch,
}

impl<'a> Kernels<'a> {
    fn of(runtimes: &'a Runtimes<'a>, exported: &ModelProto, dtype: DType) -> Result<Self, StudyError> {
        Ok(Self { runtimes, dtype, nodes: nodes(exported)? })
    }

    fn run(&self, by: By, node: usize, feeds: &[TensorView<'_>]) -> Result<TensorBuf, StudyError> {
        let model = &self.nodes[node];
        let outputs = match by {
            By::Ort => self.runtimes.on_onnxruntime(model, self.dtype, Optimization::All, feeds)?.outputs,
            By::Torch => self.runtimes.on_libtorch(model, feeds)?.unwrap_or_default(),
        };
        only("a node", outputs)
    }

    fn product_and_sum(&self, by: [By; 2], norm: &TensorBuf, tail: &[TensorBuf; 2]) -> Result<TensorBuf, StudyError> {
        let product = self.run(by[0], 1, &[norm.view(), tail[0].view()])?;
        self.run(by[1], 2, &[product.view(), tail[1].view()])
    }
}

/// The example's model, a model a node.
fn nodes(exported: &ModelProto) -> Result<[ModelProto; 3], StudyError> {
    Ok([
        onnx::cut(exported, &HEAD, &["norm"])?,
        onnx::cut(exported, &["norm", "weights"], &["mm"])?,
        onnx::cut(exported, &["mm", "bias2"], &["Z"])?,
    ])
}

/// The table of models. ort, torch: what the whole model gives by each runtime.
fn mixed(
    kernels: &Kernels<'_>,
    feeds: &[TensorBuf],
    ort: &TensorBuf,
    torch: &TensorBuf,
) -> Result<Vec<Mixed>, StudyError> {
    let head: Vec<TensorView<'_>> = feeds[..3].iter().map(TensorBuf::view).collect();
    let [by_ort, by_torch] = [kernels.run(By::Ort, 0, &head)?, kernels.run(By::Torch, 0, &head)?];
    let tail = [feeds[3].clone(), feeds[4].clone()];
    let ort_torch = kernels.product_and_sum([By::Torch; 2], &by_ort, &tail)?;
    let torch_ort = kernels.product_and_sum([By::Ort, By::Torch], &by_torch, &tail)?;
    let mut got: Vec<(&str, TensorBuf)> =
        MODELS.into_iter().zip([torch.clone(), ort.clone(), ort_torch, torch_ort]).collect();
    if kernels.dtype == DType::F32 {
        let rounded = [rounded_to_tf32(&feeds[3])?, tail[1].clone()];
        let [by_ort, by_torch] = [rounded_to_tf32(&by_ort)?, rounded_to_tf32(&by_torch)?];
        got.push((TORCH_TF32, kernels.product_and_sum([By::Torch; 2], &by_torch, &rounded)?));
        got.push((ORT_TF32, kernels.product_and_sum([By::Ort; 2], &by_ort, &rounded)?));
        let product = by_tensor_cores(&by_torch, &rounded[0])?;
        got.push((TORCH_CUT, kernels.run(By::Torch, 2, &[product.view(), rounded[1].view()])?));
    }
    let tf32 = got.iter().find(|(model, _)| *model == ORT_TF32).map(|(_, got)| got.clone());
    let row = |(model, got): &(&str, TensorBuf)| Mixed {
        model: (*model).to_owned(),
        diff_ort: max_diff(ort, got),
        diff_torch: max_diff(torch, got),
        diff_tf32: tf32.as_ref().and_then(|tf32| max_diff(tf32, got)),
        mean: mean(got).into(),
    };
    Ok(got.iter().map(row).collect())
}

fn mean(tensor: &TensorBuf) -> f64 {
    let all = values(tensor);
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

fn floats(tensor: &TensorBuf) -> Vec<f32> {
    values(tensor).into_iter().map(|value| value as f32).collect()
}

fn dims(tensor: &TensorBuf) -> Vec<usize> {
    tensor.desc().shape.dims().iter().map(|&dim| dim as usize).collect()
}

/// Of float32.
fn rounded_to_tf32(values: &TensorBuf) -> Result<TensorBuf, StudyError> {
    let rounded: Vec<f32> = floats(values).into_iter().map(tf32).collect();
    Ok(tensor(DType::F32, &dims(values), &rounded)?)
}

/// norm [a, b, c], weights [c, c] → [a, b, c], of float32.
fn by_tensor_cores(norm: &TensorBuf, weights: &TensorBuf) -> Result<TensorBuf, StudyError> {
    let size = dims(weights).last().copied().unwrap_or_default();
    let product = tensor_core_product(&floats(norm), &floats(weights), size, size);
    Ok(tensor(DType::F32, &dims(norm), &product)?)
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
            form: Form::Bars,
            series: series.into_iter().map(|(label, values)| points(label, &values)).collect(),
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
            ("TORCH-TF32, from torch", of(TORCH_TF32, |mixed| &mixed.diff_torch)),
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

/// A value a category.
fn points(label: &str, values: &[Option<f64>]) -> Series {
    let known = values.iter().enumerate().filter_map(|(at, value)| Some((at as f64, (*value)?)));
    Series { label: label.to_owned(), points: known.collect() }
}

fn text(value: f64) -> String {
    significant(value, 4)
}

fn findings(parts: &[Part]) -> Vec<Finding> {
    let of = |dtype: DType| parts.iter().find(|part| part.dtype == dtype);
    let difference = |dtype| of(dtype)?.difference.as_ref();
    let mixed = |dtype, model: &str| -> Option<(f64, f64)> {
        let mixed = row(parts, dtype, model)?;
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
            (SEED, second),
            mixed(dtype, "TORCH-ORT").map(|(ort, torch)| (here((ort, torch)), torch > 0.)),
        ));
    }
    found.push(Finding::new(
        "float32, on a CPU: with ONNX Runtime's MatMul alone it is a hundred times what the two whole models differ by",
        (SEED, "0.0188 against 1.526e-4"),
        mixed(DType::F32, "TORCH-ORT").zip(difference(DType::F32)).map(|((_, torch), whole)| {
            (format!("{} against {}", text(torch), text(whole.abs)), torch > 50. * whole.abs)
        }),
    ));
    found
}

fn row<'a>(parts: &'a [Part], dtype: DType, model: &str) -> Option<&'a Mixed> {
    parts.iter().find(|part| part.dtype == dtype)?.mixed.iter().find(|mixed| mixed.model == model)
}

/// Where the example's 0.0188 comes from. `on_cuda`: ONNX Runtime itself computes with TF32.
fn of_tf32(parts: &[Part], on_cuda: bool) -> Vec<Finding> {
    let of = |model: &str| row(parts, DType::F32, model);
    let abs = |diff: &Option<MaxDiff>| Some(diff.as_ref()?.abs);
    // Two draws of the same numbers have not the same largest difference.
    let near = |here: f64, seed: f64| (seed / 1.5..seed * 1.5).contains(&here);
    let two = |row: Option<&Mixed>| Some((abs(&row?.diff_torch)?, abs(&row?.diff_ort)?));
    let as_seed = |found: Option<(f64, f64)>| {
        found.map(|(torch, ort)| {
            let here = format!("{} from libtorch, {} from ONNX Runtime", text(torch), text(ort));
            (here, near(torch, 0.0188) && near(ort, 0.0188))
        })
    };
    let seed = (SEED_CUDA, "0.0188 from libtorch, 0.0188 from ONNX Runtime");
    let shift = |model: &str| Some(of(model)?.mean.0 - of("TORCH")?.mean.0);
    vec![
        Finding::new(
            "float32: MatMul alone by ONNX Runtime on CUDA, the rest on a CPU, is that far from both",
            seed,
            as_seed(two(of("TORCH-ORT").filter(|_| on_cuda))),
        ),
        Finding::new(
            "float32: so it is with the product's operands rounded to TF32 (emulated on a CPU)",
            seed,
            as_seed(two(of(TORCH_TF32).filter(|_| !on_cuda))),
        ),
        Finding::new(
            "float32: tensor cores cut off their sums, so that the mean is lower, which rounded operands do not explain",
            (SEED_CUDA, "by 0.0026: 285.04934 against 285.04672"),
            shift(TORCH_CUT).zip(shift(TORCH_TF32)).map(|(cut, rounded)| {
                let here = format!("by {} cut off, by {} rounded (emulated)", text(-cut), text(-rounded));
                (here, -cut > 0.001 && rounded.abs() < 0.0005)
            }),
        ),
        Finding::new(
            "float32, the whole model on CUDA: TF32 is what the runtimes differ by (ONNX Runtime uses it, libtorch does not)",
            (SEED_CUDA, "0.0196"),
            of(ORT_TF32)
                .and_then(|row| abs(&row.diff_torch))
                .map(|here| (format!("{} (emulated)", text(here)), near(here, 0.0196))),
        ),
        Finding::new(
            "float32, on CUDA: libtorch's product in the place of ONNX Runtime's makes that difference, its \
             LayerNormalization a small one",
            (SEED_CUDA, "0.0196 and 0.0024 from ONNX Runtime on CUDA"),
            of("ORT-TORCH")
                .and_then(|row| abs(&row.diff_tf32))
                .zip(of(TORCH_TF32).and_then(|row| abs(&row.diff_tf32)))
                .map(|(product, norm)| {
                    let here = format!("{} and {} (emulated)", text(product), text(norm));
                    (here, near(product, 0.0196) && norm < product / 2.)
                }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::finding::Holds;
    use super::*;

    #[test]
    fn the_model_is_cut_into_its_nodes() {
        let nodes = nodes(&model(DType::F16)).unwrap();
        for (model, op) in nodes.into_iter().zip(["LayerNormalization", "MatMul", "Add"]) {
            let graph = model.graph.unwrap();
            assert!(graph.node.iter().map(|node| node.op_type()).eq([op]));
            assert!(graph.input.iter().all(|input| input.r#type.is_some()), "{op}");
        }
    }

    #[test]
    fn tf32_rounds_what_goes_into_the_product() {
        let step = 1. / 1024.;
        let norm = TensorBuf::from_f32([1, 1, 2], &[1. + step / 4., 3.]).unwrap();
        let weights = TensorBuf::from_f32([2, 2], &[1., 2., 0., 1.]).unwrap();
        let rounded = rounded_to_tf32(&norm).unwrap();
        assert_eq!(values(&rounded), [1., 3.]);
        assert_eq!(by_tensor_cores(&rounded, &weights).unwrap(), TensorBuf::from_f32([1, 1, 2], &[1., 5.]).unwrap());
    }

    #[test]
    fn tf32_is_judged_by_the_examples_numbers() {
        let diff = |abs: f64| {
            let [one, other] = [0., abs as f32].map(|value| TensorBuf::from_f32([1], &[value]).unwrap());
            max_diff(&one, &other)
        };
        let mixed = |model: &str, [ort, torch, tf32]: [f64; 3], mean: f64| Mixed {
            model: model.to_owned(),
            diff_ort: diff(ort),
            diff_torch: diff(torch),
            diff_tf32: diff(tf32),
            mean: Number(mean),
        };
        let rows = |tf32: f64| {
            vec![
                mixed("TORCH", [1e-4, 0., 0.016], 285.),
                mixed("ORT-TORCH", [1e-4, 1e-4, 0.016], 285.),
                mixed("TORCH-ORT", [1e-4, 1e-4, 0.016], 285.),
                mixed(TORCH_TF32, [tf32, tf32, 0.0024], 285.),
                mixed(ORT_TF32, [0.016, 0.016, 0.], 285.),
                mixed(TORCH_CUT, [0.018, 0.018, 0.003], 284.998),
            ]
        };
        let holds = |tf32: f64, on_cuda: bool| -> Vec<Holds> {
            let part =
                Part { dtype: DType::F32, widened: false, difference: None, mixed: rows(tf32), blamed: Vec::new() };
            of_tf32(&[part], on_cuda).iter().map(|finding| finding.holds).collect()
        };
        use Holds::{No, NotExamined, Yes};
        assert_eq!(holds(0.0159, false), [NotExamined, Yes, Yes, Yes, Yes]);
        assert_eq!(holds(0.0002, false)[..2], [NotExamined, No]);
        assert_eq!(holds(0.0159, true)[..2], [No, NotExamined]);
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
