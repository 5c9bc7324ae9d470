//! Gemm, or MatMul and Add: eight ways to compute A·X + B, and how far each is from each other.
//!
//! Made again: onnx-diagnostic's example plot_gemm_or_matmul.

use serde::{Deserialize, Serialize};

use super::error::StudyError;
use super::finding::Finding;
use super::graph::{model as model_of, n_casts, node, value, with_int};
use super::matrix::Matrix;
use super::number::{Number, round, tensor, values};
use super::plot::{Cell, Heat, Panel, Plot, Series};
use super::random::Random;
use super::run::{Runtimes, Setup, only};
use crate::compare::significant;
use crate::onnx;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::protocol::message::{CPU_PROVIDER, Optimization};
use crate::runtime::Model;
use crate::tensor::{DType, TensorBuf, TensorView};

/// Outputs of the model, by ONNX Runtime.
pub const NODES: [&str; 6] =
    ["GemmOnly", "GemmAdd", "FusedMatMulAdd", "MatMulAdd", "CastGemmAddCast", "CastGemmOnlyCast"];
/// By libtorch.
pub const LINEAR: &str = "F.linear";
/// By libtorch, as two operators.
pub const AT: &str = "a @ x + b";
/// As numpy adds float16 up: in float32 in order, rounded, then B.
pub const NUMPY: &str = "numpy's A @ X + B";

/// What the example was run on.
const SEED: &str = "onnx-diagnostic's plot_gemm_or_matmul on an Intel i7-13800H, onnxruntime 1.24.0";

/// Sizes and kinds of the numbers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rows of A.
    pub rows: usize,
    /// Columns of A, rows and columns of X, length of B.
    pub size: usize,
    /// float32, float16, bfloat16.
    pub dtypes: Vec<DType>,
    /// Of the numbers.
    pub seed: u64,
}

impl Settings {
    /// The example's: 1280 of each.
    pub const SIZE: usize = 1280;

    /// Parts of the study.
    pub fn n_parts(&self) -> usize {
        2 * self.dtypes.len() + usize::from(self.dtypes.contains(&DType::F16))
    }
}

/// The whole study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// What it ran on.
    pub setup: Setup,
    /// Rows of A.
    pub rows: usize,
    /// Its columns; those of X.
    pub size: usize,
    /// By kind of numbers and dtype.
    pub parts: Vec<Part>,
    /// The example's, and whether they hold here.
    pub findings: Vec<Finding>,
}

/// Which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// Normal ones, a fifth as many columns; optimizers off; beside numpy's way. float16 only.
    Small,
    /// Normal ones; ONNX Runtime's optimizers on, as the example had them here.
    Normal,
    /// A and X divided by their largest, B = (0, 1, 2, …) + 1, up to 16; optimizers off.
    Bias,
}

/// One matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Which numbers.
    pub numbers: Numbers,
    /// Of the numbers.
    pub dtype: DType,
    /// Level of ONNX Runtime's optimizers.
    pub optimization: String,
    /// Cast is among the nodes that ran in ONNX Runtime.
    pub has_cast: bool,
    /// Of these, how many neither the model nor we put there.
    pub inserted_casts: usize,
    /// We had every node compute in float32 and round: ONNX Runtime's CPU provider has no kernels of bfloat16.
    pub widened: bool,
    /// Of bfloat16: what ONNX Runtime says to the model as it is; None where it takes it.
    pub refused: Option<String>,
    /// Each way against each.
    pub matrix: Matrix,
    /// The model's nodes by libtorch against the same by ONNX Runtime: label, max |difference|.
    pub by_libtorch: Vec<(String, Number)>,
    /// Bias against discrepancy; for [`Numbers::Bias`].
    pub sweeps: Vec<Sweep>,
    /// The graph that ONNX Runtime runs, as text; for [`Numbers::Small`].
    pub graph: Option<String>,
}

