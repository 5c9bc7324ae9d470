//! A prepared part.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use crate::base::ids::ValueName;
use crate::daemon::ledger::{Account, Held};
use crate::observe::nodes::{PartNodes, SubModel};
use crate::protocol::control::PreparePart;
use crate::protocol::message::{ErrorCode, PartSpec, Provider, SessionSpec, ValueSpec, WireError};
use crate::runtime::ort::provider_options;

/// A prepared part, kept so that a crash can be written down.
#[derive(Debug)]
pub struct Part {
    /// As sent.
    pub spec: PreparePart,
    /// Of the model, in its order; empty while it is being prepared.
    pub inputs: Vec<ValueSpec>,
    /// As inputs.
    pub outputs: Vec<ValueSpec>,
    /// Its model, read when its nodes are first asked for.
    nodes: OnceLock<Result<PartNodes, String>>,
    /// Its model; None of a piece of another part.
    _held: Option<Held>,
    /// Its nodes, once they are read.
    nodes_held: OnceLock<Held>,
}

impl Part {
    /// A part and its model's values.
    pub fn new(spec: PreparePart, inputs: Vec<ValueSpec>, outputs: Vec<ValueSpec>, held: Option<Held>) -> Self {
        Self { spec, inputs, outputs, nodes: OnceLock::new(), _held: held, nodes_held: OnceLock::new() }
    }

    /// Counts its nodes before they are read: the decoded model, and pieces of it, which may have all its tensors. Errors:
    /// Limit.
    pub fn hold_nodes(&self, memory: &Arc<Account>) -> Result<(), WireError> {
        if self.nodes_held.get().is_none() {
            let PreparePart { part, provenance_json, .. } = &self.spec;
            let nodes = PartNodes::footprint(&part.model, &part.named_values, provenance_json);
            let held = memory.hold("nodes of a part's model", part.model.len().saturating_add(nodes))?;
            // One of two that came at once goes.
            let _ = self.nodes_held.set(held);
        }
        Ok(())
    }

    /// Its model, to be cut into nodes. Errors: BadModel.
    pub fn nodes(&self) -> Result<&PartNodes, WireError> {
        let PreparePart { part, provenance_json, .. } = &self.spec;
        let ruled = (&part.session, &part.described);
        let read = || PartNodes::read_ruled(&part.model, &part.named_values, provenance_json, ruled);
        let nodes = self.nodes.get_or_init(|| read().map_err(|error| error.to_string()));
        nodes.as_ref().map_err(|why| WireError::client(ErrorCode::BadModel, format!("model: {why}")))
    }

