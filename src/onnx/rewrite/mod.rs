//! What is done to a model before a runtime's graph optimizer has it: passes with names, one a file.
//!
//! Each is a pure function of a graph and leaves alone whatever the model does not tell enough of. Values stay what they
//! were, bit by bit; but where a product is laid out otherwise ONNX Runtime may add up in another order, as it does with
//! another number of threads, and a region's functions are ours. What bodies of nodes hold, and model-local functions, is
//! left alone.

mod cast_reshapes;
mod cast_transposes;
mod channel_convolutions;
mod constant_shapes;
mod half_products;
mod leaf_order;
mod nodes;
mod output_copies;
mod output_reshapes;
mod product_orientation;
mod product_transposes;
mod regions;
mod row_reductions;
mod same_casts;
mod transpose_pairs;
mod values;
mod wide_sums;

pub use channel_convolutions::ChannelConvolution;
pub use half_products::{HALF_PRODUCT, TURNED};
use nodes::RUNTIMES_DOMAIN;
pub use row_reductions::{BELOW, RowReduction, reduce_rows};
pub use wide_sums::{AVERAGED, KEEPDIMS, LEFT_AXIS, WIDE_SUM};

use super::OnnxError;
use super::precision::{MISSING_KERNELS, MissingKernels, around_missing_kernels};
use super::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto};
use super::region::is_region;

/// The key in a model's metadata under which [`rewrite`] says what it did.
pub(super) const RAN: &str = "rust_ort.passes";

/// The provider whose kernels a model is rewritten for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// ONNX Runtime's own.
    Cpu,
    /// NVIDIA's devices.
    Cuda,
}

/// What a pass does to a graph; the number of places where it did it.
type Run = fn(&mut GraphProto) -> usize;

/// A pass: its name, and what it does for each provider.
struct Pass {
    name: &'static str,
    cpu: Option<Run>,
    cuda: Option<Run>,
}

impl Pass {
    const fn of(name: &'static str, cpu: Option<Run>, cuda: Option<Run>) -> Self {
        Self { name, cpu, cuda }
    }

    fn on(&self, target: Target) -> Option<Run> {
        match target {
            Target::Cpu => self.cpu,
            Target::Cuda => self.cuda,
        }
    }
}

/// In the order in which they run.
const PASSES: &[Pass] = &[
    Pass::of("same-casts", Some(same_casts::run), Some(same_casts::run)),
    Pass::of("constant-shapes", Some(constant_shapes::run), Some(constant_shapes::run)),
    Pass::of("transpose-pairs", None, Some(transpose_pairs::run)),
    Pass::of("output-copies", Some(output_copies::run), Some(output_copies::run)),
    Pass::of("output-reshapes", Some(output_reshapes::run), Some(output_reshapes::run)),
    Pass::of("half-products", Some(half_products::run), None),
    Pass::of("wide-sums", Some(wide_sums::on_cpu), Some(wide_sums::on_cuda)),
    Pass::of("channel-convolutions", Some(channel_convolutions::run), None),
    Pass::of("cast-transposes", Some(cast_transposes::run), None),
    Pass::of("product-orientation", Some(product_orientation::run), None),
    Pass::of("product-transposes", Some(product_transposes::on_cpu), Some(product_transposes::on_cuda)),
    Pass::of("cast-reshapes", None, Some(cast_reshapes::run)),
    Pass::of("regions", Some(regions::on_cpu), Some(regions::on_cuda)),
    Pass::of("leaf-order", Some(leaf_order::run), Some(leaf_order::run)),
];

/// Whether a node is of an operator of ours that a pass made.
pub fn is_ours(node: &NodeProto) -> bool {
    is_region(node)
        || half_products::is_half_product(node)
        || channel_convolutions::is_channel_convolution(node)
        || wide_sums::is_wide_sum(node)
}

/// Names of the passes, in the order in which they run: those of [`rewrite`], then that of [`fit_kernels`].
pub fn passes() -> impl Iterator<Item = &'static str> {
    PASSES.iter().map(|pass| pass.name).chain([MISSING_KERNELS])
}