/// What the value of the bias has to do with the discrepancy of two ways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// One way.
    pub reference: String,
    /// The other.
    pub candidate: String,
    /// Value of the bias, by column.
    pub bias: Vec<Number>,
    /// Largest |difference| in the column.
    pub max_abs: Vec<Number>,
    /// Share of all elements that differ.
    pub differ: Number,
}

/// The example's model. A [a, b], X [b, c], B [c] → six of [a, c].
pub fn model(dtype: DType) -> ModelProto {
    let code = i64::from(dtype.onnx_code());
    let cast = |from: &str, to: &str, code: i64| with_int(node("Cast", &[from], to), "to", code);
    let float = i64::from(DType::F32.onnx_code());
    let mut fused = node("FusedMatMul", &["A", "X"], "fmm");
    fused.domain = Some("com.microsoft".to_owned());
    let info = |name: &&str| value(name, dtype, &["a", "c"]);
    let graph = GraphProto {
        name: Some("gemm".to_owned()),
        node: vec![
            node("Gemm", &["A", "X", "B"], "GemmOnly"),
            node("Gemm", &["A", "X"], "gmm"),
            node("Add", &["gmm", "B"], "GemmAdd"),
            node("MatMul", &["A", "X"], "mm"),
            node("Add", &["mm", "B"], "MatMulAdd"),
            fused,
            node("Add", &["fmm", "B"], "FusedMatMulAdd"),
            cast("A", "Afloat", float),
            cast("B", "Bfloat", float),
            cast("X", "Xfloat", float),
            node("Gemm", &["Afloat", "Xfloat"], "gmmfloat"),
            node("Add", &["gmmfloat", "Bfloat"], "gemmaddfloat"),
            cast("gemmaddfloat", "CastGemmAddCast", code),
            node("Gemm", &["Afloat", "Xfloat", "Bfloat"], "GemmOnlyfloat"),
            cast("GemmOnlyfloat", "CastGemmOnlyCast", code),
        ],
        input: vec![value("A", dtype, &["a", "b"]), value("X", dtype, &["b", "c"]), value("B", dtype, &["c"])],
        output: NODES.iter().map(info).collect(),
        value_info: ["gmm", "mm", "fmm"].iter().map(info).collect(),
        ..GraphProto::default()
    };
    model_of(22, 10, graph)
}

/// a @ x + b as two operators. Shapes as those of [`model`].
fn at_model(dtype: DType) -> ModelProto {
    let graph = GraphProto {
        name: Some("at".to_owned()),
        node: vec![node("MatMul", &["A", "X"], "mm"), node("Add", &["mm", "B"], "y")],
        input: vec![value("A", dtype, &["a", "b"]), value("X", dtype, &["b", "c"]), value("B", dtype, &["c"])],
        output: vec![value("y", dtype, &["a", "c"])],
        ..GraphProto::default()
    };
    model_of(22, 10, graph)
}

/// A [rows, inner], X [inner, columns], B [columns], row by row.
struct Data {
    rows: usize,
    inner: usize,
    columns: usize,
    a: Vec<f32>,
    x: Vec<f32>,
    b: Vec<f32>,
}

impl Data {
    fn normal(rows: usize, inner: usize, random: &mut Random) -> Self {
        let [a, x, b] = [rows * inner, inner * inner, inner].map(|n| random.normals(n));
        Self { rows, inner, columns: inner, a, x, b }
    }

    /// The same with a bias that goes up to 16.
    fn biased(self) -> Self {
        let normalized = |values: Vec<f32>| -> Vec<f32> {
            let largest = values.iter().copied().fold(f32::MIN, f32::max);
            values.into_iter().map(|value| value / largest).collect()
        };
        let n = self.columns as f32;
        let b = (0..self.columns).map(|at| (at as f32 + 1.) / n * 16.).collect();
        Self { a: normalized(self.a), x: normalized(self.x), b, ..self }
    }

