//! One data set run again and judged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::arguments::Arguments;
use super::nodes;
use super::repro::Alone;
use crate::cli::answer::line;
use crate::cli::exit::Failure;
use crate::cli::rerun::{Divided, Model, Ran, Runtime, Target, text_of};
use crate::compare::{Policy, TensorVerdict, Verdict};
use crate::dump::{Judging, Role};
use crate::onnx::NamedTensor;
use crate::protocol::message::{Division, RuntimeRule};
use crate::tensor::TensorBuf;

/// What a data set gave now.
#[derive(Debug, Serialize)]
pub(super) struct Again {
    pub(super) path: PathBuf,
    /// Why the data set is not whole; null when it is.
    pub(super) missing: Option<String>,
    /// File name of the model.
    model: String,
    optimization: &'static str,
    /// Version of onnxruntime when it was dumped; empty when that is not known.
    ran_with: String,
    version: String,
    /// What ran it now.
    runtime: &'static str,
    /// Time of each run.
    run_ms: Vec<f64>,
    /// By what they are judged, as the dump has it.
    pub(super) policy: Policy,
    /// Against what eager gave.
    pub(super) verdicts: Vec<TensorVerdict>,
    /// Against what it gave.
    pub(super) actuals: Vec<Actual>,
    /// Values of the model, when asked.
    pub(super) nodes: Vec<nodes::Facts>,
    /// The node that is reproduced alone.
    pub(super) node: Option<Alone>,
    /// Which runtime computes which nodes, and how many each rule decided over.
    pub(super) rules: Vec<Rule>,
    /// Nodes by runtime, constants not counted; empty without rules.
    pub(super) nodes_on: BTreeMap<&'static str, u32>,
    /// Sessions that ran one after the other; 0 without rules.
    segments: u32,
}

/// A rule.
#[derive(Debug, Serialize)]
pub(super) struct Rule {
    pub(super) rule: String,
    pub(super) nodes: u32,
}

/// An output against what it was when it was dumped.
#[derive(Debug, Serialize)]
pub(super) struct Actual {
    pub(super) same_bits: bool,
    pub(super) verdict: TensorVerdict,
}

impl Again {
    fn set_division(&mut self, rules: &[RuntimeRule], division: &Division) {
        let counted = rules.iter().zip(&division.taken);
        self.rules = counted.map(|(rule, &nodes)| Rule { rule: text_of(rule), nodes }).collect();
        self.nodes_on = division.nodes.iter().map(|(runtime, &n)| (runtime.name(), n)).collect();
        self.segments = division.segments;
    }

    /// Which runtime computed how much; empty without rules.
    pub(super) fn who(&self) -> String {
        if self.rules.is_empty() {
            return String::new();
        }
        let on: Vec<_> = self.nodes_on.iter().map(|(runtime, n)| format!("{n} on {runtime}")).collect();
        let mut text = line(format_args!("nodes: {}; {} segments", on.join(", "), self.segments));
        for Rule { rule, nodes } in &self.rules {
            text += &line(format_args!("  {rule}: {nodes}"));
        }
        text
    }

    /// The verdicts that count: of the outputs against eager where there are any, and of the node alone.
    pub(super) fn judged(&self) -> impl Iterator<Item = &TensorVerdict> {
        let actuals = if self.verdicts.is_empty() { self.actuals.as_slice() } else { &[] };
        let actuals = actuals.iter().map(|actual| &actual.verdict);
        self.node.iter().map(|node| &node.verdict).chain(&self.verdicts).chain(actuals)
    }

    /// Model, level, time, and whether another version ran it.
    pub(super) fn how(&self) -> String {
        let mut text = format!("{}, optimization {}", self.model, self.optimization);
        let mut times = self.run_ms.clone();
        times.sort_by(f64::total_cmp);
        match times.as_slice() {
            [] => {}
            [one] => text += &format!(", {one:.3} ms"),
            [first, ..] => {
                text +=
                    &format!(", {} runs: least {first:.3} ms, median {:.3} ms", times.len(), times[times.len() / 2]);
            }
        }
        if !self.ran_with.is_empty() && (self.ran_with != self.version || self.runtime != "onnxruntime") {
            text += &format!("; it was dumped with onnxruntime {}", self.ran_with);
        }
        text
    }
}

/// Runs a data set. A run that fails is a verdict. Errors: the dump cannot be read, a node is unknown.
pub(super) fn replay(args: &Arguments, runtime: &Runtime, target: &Target) -> Result<Again, Failure> {
    let proto = target.model()?;
    let described = (!target.rules.is_empty()).then(|| target.described()).transpose()?;
    let divided = described.as_ref().map(|described| Divided {
        rules: &target.rules,
        keep_float32: &target.keep_float32,
        described,
    });
    let model = Model { proto: &proto, optimization: target.optimization, how: target, divided };
    let inputs = target.tensors(Role::Input)?;
    let feeds: Vec<_> = inputs.iter().map(NamedTensor::view).collect();
    let mut again = Again {
        path: target.step.path.clone(),
        missing: target.missing().map(str::to_owned),
        model: target.model_path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
        optimization: target.optimization.name(),
        ran_with: target.onnxruntime(),
        version: runtime.runtime.version().to_owned(),
        runtime: runtime.name(),
        run_ms: Vec::new(),
        policy: Policy::default(),
        verdicts: Vec::new(),
        actuals: Vec::new(),
        nodes: Vec::new(),
        node: None,
        rules: Vec::new(),
        nodes_on: BTreeMap::new(),
        segments: 0,
    };
    match runtime.run_times(&model, &feeds, args.repeat.get()) {
        Ok(ran) => {
            let (references, actuals) = (target.tensors(Role::Reference)?, target.tensors(Role::Actual)?);
            let judging = target.judging()?;
            again.policy = judging.policy;
            again.verdicts = judged(&judging, &ran, &references);
            let bits = |index: usize| ran.outputs.get(index).zip(actuals.get(index)).is_some_and(same_bits);
            let verdicts = judged(&judging, &ran, &actuals).into_iter().enumerate();
            again.actuals = verdicts.map(|(index, verdict)| Actual { same_bits: bits(index), verdict }).collect();
            again.run_ms = ran.run_ms;
            again.set_division(&target.rules, &ran.division);
        }
        Err(error) => {
            let verdict = Verdict::Failed(error.to_string());
            again.verdicts = vec![TensorVerdict { name: "the run".to_owned(), verdict, metrics: None, noise: None }];
            return Ok(again);
        }
    }
    if !args.nodes.is_empty() {
        again.nodes = nodes::look(runtime, target, &model, &feeds, &args.nodes)?;
    }
    Ok(again)
}

/// One verdict an output; none when nothing was dumped to judge by.
fn judged(judging: &Judging, ran: &Ran, references: &[NamedTensor]) -> Vec<TensorVerdict> {
    if references.is_empty() {
        return Vec::new();
    }
    let judge = |(index, (name, output)): (usize, &(String, TensorBuf))| match references.get(index) {
        None => TensorVerdict::not_compared(name, "no such output was dumped"),
        Some(reference) if reference.name != *name => {
            TensorVerdict::not_compared(name, format!("the dumped output is {:?}", reference.name))
        }
        Some(reference) => judging.judge(name, &reference.view(), &output.view()),
    };
    ran.outputs.iter().enumerate().map(judge).collect()
}

fn same_bits((now, then): (&(String, TensorBuf), &NamedTensor)) -> bool {
    *now.1.desc() == then.desc && now.1.view().bytes() == then.view().bytes()
}
