//! Nodes and values of a model by pattern: an operator, a node's name, the FX node behind it or its module.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::OnnxError;
use super::graph::{order, outputs, readers};
use super::proto::{GraphProto, ModelProto, NodeProto};
use crate::base::ids::ValueName;

/// The FX node behind a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Described {
    /// Its name, such as `mm_1`; of one of several results `getitem_2`.
    pub fx: String,
    /// Its operator, such as `aten.native_layer_norm.default`; of one of several results the one that gives them.
    pub op: String,
    /// The module that called it, such as `model.layers.0.norm`; of a backward node, the one that the forward called.
    pub module: String,
}

/// What is told of values that carry an FX node's name.
pub type Descriptions = BTreeMap<ValueName, Described>;

/// `values` of a part's `provenance.json`; what has another form tells nothing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Provenance {
    values: Descriptions,
}

/// The descriptions in a part's `provenance.json`. Errors: serde_json's, where it is no such JSON.
pub fn descriptions(provenance_json: &str) -> Result<Descriptions, serde_json::Error> {
    if provenance_json.is_empty() {
        return Ok(Descriptions::new());
    }
    Ok(serde_json::from_str::<Provenance>(provenance_json)?.values)
}

/// Of each node of the main graph, in the model's order: the first pattern that fits it. `*` stands for any text, `?` for
/// any character. A pattern fits a node's operator (`LayerNormalization`, `com.microsoft::Gelu`), its name, and name,
/// operator and module of the FX node that it belongs to: the one of the nearest described value that it leads to.
/// Errors: those of [`order`].
pub fn select_nodes<S: AsRef<str>>(
    graph: &GraphProto,
    patterns: &[S],
    described: &Descriptions,
) -> Result<Vec<Option<usize>>, OnnxError> {
    let owners = node_owners(graph, described)?;
    let fits = |(node, owner): (&NodeProto, &Option<&str>)| {
        let of_owner = owner.map(|value| names_of_value(value, described));
        let names: Vec<String> = names_of_node(node).into_iter().chain(of_owner.into_iter().flatten()).collect();
        patterns.iter().position(|pattern| names.iter().any(|name| matches(pattern.as_ref(), name)))
    };
    Ok(graph.node.iter().zip(&owners).map(fits).collect())
}

/// What the nodes give that patterns fit (see [`select_nodes`]). Errors: those of [`order`].
pub fn fitting_values<S: AsRef<str>>(
    model: &ModelProto,
    patterns: &[S],
    described: &Descriptions,
) -> Result<HashSet<ValueName>, OnnxError> {
    let Some(graph) = model.graph.as_ref().filter(|_| !patterns.is_empty()) else { return Ok(HashSet::new()) };
    let fitting = select_nodes(graph, patterns, described)?;
    let chosen = graph.node.iter().zip(fitting).filter(|(_, fits)| fits.is_some());
    Ok(chosen.flat_map(|(node, _)| &node.output).filter(|name| !name.is_empty()).cloned().collect())
}

/// Of each node of the main graph, the described value that it is there for: its own, else that of the first node that
/// reads what it gives. Errors: those of [`order`].
pub fn node_owners<'a>(graph: &'a GraphProto, described: &Descriptions) -> Result<Vec<Option<&'a str>>, OnnxError> {
    let order = order(graph)?;
    let readers = readers(graph);
    let places: HashMap<usize, usize> = order.iter().enumerate().map(|(place, &at)| (at, place)).collect();
    let mut owners: Vec<Option<&str>> = vec![None; graph.node.len()];
    for &at in order.iter().rev() {
        let node = &graph.node[at];
        let own = outputs(node).find(|value| described.contains_key(*value));
        let read_by = || outputs(node).flat_map(|value| readers.get(value).into_iter().flatten()).copied();
        owners[at] = own.or_else(|| {
            let mut followers: Vec<usize> = read_by().collect();
            followers.sort_by_key(|follower| places.get(follower));
            followers.into_iter().find_map(|follower| owners[follower])
        });
    }
    Ok(owners)
}

fn names_of_node(node: &NodeProto) -> Vec<String> {
    let (domain, op) = (node.domain(), node.op_type());
    let qualified = if domain.is_empty() { format!("ai.onnx::{op}") } else { format!("{domain}::{op}") };
    vec![op.to_owned(), qualified, node.name().to_owned()]
}