    /// A·X + B in float64, of the numbers as the type has them.
    fn in_float64(&self, dtype: DType) -> Vec<f64> {
        let Data { rows, inner, columns, .. } = *self;
        let [a, x, b] = [&self.a, &self.x, &self.b]
            .map(|values| values.iter().map(|&value| f64::from(round(value, dtype))).collect::<Vec<_>>());
        let mut result = Vec::with_capacity(rows * columns);
        for row in a.chunks(inner.max(1)) {
            let mut sums = vec![0_f64; columns];
            for (&left, others) in row.iter().zip(x.chunks(columns.max(1))) {
                sums.iter_mut().zip(others).for_each(|(sum, &right)| *sum += left * right);
            }
            result.extend(sums.iter().zip(&b).map(|(sum, bias)| sum + bias));
        }
        result
    }

    fn tensors(&self, dtype: DType) -> Result<[TensorBuf; 3], StudyError> {
        let Data { rows, inner, columns, .. } = *self;
        Ok([
            tensor(dtype, &[rows, inner], &self.a)?,
            tensor(dtype, &[inner, columns], &self.x)?,
            tensor(dtype, &[columns], &self.b)?,
        ])
    }

    /// A·X + B as numpy computes it in half precision: each sum in float32 in order, rounded, and rounded again with B.
    fn as_numpy(&self, dtype: DType) -> Result<TensorBuf, StudyError> {
        let Data { rows, inner, columns, .. } = *self;
        let [a, x, b] = [&self.a, &self.x, &self.b]
            .map(|values| values.iter().map(|&value| round(value, dtype)).collect::<Vec<_>>());
        let mut result = Vec::with_capacity(rows * columns);
        for row in a.chunks(inner.max(1)) {
            let mut sums = vec![0_f32; columns];
            for (&left, others) in row.iter().zip(x.chunks(columns.max(1))) {
                sums.iter_mut().zip(others).for_each(|(sum, &right)| *sum += left * right);
            }
            result.extend(sums.iter().zip(&b).map(|(&sum, &bias)| round(round(sum, dtype) + bias, dtype)));
        }
        Ok(tensor(dtype, &[rows, columns], &result)?)
    }
}

/// Makes the study. `done`: told of each part. Errors: [`StudyError`].
pub fn study(runtimes: &Runtimes<'_>, settings: &Settings, done: &mut dyn FnMut()) -> Result<Study, StudyError> {
    let Settings { rows, size, seed, ref dtypes } = *settings;
    let mut parts = Vec::new();
    if dtypes.contains(&DType::F16) {
        let data = Data::normal(rows, (size / 5).max(1), &mut Random::new(seed.wrapping_add(1)));
        parts.push(part(runtimes, Numbers::Small, DType::F16, &data)?);
        done();
    }
    let normal = Data::normal(rows, size, &mut Random::new(seed));
    for &dtype in dtypes {
        parts.push(part(runtimes, Numbers::Normal, dtype, &normal)?);
        done();
    }
    let biased = normal.biased();
    for &dtype in dtypes {
        parts.push(part(runtimes, Numbers::Bias, dtype, &biased)?);
        done();
    }
    let (is_size, on_cpu) = ([rows, size] == [Settings::SIZE; 2], runtimes.provider == CPU_PROVIDER);
    let mut findings = Finding::judged(findings(&parts), is_size && on_cpu);
    findings.extend(Finding::judged(of_kernels(&parts), on_cpu));
    Ok(Study { setup: runtimes.setup(seed), rows, size, parts, findings })
}

