//! What a rule names: the roundings of one FX node, or of one module.

use std::collections::{BTreeMap, HashMap};

use super::error::KeepError;
use super::subject::{Subject, Told};
use crate::base::ids::ValueName;
use crate::onnx::{OnnxError, Unrounded, node_owners};

/// What is kept together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Each FX node by itself.
    #[default]
    Node,
    /// All nodes that one module calls itself.
    Module,
}

/// Roundings that one rule turns off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The rule.
    pub pattern: String,
    /// What is rounded.
    pub values: Vec<ValueName>,
    /// Their switches.
    pub switches: Vec<usize>,
    /// Of the first of them.
    pub told: Told,
}

/// The groups of these roundings, in their order, and those that no rule names. Errors: Onnx.
pub fn groups(subject: &Subject, switches: &[Unrounded], by: By) -> Result<(Vec<Group>, Vec<ValueName>), KeepError> {
    let graph = subject.model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let described = subject.described();
    let owners = node_owners(graph, &described)?;
    let producers: HashMap<&str, usize> = (graph.node.iter().enumerate())
        .flat_map(|(at, node)| node.output.iter().map(move |name| (name.as_str(), at)))
        .collect();
    let (mut found, mut places, mut nameless) = (Vec::<Group>::new(), BTreeMap::new(), Vec::new());
    for (switch, Unrounded { name, .. }) in switches.iter().enumerate() {
        let at = producers.get(name.as_str()).copied();
        let told = at.and_then(|at| subject.told.get(owners[at]?)).cloned().unwrap_or_default();
        let node = at.map(|at| graph.node[at].name()).unwrap_or_default();
        let Some(pattern) = pattern(&told, node, by) else {
            nameless.push(name.clone());
            continue;
        };
        let place = *places.entry(pattern.clone()).or_insert_with(|| {
            found.push(Group { pattern, told, ..Group::default() });
            found.len() - 1
        });
        found[place].values.push(name.clone());
        found[place].switches.push(switch);
    }
    Ok((found, nameless))
}

/// The narrowest name there is; a name with a pattern's own characters is still one, of more.
fn pattern(told: &Told, node: &str, by: By) -> Option<String> {
    let of_module = Some(&told.described.module).filter(|_| by == By::Module);
    let names = of_module.into_iter().chain([&told.described.fx]).map(String::as_str).chain([node]);
    names.into_iter().find(|name| !name.is_empty()).map(str::to_owned)
}
