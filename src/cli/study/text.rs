//! Results for people.

use super::findings;
use crate::blame::{Culprit, Layer};
use crate::cli::table::{Give, aligned, width};
use crate::compare::{ABOVE, MaxDiff, significant};
use crate::protocol::message::CPU_PROVIDER;
use crate::study::averages::{self, Averages, Function, Spread};
use crate::study::{Errors, Matrix, Number, Setup, gemm, layernorm, reduction};
use crate::tensor::DType;

const NOT_RUN: &str = "not run";

fn short(value: f64) -> String {
    significant(value, 4)
}

/// What it ran on; what was not run is said first of all.
fn setup(setup: &Setup) -> String {
    let libtorch = match (&setup.libtorch, &setup.not_run) {
        (Some(version), _) if setup.provider == CPU_PROVIDER => format!("libtorch {version}"),
        (Some(version), _) => format!("libtorch {version} on the CPU"),
        (None, why) => format!("libtorch not run: {}", why.as_deref().unwrap_or_default()),
    };
    let Setup { cpu, onnxruntime, provider, threads, seed, draws, .. } = setup;
    let drawn = match draws {
        1 => format!("seed {seed}, one draw"),
        n => format!("seed {seed}; findings of {n} draws, seeds {seed} to {}", seed.wrapping_add(u64::from(n - 1))),
    };
    format!("onnxruntime {onnxruntime}, {provider}; {libtorch}\n{cpu}; {threads} threads; {drawn}\n")
}

fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    aligned(header, rows, &vec![Give::Never; header.len()], width())
}

/// Each way against each, a matrix a dtype.
pub(super) fn gemm(study: &gemm::Study) -> String {
    let mut text = setup(&study.setup);
    text +=
        &format!("A [{}, {}], X [{1}, {1}], B [{1}]; of each two ways the max |difference|, ", study.rows, study.size);
    text += "and the share of elements that differ in %\n";
    for part in &study.parts {
        text += &format!("\n------ {}, {}: has_cast={}", part.dtype, part.numbers.title(), part.has_cast);
        text += &format!(" ({} put in by onnxruntime)\n", part.inserted_casts);
        if part.widened {
            text += "onnxruntime has no bfloat16 kernels here: widened by us, each node in float32 and rounded\n";
        }
        text += &matrices(&part.matrix);
        if !part.by_libtorch.is_empty() {
            let each = part.by_libtorch.iter().map(|(label, Number(value))| format!("{label} {}", short(*value)));
            text += &format!("each node by libtorch against onnxruntime: {}\n", each.collect::<Vec<_>>().join(", "));
        }
        for sweep in &part.sweeps {
            let largest = sweep.max_abs.iter().map(|Number(value)| *value).fold(0., f64::max);
            let (differ, gemm::Sweep { reference, candidate, .. }) = (short(100. * sweep.differ.0), sweep);
            text += &format!("{reference} - {candidate}: max {}, {differ} % of the elements differ\n", short(largest));
        }
        if let Some(graph) = &part.graph {
            text += &format!("\nthe graph that onnxruntime runs, optimizers off\n{}\n", graph.trim_end());
        }
    }
    text + "\n" + &findings(&study.findings, &study.setup)
}