fn part(runtimes: &Runtimes<'_>, numbers: Numbers, dtype: DType, data: &Data) -> Result<Part, StudyError> {
    let optimization = if numbers == Numbers::Normal { Optimization::All } else { Optimization::Disable };
    let exported = model(dtype);
    let tensors = data.tensors(dtype)?;
    let feeds: Vec<TensorView<'_>> = tensors.iter().map(TensorBuf::view).collect();
    let ran = runtimes.on_onnxruntime(&exported, dtype, optimization, &feeds)?;
    if ran.outputs.len() != NODES.len() {
        return Err(StudyError::Outputs { what: "gemm", expected: NODES.len(), got: ran.outputs.len() });
    }
    let linear = match &runtimes.libtorch {
        Ok(libtorch) => Some((libtorch.linear)(&feeds[0], &feeds[1], &feeds[2])?),
        Err(_) => None,
    };
    let at = runtimes.on_libtorch(&at_model(dtype), &feeds)?.map(|outputs| only("a @ x + b", outputs)).transpose()?;
    let numpy = if numbers == Numbers::Small { Some(data.as_numpy(dtype)?) } else { None };
    let mut results = vec![(LINEAR, linear.as_ref())];
    results.extend(NODES.iter().copied().zip(ran.outputs.iter().map(Some)));
    results.push((AT, at.as_ref()));
    if numpy.is_some() {
        results.push((NUMPY, numpy.as_ref()));
    }
    let by_libtorch = runtimes.on_libtorch(&exported, &feeds)?.unwrap_or_default();
    let distance = |(label, (one, other)): (&&str, (&TensorBuf, &TensorBuf))| {
        Some(((*label).to_owned(), super::matrix::max_diff(one, other)?.abs.into()))
    };
    let Optimized { casts, inserted_casts, model: optimized } = optimized(runtimes, &exported, dtype, optimization)?;
    let sweep = |&(one, other): &(&str, &str)| -> Option<Sweep> {
        let of = |label: &str| results.iter().find(|(known, _)| *known == label)?.1;
        Some(sweep_of((one, of(one)?), (other, of(other)?), &values(&tensors[2])))
    };
    let pairs: &[(&str, &str)] = match numbers {
        Numbers::Bias => &[(LINEAR, "GemmOnly"), (AT, "GemmOnly"), ("GemmAdd", "GemmOnly")],
        _ => &[],
    };
    Ok(Part {
        numbers,
        dtype,
        optimization: optimization.name().to_owned(),
        has_cast: casts > 0,
        inserted_casts,
        widened: ran.widened,
        refused: refused(runtimes, &exported, dtype),
        matrix: Matrix::of(&results, &data.in_float64(dtype)),
        by_libtorch: NODES.iter().zip(by_libtorch.iter().zip(&ran.outputs)).filter_map(distance).collect(),
        sweeps: pairs.iter().filter_map(sweep).collect(),
        graph: if numbers == Numbers::Small { Some(onnx::model_text(&optimized)?) } else { None },
    })
}

/// What ONNX Runtime runs.
struct Optimized {
    /// Casts in it.
    casts: usize,
    /// Of these, how many it put in.
    inserted_casts: usize,
    model: ModelProto,
}

/// Errors: [`StudyError`].
fn optimized(
    runtimes: &Runtimes<'_>,
    exported: &ModelProto,
    dtype: DType,
    optimization: Optimization,
) -> Result<Optimized, StudyError> {
    let (runnable, _) = runtimes.runnable(exported, dtype)?;
    let given = n_casts(&onnx::decode(runnable.bytes.clone())?);
    let optimized = runtimes.onnxruntime.optimized(&runnable, &runtimes.spec(optimization))?;
    let model = onnx::decode(optimized.into())?;
    let casts = n_casts(&model);
    Ok(Optimized { casts, inserted_casts: casts.saturating_sub(given), model })
}

/// What ONNX Runtime says to the model of bfloat16 as it is.
fn refused(runtimes: &Runtimes<'_>, exported: &ModelProto, dtype: DType) -> Option<String> {
    if dtype != DType::BF16 {
        return None;
    }
    let built = runtimes.onnxruntime.build(&Model::encode(exported), &runtimes.spec(Optimization::Disable));
    built.err().map(|error| error.to_string())
}

