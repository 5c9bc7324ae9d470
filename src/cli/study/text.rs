//! Results for people.

use super::findings;
use crate::blame::{Culprit, Layer};
use crate::cli::table::{Give, aligned, width};
use crate::compare::{ABOVE, MaxDiff, significant};
use crate::study::{Number, Setup, gemm, layernorm, reduction};

const NOT_RUN: &str = "not run";

fn short(value: f64) -> String {
    significant(value, 4)
}

/// What it ran on; what was not run is said first of all.
fn setup(setup: &Setup) -> String {
    let libtorch = match (&setup.libtorch, &setup.not_run) {
        (Some(version), _) => format!("libtorch {version}"),
        (None, why) => format!("libtorch not run: {}", why.as_deref().unwrap_or_default()),
    };
    let Setup { cpu, onnxruntime, provider, threads, seed, .. } = setup;
    format!("onnxruntime {onnxruntime}, {provider}; {libtorch}\n{cpu}; {threads} threads; seed {seed}\n")
}

fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    aligned(header, rows, &vec![Give::Never; header.len()], width())
}

/// Each way against each, a matrix a dtype.
pub(super) fn gemm(study: &gemm::Study) -> String {
    let mut text = setup(&study.setup);
    text += &format!("A [{}, {}], X [{1}, {1}], B [{1}]; max |difference| of each two ways\n", study.rows, study.size);
    for part in &study.parts {
        text += &format!("\n------ {}, {}: has_cast={}", part.dtype, part.numbers.title(), part.has_cast);
        text += &format!(" ({} put in by onnxruntime)\n", part.inserted_casts);
        if part.widened {
            text += "onnxruntime has no bfloat16 kernels here: widened by us, each node in float32 and rounded\n";
        }
        let numbers: Vec<String> = (1..=part.matrix.labels.len()).map(|at| at.to_string()).collect();
        let header: Vec<&str> = std::iter::once("way").chain(numbers.iter().map(String::as_str)).collect();
        let row = |((at, label), values): ((&String, &String), &Vec<Option<Number>>)| {
            let cell = |value: &Option<Number>| value.map_or(NOT_RUN.to_owned(), |Number(value)| short(value));
            std::iter::once(format!("{at} {label}")).chain(values.iter().map(cell)).collect()
        };
        let rows: Vec<Vec<String>> =
            numbers.iter().zip(&part.matrix.labels).zip(&part.matrix.max_abs).map(row).collect();
        text += &table(&header, &rows);
        if !part.by_libtorch.is_empty() {
            let each = part.by_libtorch.iter().map(|(label, Number(value))| format!("{label} {}", short(*value)));
            text += &format!("each node by libtorch against onnxruntime: {}\n", each.collect::<Vec<_>>().join(", "));
        }
        for sweep in &part.sweeps {
            let largest = sweep.max_abs.iter().map(|Number(value)| *value).fold(0., f64::max);
            let (differ, gemm::Sweep { reference, candidate, .. }) = (short(100. * sweep.differ.0), sweep);
            text += &format!("{reference} - {candidate}: max {}, {differ} % of the elements differ\n", short(largest));
        }
    }
    text + "\n" + &findings(&study.findings)
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
            None => cells.resize(header.len(), NOT_RUN.to_owned()),
        }
        cells
    };
    text += &table(&header, &study.parts.iter().map(row).collect::<Vec<_>>());
    for part in study.parts.iter().filter(|part| part.widened) {
        let dtype = part.dtype;
        text += &format!("{dtype}: onnxruntime has no kernels here: widened by us, each node in float32 and rounded\n");
    }
    text += "\nwhich kernel\n";
    let mixed = |part: &layernorm::Part| {
        let abs = |diff: &Option<MaxDiff>| diff.as_ref().map_or(NOT_RUN.to_owned(), |diff| short(diff.abs));
        let row = |mixed: &layernorm::Mixed| {
            vec![mixed.model.clone(), part.dtype.to_string(), abs(&mixed.diff_ort), abs(&mixed.diff_torch)]
        };
        match part.mixed.is_empty() {
            true => ["ORT-TORCH", "TORCH-ORT"]
                .map(|model| vec![model.to_owned(), part.dtype.to_string(), NOT_RUN.to_owned(), NOT_RUN.to_owned()])
                .to_vec(),
            false => part.mixed.iter().map(row).collect(),
        }
    };
    let rows: Vec<Vec<String>> = study.parts.iter().flat_map(mixed).collect();
    text += &table(&["model", "dtype", "diff_ort", "diff_torch"], &rows);
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
        if part.blamed.is_empty() {
            text += &format!("{}: {NOT_RUN}\n", part.dtype);
        }
    }
    text + "\n" + &findings(&study.findings)
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

/// A table a dtype.
pub(super) fn reduction(study: &reduction::Study) -> String {
    let mut text = setup(&study.setup);
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
        if study.setup.libtorch.is_none() {
            text += &format!("libtorch: {NOT_RUN}\n");
        }
    }
    text + "\n" + &findings(&study.findings)
}