    /// Its provenance.json, with all options that its execution providers run with: the client tells those that were asked
    /// for. A text of another form stays as it is.
    pub fn provenance_json(&self) -> Cow<'_, str> {
        let PreparePart { part, provenance_json, .. } = &self.spec;
        let is_told = |(name, asked): &Provider| provider_options(name, asked) == *asked;
        let text = Cow::Borrowed(provenance_json.as_str());
        if part.session.providers.iter().all(is_told) {
            text
        } else {
            with_options(provenance_json).map_or(text, Cow::Owned)
        }
    }

    /// Nodes of it as a part of their own, with the kernels that it runs with, and nothing else optimized.
    pub fn spec_of(&self, piece: &SubModel) -> PartSpec {
        self.piece_spec(piece.model.clone(), piece.named_values.clone(), self.spec.part.session.unoptimized())
    }

    /// The same, with the names that it has here: what a post-mortem writes down is then the model that killed the executor.
    pub fn piece(&self, piece: &SubModel) -> Self {
        let (model, named_values) = piece.named();
        let spec = self.piece_spec(model, named_values, self.spec.part.session.unoptimized());
        let values = piece.inputs.iter().zip(&piece.record.inputs).map(|(name, tensor)| ValueSpec {
            name: name.clone(),
            dtype: tensor.desc.dtype,
            dims: tensor.desc.shape.dims().to_vec(),
        });
        let spec = PreparePart { part: spec, provenance_json: String::new(), frozen: Vec::new() };
        Self::new(spec, values.collect(), Vec::new(), None)
    }

    fn piece_spec(&self, model: Bytes, named_values: Vec<ValueName>, session: SessionSpec) -> PartSpec {
        let part = &self.spec.part;
        let described = named_values.iter().filter_map(|name| Some((name.clone(), part.described.get(name)?.clone())));
        PartSpec {
            graph: part.graph,
            part: part.part,
            model,
            session,
            fx_values: BTreeMap::new(),
            described: described.collect(),
            named_values,
        }
    }

    /// Bytes that the daemon keeps of it.
    pub fn kept_bytes(&self) -> usize {
        let PreparePart { part, provenance_json, frozen } = &self.spec;
        let texts = part.named_values.iter().chain(part.fx_values.iter().flat_map(|(fx, value)| [fx, value]));
        let texts = texts.chain(&part.session.disabled_optimizers).chain(&part.session.disabled_passes);
        let texts = texts.chain(&part.session.keep_float32);
        let texts = texts.chain(part.session.runtimes.iter().flat_map(|rule| &rule.patterns));
        let texts =
            texts.chain(part.described.iter().flat_map(|(value, told)| [value, &told.fx, &told.op, &told.module]));
        let texts = texts.map(|text| text.capacity() + ALLOCATION);
        let libraries = part.session.custom_op_libraries.iter().map(|library| library.path.capacity() + ALLOCATION);
        let providers = part.session.providers.iter().map(|(name, _)| name.capacity() + ALLOCATION);
        let options = part.session.providers.iter().map(|(_, options)| options).chain([&part.session.config]);
        let options = options.map(|options| size_of_val(options) + options.iter().map(option_bytes).sum::<usize>());
        let slots = slots_bytes(&part.named_values)
            + slots_bytes(&part.session.disabled_optimizers)
            + slots_bytes(&part.session.disabled_passes)
            + slots_bytes(&part.session.keep_float32)
            + slots_bytes(&part.session.runtimes)
            + part.session.runtimes.iter().map(|rule| slots_bytes(&rule.patterns)).sum::<usize>()
            + part.described.len() * 2 * MAP_ENTRY
            + slots_bytes(&part.session.providers)
            + slots_bytes(&part.session.custom_op_libraries)
            + slots_bytes(frozen)
            + frozen.iter().map(|frozen| size_of_val(frozen.tensor.desc.shape.dims()) + ALLOCATION).sum::<usize>();
        let all = [part.model.len(), provenance_json.len(), slots, part.fx_values.len() * MAP_ENTRY];
        all.into_iter().chain(texts).chain(options).chain(libraries).chain(providers).sum()
    }
}

/// A provenance.json with all options of its `providers`; None where it is no such text.
fn with_options(provenance_json: &str) -> Option<String> {
    let mut provenance: BTreeMap<String, Value> = serde_json::from_str(provenance_json).ok()?;
    let told: Vec<Provider> = serde_json::from_value(provenance.get("providers")?.clone()).ok()?;
    let whole = |(name, asked): Provider| (name.clone(), provider_options(&name, &asked));
    let providers: Vec<Provider> = told.into_iter().map(whole).collect();
    provenance.insert("providers".to_owned(), serde_json::to_value(providers).ok()?);
    serde_json::to_string(&provenance).ok()
}

/// What the allocator takes for a short text, about.
const ALLOCATION: usize = 16;
/// What an entry of a map takes beside its texts, about.
const MAP_ENTRY: usize = 4 * size_of::<String>();

fn slots_bytes<T>(of: &Vec<T>) -> usize {
    of.capacity() * size_of::<T>()
}

fn option_bytes((name, value): (&String, &String)) -> usize {
    name.capacity() + value.capacity() + MAP_ENTRY + 2 * ALLOCATION
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_providers(providers: &str) -> Option<Value> {
        let whole = with_options(&format!(r#"{{"inputs":[{{"name":"x"}}],"providers":{providers}}}"#))?;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        assert_eq!(whole["inputs"][0]["name"], "x");
        Some(whole["providers"].clone())
    }

    #[test]
    fn a_provenance_tells_the_options_that_nobody_asked_for() {
        for (told, whole) in [
            (
                r#"[["CUDAExecutionProvider",{"device_id":"1"}],["CPUExecutionProvider",{}]]"#,
                r#"[["CUDAExecutionProvider",{"device_id":"1","use_tf32":"0"}],["CPUExecutionProvider",{}]]"#,
            ),
            (r#"[["CUDAExecutionProvider",{"use_tf32":"1"}]]"#, r#"[["CUDAExecutionProvider",{"use_tf32":"1"}]]"#),
            ("[]", "[]"),
        ] {
            assert_eq!(with_providers(told), Some(serde_json::from_str(whole).unwrap()), "{told}");
        }
    }

    #[test]
    fn a_provenance_of_another_form_stays_as_it_is() {
        for text in ["", "[]", "{}", r#"{"providers":["CUDAExecutionProvider"]}"#, r#"{"providers":7}"#, "no JSON"] {
            assert_eq!(with_options(text), None, "{text}");
        }
    }
}