fn sweep_of((reference, one): (&str, &TensorBuf), (candidate, other): (&str, &TensorBuf), bias: &[f64]) -> Sweep {
    let n = bias.len().max(1);
    let mut max_abs = vec![0_f64; bias.len()];
    let (mut n_differ, mut n_all) = (0_usize, 0_usize);
    for (row, others) in values(one).chunks(n).zip(values(other).chunks(n)) {
        for ((largest, one), other) in max_abs.iter_mut().zip(row).zip(others) {
            *largest = largest.max((one - other).abs());
            n_differ += usize::from(one != other);
            n_all += 1;
        }
    }
    Sweep {
        reference: reference.to_owned(),
        candidate: candidate.to_owned(),
        bias: bias.iter().copied().map(Number).collect(),
        max_abs: max_abs.into_iter().map(Number).collect(),
        differ: Number(n_differ as f64 / n_all.max(1) as f64),
    }
}

/// A distance, for people.
fn text(value: f64) -> String {
    significant(value, 4)
}

impl Numbers {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Numbers::Small => "normal numbers, a fifth as many columns, optimizers off",
            Numbers::Normal => "normal numbers, ONNX Runtime's optimizers on",
            Numbers::Bias => "A and X up to 1, bias up to 16, optimizers off",
        }
    }
}

impl Study {
    /// Value of the bias against the discrepancy in its column, a panel a dtype.
    pub fn plot(&self) -> Plot {
        let panel = |part: &Part| Panel {
            title: format!("{}, {}", part.dtype, self.setup.provider),
            x_label: "value of the bias (each pair of ways is drawn a little above the one before)".to_owned(),
            y_label: "max |difference| in the column".to_owned(),
            series: part.sweeps.iter().map(series).collect(),
            ..Panel::default()
        };
        let matrix = |part: &Part| Panel {
            title: format!("{}, {}", part.dtype, part.numbers.title()),
            x_label: "max |difference|; below it, and as colour: % of the elements that differ".to_owned(),
            heat: Some(heat(&part.matrix)),
            ..Panel::default()
        };
        let swept = self.parts.iter().filter(|part| part.numbers == Numbers::Bias);
        let panels = self.parts.iter().map(matrix).chain(swept.map(panel)).collect();
        Plot { title: "Gemm or MatMul + Add: each way against each; bias and discrepancy".to_owned(), panels }
    }
}

fn heat(matrix: &Matrix) -> Heat {
    let cell = |(largest, share): (&Option<Number>, &Option<Number>)| {
        let (Number(largest), Number(share)) = ((*largest)?, (*share)?);
        let lines = vec![significant(largest, 3), format!("{} %", significant(100. * share, 2))];
        Some(Cell { value: share, lines: if share == 0. { vec!["0".to_owned()] } else { lines } })
    };
    let rows = matrix.max_abs.iter().zip(&matrix.differ);
    let cells = rows.map(|(largest, shares)| largest.iter().zip(shares).map(cell).collect()).collect();
    Heat { labels: matrix.labels.clone(), cells }
}

fn series(sweep: &Sweep) -> Series {
    Series {
        label: format!("{} - {}", sweep.reference, sweep.candidate),
        points: sweep.bias.iter().zip(&sweep.max_abs).map(|(bias, max_abs)| (bias.0, max_abs.0)).collect(),
    }
}

