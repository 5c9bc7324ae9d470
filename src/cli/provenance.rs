//! Where values of a part of a dump come from, as its `provenance.json` tells.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::Deserialize;

use super::exit::{Failure, at};
use crate::base::files::folder_of;
use crate::dump::{Damage, reader};
use crate::onnx::Descriptions;

/// What a part's inputs and values are.
#[derive(Debug, Default)]
pub(super) struct Provenance {
    pub(super) values: Descriptions,
    /// Inputs that are parameters or buffers.
    pub(super) parameters: HashSet<String>,
    /// Input → what the user calls it, such as `layer.weight`.
    pub(super) calls: HashMap<String, String>,
    /// Output of the graph → what it is, such as `GradAOTOutput layer.weight`.
    pub(super) roles: HashMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    values: Descriptions,
    inputs: Vec<Told>,
    outputs: Vec<Told>,
}

/// An input or an output.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    name: String,
    role: String,
    of: String,
}

impl Provenance {
    /// Of the part that a model, or what else a part has, is a file of. As [`Provenance::of_part`].
    pub(super) fn beside(file: &Path) -> Result<Self, Failure> {
        Self::of_part(folder_of(file))
    }

    /// Nothing where the folder is of no part, or tells it in another form. Errors: it is damaged.
    pub(super) fn of_part(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("provenance.json");
        let value = match reader::json_if_there(&path) {
            Err(error) if Damage::of(&error).is_some() => return Err(at(&path)(error)),
            read => read.ok().flatten().unwrap_or_default(),
        };
        let File { values, inputs, outputs } = serde_json::from_value(value).unwrap_or_default();
        let modules =
            values.values().filter_map(|value| value.module.split('.').next()).filter(|name| !name.is_empty());
        let modules: HashSet<&str> = modules.collect();
        let parameters = inputs.iter().filter(|input| input.is_parameter(&modules)).map(|input| input.name.clone());
        let parameters = parameters.collect();
        let called = inputs.into_iter().filter(|input| !input.of.is_empty() && input.of != input.name);
        let calls = called.map(|input| (input.name, input.of)).collect();
        let roles = outputs.into_iter().map(|output| (output.name, format!("{} {}", output.role, output.of)));
        let roles = roles.map(|(name, role)| (name, role.trim().to_owned())).collect();
        Ok(Self { values, parameters, calls, roles })
    }
}

impl Told {
    /// Whether it is a parameter or a buffer. Dynamo makes these inputs like any other: what is called after a module of the
    /// part, or as a module calls its own, is one.
    fn is_parameter(&self, modules: &HashSet<&str>) -> bool {
        let is_of_a_module = || match self.of.split_once('.') {
            Some((first, _)) => !["args", "kwargs"].contains(&first) && modules.contains(first),
            None => ["weight", "bias"].contains(&self.of.as_str()),
        };
        match self.role.as_str() {
            "ParamAOTInput" | "BufferAOTInput" => true,
            "PlainAOTInput" => is_of_a_module(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_after_a_module_is_a_parameter() {
        let folder = tempfile::tempdir().unwrap();
        let told = serde_json::json!({
            "values": { "mm": { "fx": "mm", "op": "aten.mm", "module": "model.layers.0" } },
            "inputs": [
                { "name": "p1", "role": "PlainAOTInput", "of": "args.0" },
                { "name": "p2", "role": "PlainAOTInput", "of": "model.layers.0.weight" },
                { "name": "p3", "role": "PlainAOTInput", "of": "weight" },
                { "name": "p4", "role": "PlainAOTInput", "of": "x" },
                { "name": "p5", "role": "ParamAOTInput", "of": "gain" },
                { "name": "t", "role": "TangentAOTInput", "of": "model.norm" },
                { "name": "mm", "role": "", "of": "" },
            ],
        });
        std::fs::write(folder.path().join("provenance.json"), told.to_string()).unwrap();
        let known = Provenance::beside(&folder.path().join("model.onnx")).unwrap();
        let mut parameters: Vec<_> = known.parameters.iter().map(String::as_str).collect();
        parameters.sort_unstable();
        assert_eq!(parameters, ["p2", "p3", "p5"]);
        assert_eq!(known.calls["p1"], "args.0");
        assert!(!known.calls.contains_key("mm"));
        assert!(Provenance::of_part(Path::new("/nowhere")).unwrap().calls.is_empty());
    }
}