/// Of the ways that were run: largest differences; shares of elements that differ, beside errors.
fn matrices(matrix: &Matrix) -> String {
    let ran: Vec<usize> = (0..matrix.labels.len()).filter(|&at| matrix.errors[at].is_some()).collect();
    let numbers: Vec<String> = ran.iter().map(|at| (at + 1).to_string()).collect();
    let label = |row: usize| format!("{} {}", row + 1, matrix.labels[row]);
    let cells = |row: usize, of: &[Vec<Option<Number>>], times: f64, n_digits: usize| -> Vec<String> {
        let cell = |&column: &usize| {
            of[row][column].map_or(NOT_RUN.to_owned(), |Number(value)| significant(times * value, n_digits))
        };
        ran.iter().map(cell).collect()
    };
    let header: Vec<&str> = std::iter::once("way").chain(numbers.iter().map(String::as_str)).collect();
    let largest = |&row: &usize| std::iter::once(label(row)).chain(cells(row, &matrix.max_abs, 1., 4)).collect();
    let mut text = table(&header, &ran.iter().map(largest).collect::<Vec<_>>());
    let with_errors: Vec<&str> = header.iter().copied().chain(["from float64", "on average"]).collect();
    let shares = |&row: &usize| {
        let error = |of: fn(&Errors) -> Number| matrix.errors[row].map_or(String::new(), |error| short(of(&error).0));
        let errors = [error(|errors| errors.max), error(|errors| errors.mean)];
        std::iter::once(label(row)).chain(cells(row, &matrix.differ, 100., 3)).chain(errors).collect()
    };
    text += &format!("\n% that differ; max |error| from float64 and its mean\n{}", {
        table(&with_errors, &ran.iter().map(shares).collect::<Vec<_>>())
    });
    text
}