fn findings(parts: &[Part]) -> Vec<Finding> {
    let of = |numbers: Numbers, dtype: DType| parts.iter().find(|part| part.numbers == numbers && part.dtype == dtype);
    let between = |numbers, dtype, one, other| of(numbers, dtype).and_then(|part| part.matrix.between(one, other));
    let mut found = Vec::new();
    let small = |one, other| between(Numbers::Small, DType::F16, one, other);
    found.push(Finding::new(
        "float16, optimizers off: numpy's A @ X + B is further from ONNX Runtime's than these are from each other",
        (SEED, "0.0625 against 0.0009766"),
        small(NUMPY, "GemmOnly")
            .zip(small("GemmOnly", "GemmAdd"))
            .map(|(numpy, own)| (format!("{} against {}", text(numpy), text(own)), numpy > own)),
    ));
    for (dtype, seed) in [(DType::F16, "0 and 0.0625"), (DType::F32, "0 and 3.052e-5")] {
        let normal = |one, other| between(Numbers::Normal, dtype, one, other);
        found.push(Finding::new(
            format!("{dtype}, optimizers on: MatMulAdd has the bits of GemmOnly, GemmAdd has not"),
            (SEED, seed),
            normal("MatMulAdd", "GemmOnly")
                .zip(normal("GemmAdd", "GemmOnly"))
                .map(|(fused, apart)| (format!("{} and {}", text(fused), text(apart)), fused == 0. && apart > 0.)),
        ));
    }
    for (dtype, linear, at) in [(DType::F32, "7.629e-6", "7.629e-6"), (DType::F16, "0.015625", "0.015625")] {
        for (way, seed) in [(LINEAR, linear), (AT, at)] {
            found.push(Finding::new(
                format!("{dtype}, high bias: {way} and GemmOnly differ"),
                (SEED, seed),
                between(Numbers::Bias, dtype, way, "GemmOnly").map(|here| (text(here), here > 0.)),
            ));
        }
        let bias = |one, other| between(Numbers::Bias, dtype, one, other);
        let same = ["FusedMatMulAdd", "MatMulAdd", "CastGemmAddCast"].map(|way| bias("GemmAdd", way));
        found.push(Finding::new(
            format!("{dtype}, high bias: GemmAdd, FusedMatMulAdd, MatMulAdd and CastGemmAddCast have the same bits"),
            (SEED, "0"),
            same.into_iter().collect::<Option<Vec<_>>>().map(|all| {
                let largest = all.into_iter().fold(0., f64::max);
                (text(largest), largest == 0.)
            }),
        ));
        found.push(Finding::new(
            format!("{dtype}, high bias: CastGemmOnlyCast has the bits of GemmOnly"),
            (SEED, "0"),
            bias("CastGemmOnlyCast", "GemmOnly").map(|here| (text(here), here == 0.)),
        ));
        found.push(Finding::new(
            format!("{dtype}, high bias: a Gemm that adds the bias differs from a product and an Add"),
            (SEED, linear),
            bias("GemmAdd", "GemmOnly").map(|here| (text(here), here > 0.)),
        ));
    }
    let linear = |dtype| between(Numbers::Bias, dtype, LINEAR, "GemmOnly");
    found.push(Finding::new(
        "the difference is higher for bfloat16 than for float16",
        (SEED, "0.125 against 0.015625, on a GPU"),
        linear(DType::BF16)
            .zip(linear(DType::F16))
            .map(|(bf16, f16)| (format!("{} against {}", text(bf16), text(f16)), bf16 > f16)),
    ));
    found.extend(forms(parts));
    found.push(often(of(Numbers::Bias, DType::F16)));
    found.push(grows(of(Numbers::Bias, DType::F16)));
    found
}

/// What is so whatever the sizes: of the CPU provider's kernels.
fn of_kernels(parts: &[Part]) -> Vec<Finding> {
    let of = |dtype: DType| parts.iter().find(|part| part.numbers == Numbers::Bias && part.dtype == dtype);
    vec![
        Finding::new(
            "float16: ONNX Runtime's CPU provider puts Casts in, though optimizers are off",
            (SEED, "7 Casts that the model has not"),
            of(DType::F16).map(|part| (part.inserted_casts.to_string(), part.inserted_casts > 0)),
        ),
        Finding::new(
            "bfloat16: ONNX Runtime's CPU provider lacks kernels (so what ran here is widened by us)",
            (SEED, "\"missing implementation in onnxruntime\""),
            of(DType::BF16).map(|part| {
                let said = part.refused.as_deref().map_or("it takes the model", |_| "it refuses the model");
                (said.to_owned(), part.refused.is_some())
            }),
        ),
    ]
}

