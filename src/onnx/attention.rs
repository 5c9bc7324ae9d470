//! The functions that the exporter (`export/attention.py`) writes attention as: which they are is said by their names.

use std::collections::HashSet;

use super::proto::{ModelProto, NodeProto};
use super::walk::{bodies, graphs};

/// The domain of our functions, and in ONNX Runtime of our operators.
pub const DOMAIN: &str = "rust_ort";

const FORWARD: &str = "ScaledDotProductAttention";
const GRADIENT: &str = "ScaledDotProductAttentionGradient";

/// (query, key, value, scale) to (output, logsumexp), or
/// (grad_output, query, key, value, output, logsumexp, scale) to (grad_query, grad_key, grad_value). All but logsumexp and
/// scale are of one element type; these are float32 beside half precision. If it is masked, a mask of their type comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// It is the gradient.
    pub is_gradient: bool,
    /// A query sees the keys up to its own place only.
    pub is_causal: bool,
    /// Something is added to the scores.
    pub is_masked: bool,
}

impl Attention {
    /// The function that a node calls; None if it calls none of these.
    pub fn called_by(node: &NodeProto) -> Option<Self> {
        Self::of(node.domain(), node.op_type())
    }

    /// The function of this name.
    pub(super) fn of(domain: &str, name: &str) -> Option<Self> {
        if domain != DOMAIN {
            return None;
        }
        let (is_causal, name) = without("Causal", name);
        let (is_masked, name) = without("Masked", name);
        let is_gradient = match name {
            FORWARD => false,
            GRADIENT => true,
            _ => return None,
        };
        Some(Self { is_gradient, is_causal, is_masked })
    }

    /// The input whose element type an output has.
    pub(super) fn typed_as(self, output: usize) -> usize {
        match (self.is_gradient, output) {
            (false, 0) => 0,
            (false, _) => 3, // logsumexp, as scale
            (true, _) => output + 1,
        }
    }
}

/// Drops those of our functions that no node calls, in the main graph, a body, or a function of others.
pub fn drop_uncalled(model: &mut ModelProto) {
    let of_functions = || model.functions.iter().flat_map(|function| &function.node);
    let graphs = graphs(model.graph.iter().chain(of_functions().flat_map(bodies)));
    let nodes = graphs.flat_map(|graph| &graph.node).chain(of_functions());
    let called: HashSet<String> =
        nodes.filter(|node| node.domain() == DOMAIN).map(|node| node.op_type().to_owned()).collect();
    let is_ours = |domain: &str, name: &str| Attention::of(domain, name).is_some();
    model.functions.retain(|function| !is_ours(function.domain(), function.name()) || called.contains(function.name()));
}

fn without<'a>(prefix: &str, name: &'a str) -> (bool, &'a str) {
    name.strip_prefix(prefix).map_or((false, name), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{AttributeProto, FunctionProto, GraphProto};

    fn call(domain: &str, name: &str) -> NodeProto {
        NodeProto { domain: Some(domain.into()), op_type: Some(name.into()), ..Default::default() }
    }

    #[test]
    fn a_function_is_what_its_name_says() {
        let is = |is_causal, is_masked, is_gradient| Some(Attention { is_gradient, is_causal, is_masked });
        for (name, expected) in [
            ("ScaledDotProductAttention", is(false, false, false)),
            ("CausalScaledDotProductAttention", is(true, false, false)),
            ("MaskedScaledDotProductAttentionGradient", is(false, true, true)),
            ("CausalMaskedScaledDotProductAttentionGradient", is(true, true, true)),
            ("MaskedCausalScaledDotProductAttention", None),
            ("Attention", None),
        ] {
            assert_eq!(Attention::called_by(&call(DOMAIN, name)), expected, "{name}");
        }
        assert_eq!(Attention::called_by(&call("", "ScaledDotProductAttention")), None);
    }

    #[test]
    fn functions_that_are_called_somewhere_stay() {
        let function = |domain: &str, name: &str| FunctionProto {
            name: Some(name.into()),
            domain: Some(domain.into()),
            ..Default::default()
        };
        let body = GraphProto { node: vec![call(DOMAIN, GRADIENT)], ..Default::default() };
        let mut choose = call("", "If");
        choose.attribute = vec![AttributeProto { g: Some(body), ..Default::default() }];
        let graph = GraphProto { node: vec![choose], ..Default::default() };
        let functions = vec![function(DOMAIN, FORWARD), function(DOMAIN, GRADIENT), function("other", FORWARD)];
        let mut model = ModelProto { graph: Some(graph), functions, ..Default::default() };
        drop_uncalled(&mut model);
        let left: Vec<_> = model.functions.iter().map(|function| (function.domain(), function.name())).collect();
        assert_eq!(left, [(DOMAIN, GRADIENT), ("other", FORWARD)]);
    }
}