/// Both tables of the example, and who is to blame.
pub(super) fn layernorm(study: &layernorm::Study) -> String {
    let mut text = setup(&study.setup);
    text += &format!("X {:?}\n\nORT against torch\n", study.shape);
    let above: Vec<String> = ABOVE[..6].iter().map(|threshold| format!(">{threshold}")).collect();
    let mut header = vec!["dtype", "abs", "rel", "sum", "n"];
    header.extend(above.iter().map(String::as_str));
    let row = |part: &layernorm::Part| {
        let mut cells = vec![part.dtype.to_string()];
        match &part.difference {
            Some(diff) => {
                cells.extend([diff.abs, diff.rel, diff.sum].map(short));
                cells.push(diff.n.to_string());
                cells.extend(diff.rep.0[..6].iter().map(u64::to_string));
            }
            None => cells.resize(header.len(), "-".to_owned()),
        }
        cells
    };
    text += &table(&header, &study.parts.iter().map(row).collect::<Vec<_>>());
    for part in study.parts.iter().filter(|part| part.widened) {
        let dtype = part.dtype;
        text += &format!("{dtype}: onnxruntime has no kernels here: widened by us, each node in float32 and rounded\n");
    }
    text += "\nwhich kernel\n";
    text += "ORT-TORCH: LayerNormalization by onnxruntime; TORCH-ORT: MatMul alone by it; the rest by libtorch.\n";
    text += "TF32: the product's operands rounded to 10 bits of mantissa, as ONNX Runtime's CUDA provider has them: emulated\n";
    text += "on the CPU. cut: its sums cut off after each four products, as tensor cores do it.\n";
    let mixed = |part: &layernorm::Part| {
        let abs = |diff: &Option<MaxDiff>| diff.as_ref().map_or("-".to_owned(), |diff| short(diff.abs));
        let row = |mixed: &layernorm::Mixed| {
            let diffs = [&mixed.diff_ort, &mixed.diff_torch, &mixed.diff_tf32].map(abs);
            let mut cells = vec![mixed.model.clone(), part.dtype.to_string()];
            cells.extend(diffs);
            cells.push(format!("{:.5}", mixed.mean.0));
            cells
        };
        part.mixed.iter().map(row).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = study.parts.iter().flat_map(mixed).collect();
    text += &table(&["model", "dtype", "diff_ort", "diff_torch", "diff_ort_tf32", "mean"], &rows);
    text += "\nto blame, libtorch's values held to be right\n";
    for part in &study.parts {
        for layernorm::Blamed { tolerance, answer } in &part.blamed {
            text += &format!("{}, {tolerance} tolerance: {}\n", part.dtype, culprit(&answer.culprit));
            for node in &answer.nodes {
                let (share, local) = (short(100. * node.share), node.error());
                text +=
                    &format!("    {}: {share} % of the error of {}, its own error {local}\n", node.name, node.output);
            }
        }
    }
    text + "\n" + &findings(&study.findings, &study.setup)
}

/// Who is to blame. The model is the same for both, so that float64 tells which of the two kernels is nearer.
fn culprit(culprit: &Culprit) -> String {
    match culprit {
        Culprit::Node { name, layer: Layer::Exporter } => {
            format!("node {name} (libtorch's kernel is further from float64 than onnxruntime's)")
        }
        Culprit::Node { name, layer: Layer::Kernel } => {
            format!("node {name} (onnxruntime's kernel is further from float64 than libtorch's)")
        }
        other => other.to_string(),
    }
}

/// The example's tables: a row a law, function and size, a column a type and way.
fn spreads(averages: &Averages) -> String {
    let mut columns: Vec<(DType, &str)> = Vec::new();
    for spread in &averages.spreads {
        if !columns.contains(&(spread.dtype, &spread.way)) {
            columns.push((spread.dtype, &spread.way));
        }
    }
    columns.sort_by_key(|(dtype, _)| std::cmp::Reverse(dtype.size_bytes()));
    let short_name = |dtype: DType| format!("f{}", 8 * dtype.size_bytes());
    let names: Vec<String> = columns
        .iter()
        .map(|(dtype, way)| format!("{} {}", short_name(*dtype), way.split('\'').next().unwrap_or_default()))
        .collect();
    let header: Vec<&str> = ["numbers", "of", "size"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut rows = Vec::new();
    for law in Averages::laws() {
        for function in Function::ALL {
            let of = |size: usize, (dtype, way): (DType, &str)| {
                let is_its = |spread: &&Spread| {
                    (spread.function, spread.distribution.as_str(), spread.dtype, spread.way.as_str(), spread.size)
                        == (function, law, dtype, way, size)
                };
                averages.spreads.iter().find(is_its).map(|spread| spread.spread.0)
            };
            let mut row = |size: &str, values: Vec<Option<f64>>| {
                let cells = values.into_iter().map(|value| value.map_or(NOT_RUN.to_owned(), |it| significant(it, 3)));
                let mut row = vec![law.to_owned(), function.name().to_owned(), size.to_owned()];
                row.extend(cells);
                rows.push(row);
            };
            for &size in &averages.sizes {
                row(&size.to_string(), columns.iter().map(|&column| of(size, column)).collect());
            }
            let largest = |&(dtype, way): &(DType, &str)| averages.largest(function, law, dtype, way);
            row("any", columns.iter().map(largest).collect());
        }
    }
    let mut text =
        format!("spread over {} orders of the same numbers: of means, of normalized vectors\n", averages.orders);
    text += &table(&header, &rows);
    for apart in &averages.apart {
        let averages::Apart { function, dtype, one, other, n_differ, n } = apart;
        let name = function.name();
        text += &format!("{dtype}, {name}: {one} and {other} differ in {n_differ} of {n} orders of numbers\n");
    }
    text
}

/// The example's tables, and one a dtype of sums.
pub(super) fn reduction(study: &reduction::Study) -> String {
    let mut text = setup(&study.setup);
    if !study.averages.spreads.is_empty() {
        text += &spreads(&study.averages);
        text += "\n";
    }
    text += &format!("sums of {} numbers in {} orders; error: from their sum in float64\n", study.size, study.orders);
    let header =
        ["numbers", "way", "threads", "sum", "spread", "over |sum|", "error", "over |sum|", "distinct", "repeats"];
    let mut dtypes: Vec<_> = study.sums.iter().map(|sums| sums.dtype).collect();
    dtypes.dedup();
    for dtype in dtypes {
        let row = |sums: &reduction::Sums| {
            vec![
                sums.distribution.clone(),
                sums.way.clone(),
                sums.threads.map_or("-".to_owned(), |threads| threads.to_string()),
                significant(sums.exact.0, 6),
                short(sums.spread.0),
                significant(sums.relative_spread.0, 3),
                short(sums.error.0),
                significant(sums.relative_error.0, 3),
                sums.n_distinct.to_string(),
                if sums.repeats { "yes" } else { "no" }.to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = study.sums.iter().filter(|sums| sums.dtype == dtype).map(row).collect();
        text += &format!("\n------ {dtype}\n{}", table(&header, &rows));
    }
    text + "\n" + &findings(&study.findings, &study.setup)
}