fn names_of_value(value: &str, described: &Descriptions) -> Vec<String> {
    let Described { fx, op, module } = described.get(value).cloned().unwrap_or_default();
    vec![value.to_owned(), fx, op, module]
}

/// Whether a pattern is all of a name; an empty name fits nothing. Costs at most their lengths multiplied.
pub fn matches(pattern: &str, name: &str) -> bool {
    if name.is_empty() {
        return false;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star, and how much of the name it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&one) if one == '?' || one == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|&rest| rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::ValueInfoProto;
    use proptest::prelude::*;

    fn own(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        NodeProto {
            op_type: Some(op.to_owned()),
            name: Some(name.to_owned()),
            input: own(inputs),
            output: own(outputs),
            ..NodeProto::default()
        }
    }

    /// norm = Mul(Sub(x, mean), weight) in two ONNX nodes and a constant that both FX nodes read, then a linear layer.
    fn graph() -> (GraphProto, Descriptions) {
        let value = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
        let nodes = vec![
            node("Constant", "n0", &[], &["c"]),
            node("Sub", "n1", &["x", "c"], &["inner"]),
            node("Mul", "n2", &["inner", "c"], &["norm"]),
            NodeProto { domain: Some("pkg".to_owned()), ..node("Gemm", "n3", &["norm", "c"], &["linear"]) },
            node("Relu", "n4", &["linear"], &["loose"]),
        ];
        let graph = GraphProto { node: nodes, input: vec![value("x")], ..GraphProto::default() };
        let told = |fx: &str, op: &str, module: &str| {
            let described = Described { fx: fx.to_owned(), op: op.to_owned(), module: module.to_owned() };
            (fx.to_owned(), described)
        };
        let norm = told("norm", "aten.native_layer_norm.default", "model.layers.0.norm");
        let linear = told("linear", "aten.addmm.default", "model.layers.0.mlp.up");
        (graph, BTreeMap::from([norm, linear]))
    }

    #[test]
    fn a_node_is_found_by_operator_name_and_the_fx_node_it_belongs_to() {
        let (graph, described) = graph();
        let found = |pattern: &str| {
            let fits = select_nodes(&graph, &[pattern], &described).unwrap();
            (0..fits.len()).filter(|&at| fits[at].is_some()).collect::<Vec<_>>()
        };
        for pattern in ["*.norm", "aten.native_layer_norm.*", "norm", "model.layers.?.norm"] {
            assert_eq!(found(pattern), [0, 1, 2], "{pattern}");
        }
        assert_eq!(found("*.layers.0.*"), [0, 1, 2, 3]);
        assert_eq!((found("Sub"), found("n1"), found("ai.onnx::Sub")), (vec![1], vec![1], vec![1]));
        assert_eq!((found("pkg::Gemm"), found("ai.onnx::Gemm")), (vec![3], vec![]));
        assert_eq!((found("Relu"), found("*"), found("")), (vec![4], vec![0, 1, 2, 3, 4], vec![]));
        let first = select_nodes(&graph, &["Mul", "*.norm", "*"], &described).unwrap();
        assert_eq!(first, [Some(1), Some(1), Some(0), Some(2), Some(2)]);
    }

    #[test]
    fn descriptions_are_read_of_provenance_and_what_else_is_there_is_left_alone() {
        let json = r#"{"schema": 1, "values": {"v": {"fx": "mm", "op": "aten.mm.default", "seq_nr": 3}}, "nodes": {}}"#;
        let told = descriptions(json).unwrap();
        assert_eq!(told["v"], Described { fx: "mm".into(), op: "aten.mm.default".into(), module: String::new() });
        assert_eq!(descriptions("").unwrap(), Descriptions::new());
        assert_eq!(descriptions("{}").unwrap(), Descriptions::new());
        assert!(descriptions("[").is_err());
    }

    proptest! {
        #[test]
        fn a_name_with_parts_left_out_fits(name in "[ab.]{1,12}", from in 0_usize..12, len in 0_usize..12) {
            let (from, to) = (from.min(name.len()), (from + len).min(name.len()));
            let starred = format!("{}*{}", &name[..from], &name[to..]);
            let marked = format!("{}{}{}", &name[..from], "?".repeat(to - from), &name[to..]);
            prop_assert!(matches(&starred, &name) && matches(&marked, &name) && matches(&name, &name));
            let longer = format!("{}c", name);
            prop_assert!(!matches(&name, &longer) && !matches(&longer, &name));
        }
    }
}