/// Which ways are F.linear's, by type: those that have the fewest other elements, as far as they stand out.
fn forms(parts: &[Part]) -> Vec<Finding> {
    let nearest = |dtype: DType| {
        let part = parts.iter().find(|part| part.numbers == Numbers::Bias && part.dtype == dtype)?;
        part.matrix.nearest(LINEAR, &NODES)
    };
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    let of_dtype = |dtype: DType| {
        let with_bias_alone = |[near, _]: &Form| {
            let has = |way: &str| near.iter().any(|(known, _)| *known == way);
            has("GemmOnly") && !has("GemmAdd")
        };
        Finding::new(
            format!("{dtype}, high bias: F.linear's form is a Gemm that adds the bias, not a product and an Add"),
            (SEED, "\"Gemm with a bias not null should be used when torch is doing the same\""),
            nearest(dtype).map(|form| (form_text(&form), with_bias_alone(&form))),
        )
    };
    let mut found = dtypes.map(of_dtype).to_vec();
    let all: Option<Vec<Form>> = dtypes.into_iter().map(nearest).collect();
    let ways = |[near, _]: &Form| near.iter().map(|(way, _)| *way).collect::<Vec<_>>();
    found.push(Finding::new(
        "high bias: which form is F.linear's depends on the type",
        (SEED, "\"it seems to depend on the type as well\""),
        all.map(|forms| {
            let each: Vec<String> =
                dtypes.iter().zip(&forms).map(|(dtype, form)| format!("{dtype} {}", ways(form).join(", "))).collect();
            (each.join("; "), forms.iter().any(|form| ways(form) != ways(&forms[0])))
        }),
    ));
    found
}