/// Names of those that a provider has.
pub fn passes_for(target: Target) -> impl Iterator<Item = &'static str> {
    PASSES.iter().filter(move |pass| pass.on(target).is_some()).map(|pass| pass.name)
}

/// Runs each pass that is not in `disabled` on the main graph of a model that a provider of ONNX Runtime is to run: the
/// passes know its kernels. Whether a pass did anything; the model's metadata then say which, and how often (see [`ran`]).
pub fn rewrite(model: &mut ModelProto, target: Target, disabled: &[String]) -> bool {
    if ran(model).is_some() {
        return false; // they ran: some would turn back what they did
    }
    let Some(graph) = &mut model.graph else { return false };
    let on = PASSES.iter().filter(|pass| disabled.iter().all(|off| off != pass.name));
    let ran: Vec<String> = (on.filter_map(|pass| Some((pass.name, pass.on(target)?(graph)))))
        .filter(|&(_, n_places)| n_places > 0)
        .map(|(name, n_places)| format!("{name} {n_places}"))
        .collect();
    if ran.is_empty() {
        return false;
    }
    let of_runtime = graph.node.iter().any(|node| node.domain() == RUNTIMES_DOMAIN);
    if of_runtime && model.opset_import.iter().all(|opset| opset.domain() != RUNTIMES_DOMAIN) {
        model.opset_import.push(OperatorSetIdProto { domain: Some(RUNTIMES_DOMAIN.to_owned()), version: Some(1) });
    }
    note(model, &ran.join(", "));
    true
}

/// Runs [`MISSING_KERNELS`]: whatever a graph optimizer is allowed, ONNX Runtime refuses the model without. Whether it did
/// anything; the model's metadata then say so. Errors: those of [`around_missing_kernels`].
pub fn fit_kernels(model: &mut ModelProto, missing: &MissingKernels) -> Result<bool, OnnxError> {
    let n_places = around_missing_kernels(model, missing)?;
    if n_places > 0 {
        note(model, &format!("{MISSING_KERNELS} {n_places}"));
    }
    Ok(n_places > 0)
}

/// Adds to what the metadata say.
fn note(model: &mut ModelProto, ran: &str) {
    match model.metadata_props.iter_mut().find(|entry| entry.key() == RAN) {
        Some(entry) => entry.value = Some(format!("{}, {ran}", entry.value())),
        None => {
            let entry = StringStringEntryProto { key: Some(RAN.to_owned()), value: Some(ran.to_owned()) };
            model.metadata_props.push(entry);
        }
    }
}

/// What [`rewrite`] and [`fit_kernels`] did to a model, as its metadata say it: `"output-copies 1, product-transposes 14"`. None where it did
/// nothing.
pub fn ran(model: &ModelProto) -> Option<&str> {
    model.metadata_props.iter().find(|entry| entry.key() == RAN).map(StringStringEntryProto::value)
}

#[cfg(test)]
mod tests {
    use super::nodes::tests::{graph, node, of};
    use super::*;

    fn model() -> ModelProto {
        let nodes = vec![node("MatMul", &["x", "w"], "a"), node("Identity", &["a"], "y"), node("Relu", &["a"], "z")];
        let inputs = [of("x", &[2, 3]), of("w", &[3, 4])];
        let graph = graph(nodes, &inputs, &[of("y", &[2, 4]), of("z", &[2, 4])], &[]);
        ModelProto { graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn what_ran_is_in_the_metadata() {
        let mut found = model();
        assert_eq!(ran(&found), None);
        assert!(rewrite(&mut found, Target::Cpu, &[]));
        assert_eq!(ran(&found), Some("output-copies 1"));
        assert!(found.opset_import.is_empty(), "nothing of com.microsoft's came");
    }

    #[test]
    fn a_pass_that_is_off_does_nothing_and_a_model_without_a_place_for_one_stays() {
        let mut found = model();
        assert!(!rewrite(&mut found, Target::Cpu, &["output-copies", "leaf-order"].map(str::to_owned)));
        assert_eq!(found, model());
        assert!(!rewrite(&mut ModelProto::default(), Target::Cpu, &[]));
    }

    #[test]
    fn names_are_all_different() {
        let mut names: Vec<_> = passes().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PASSES.len() + 1);
    }
}