/// Ways that are near F.linear, and those that are not, with the share of elements that differ.
type Form = [Vec<(&'static str, f64)>; 2];

fn form_text([near, far]: &Form) -> String {
    let shares = |ways: &[(&str, f64)]| {
        let ends = |from: f64, of: fn(f64, f64) -> f64| ways.iter().map(|(_, share)| 100. * share).fold(from, of);
        let (least, largest) = (ends(f64::INFINITY, f64::min), ends(0., f64::max));
        let text = |share: f64| significant(share, 3);
        if least == largest { text(least) } else { format!("{} to {}", text(least), text(largest)) }
    };
    if far.is_empty() {
        return format!("no way stands out: of each {} % of the elements differ", shares(near));
    }
    let names: Vec<&str> = near.iter().map(|(way, _)| *way).collect();
    format!("{}: {} % of the elements differ, of the others {} %", names.join(", "), shares(near), shares(far))
}

fn linear_sweep(part: Option<&Part>) -> Option<&Sweep> {
    part?.sweeps.iter().find(|sweep| sweep.reference == LINEAR)
}

fn often(part: Option<&Part>) -> Finding {
    let here = linear_sweep(part).map(|sweep| {
        let Number(differ) = sweep.differ;
        (format!("{} % of the elements differ", significant(100. * differ, 3)), differ > 0. && differ < 1.)
    });
    let seed = "\"discrepancies do not happen all the time but it is very likely\"";
    Finding::new(
        "float16, high bias: some elements of F.linear and GemmOnly differ, and some do not",
        (SEED, seed),
        here,
    )
}

/// In columns of a bias from 8 on, against those below.
fn grows(part: Option<&Part>) -> Finding {
    let here = linear_sweep(part).map(|sweep| {
        let largest = |is_high: bool| {
            let columns = sweep.bias.iter().zip(&sweep.max_abs).filter(|(bias, _)| (bias.0 >= 8.) == is_high);
            columns.map(|(_, max_abs)| max_abs.0).fold(0., f64::max)
        };
        let (low, high) = (largest(false), largest(true));
        (format!("{} below 8, {} from there", text(low), text(high)), high > low)
    });
    let seed = "a plot, no numbers";
    Finding::new("float16: the discrepancy is larger in columns of a high bias", (SEED, seed), here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_eight_ways_and_is_in_order() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let model = model(dtype);
            let graph = model.graph.as_ref().unwrap();
            assert!(graph.output.iter().map(|output| output.name()).eq(NODES));
            assert_eq!(onnx::order(graph).unwrap(), (0..15).collect::<Vec<_>>());
            assert_eq!(n_casts(&model), 5);
        }
    }

    #[test]
    fn the_bias_goes_up_to_sixteen_and_the_rest_to_one() {
        let data = Data::normal(3, 4, &mut Random::new(1)).biased();
        assert_eq!(data.b, [4., 8., 12., 16.]);
        assert_eq!(data.a.iter().copied().fold(f32::MIN, f32::max), 1.);
    }

    #[test]
    fn numpys_way_rounds_twice() {
        let data = Data { rows: 1, inner: 2, columns: 1, a: vec![1., 1.], x: vec![2048., 1.], b: vec![1.] };
        // 2049 is no float16, and neither is 2049 again.
        assert_eq!(values(&data.as_numpy(DType::F16).unwrap()), [2048.]);
        assert_eq!(values(&data.as_numpy(DType::F32).unwrap()), [2050.]);
    }

    #[test]
    fn float64_is_of_the_numbers_as_the_type_has_them() {
        let data = Data { rows: 1, inner: 2, columns: 1, a: vec![1., 1.], x: vec![2048., 1.001], b: vec![1.] };
        assert_eq!(data.in_float64(DType::F16), [2050. + f64::from(round(0.001 + 1., DType::F16)) - 1.]);
    }

    #[test]
    fn the_form_of_linear_is_the_way_with_the_fewest_other_elements() {
        let values = |last: f32| TensorBuf::from_f32([2], &[1., last]).unwrap();
        let (linear, gemm, apart) = (values(2.), values(2.), values(2.5));
        let of = |name: &str| if name == "GemmOnly" { &gemm } else { &apart };
        let mut results = vec![(LINEAR, Some(&linear))];
        results.extend(NODES.iter().map(|&name| (name, Some(of(name)))));
        let part = |dtype: DType| Part {
            numbers: Numbers::Bias,
            dtype,
            optimization: String::new(),
            has_cast: false,
            inserted_casts: 0,
            widened: false,
            refused: None,
            matrix: Matrix::of(&results, &[1., 2.]),
            by_libtorch: Vec::new(),
            sweeps: Vec::new(),
            graph: None,
        };
        let found = forms(&[part(DType::F32), part(DType::F16)]);
        use super::super::finding::Holds::{No, NotExamined, Yes};
        let holds: Vec<_> = found.iter().map(|finding| finding.holds).collect();
        assert_eq!(holds, [Yes, Yes, NotExamined, NotExamined]);
        assert_eq!(found[0].here, "GemmOnly: 0 % of the elements differ, of the others 50 %");
        let alike = Matrix::of(&[(LINEAR, Some(&linear)), ("GemmOnly", Some(&apart)), ("GemmAdd", Some(&apart))], &[]);
        let found = forms(&[Part { matrix: alike, ..part(DType::F32) }]);
        assert_eq!(
            (found[0].holds, found[0].here.as_str()),
            (No, "no way stands out: of each 50 % of the elements differ")
        );
    }

    #[test]
    fn a_sweep_has_the_largest_of_each_column() {
        let [one, other] =
            [[1., 2., 3., 4.], [1., 2.5, 3., 5.]].map(|values| TensorBuf::from_f32([2, 2], &values).unwrap());
        let sweep = sweep_of(("one", &one), ("other", &other), &[8., 16.]);
        assert_eq!((sweep.max_abs, sweep.differ), (vec![Number(0.), Number(1.)], Number(0.5)));
    }

    #[test]
    fn what_was_not_run_is_not_examined() {
        assert!(findings(&[]).iter().all(|finding| finding.holds == super::super::finding::Holds::NotExamined));
    }
}
