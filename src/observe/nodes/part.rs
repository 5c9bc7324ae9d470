//! What is known of a part's nodes before anything runs.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use bytes::Bytes;

use super::origin::{Origin, Provenance};
use crate::base::footprint::Footprint;
use crate::base::ids::ValueName;
use crate::base::sync::lock;
use crate::onnx::{self, Descriptions, Isolator, OnnxError};
use crate::protocol::message::SessionSpec;

/// A part's model, ready to be cut, and where its values come from.
#[derive(Debug)]
pub struct PartNodes {
    pub(super) isolator: Isolator,
    origins: HashMap<ValueName, Origin>,
    /// Values that a rule keeps from being rounded to half precision.
    pub(super) unrounded: HashSet<ValueName>,
    /// Rules of its session look for names.
    pub(super) has_rules: bool,
    /// Values whose own nodes failed once: they are run apart from others, which need not be made again then.
    apart: Mutex<HashSet<ValueName>>,
}

/// What a named value takes in the tables of names and origins, about.
const NAMED_BYTES: usize = 1 << 10;
/// What an object in provenance.json takes, about.
const OBJECT_BYTES: usize = 512;
/// The same of a name and its value.
const ENTRY_BYTES: usize = 256;

impl PartNodes {
    /// Reads a ModelProto. A provenance that cannot be read leaves the nodes without origin. Errors: [`OnnxError`].
    pub fn read(model: &Bytes, named_values: &[ValueName], provenance_json: &str) -> Result<Self, OnnxError> {
        Self::read_ruled(model, named_values, provenance_json, (&SessionSpec::default(), &Descriptions::new()))
    }

    /// As [`PartNodes::read`], of a part whose session may have rules, which look for names in these descriptions.
    pub fn read_ruled(
        model: &Bytes,
        named_values: &[ValueName],
        provenance_json: &str,
        (session, described): (&SessionSpec, &Descriptions),
    ) -> Result<Self, OnnxError> {
        let model = onnx::decode(model.clone())?;
        let unrounded = onnx::fitting_values(&model, &session.keep_float32, described)?;
        let isolator = Isolator::new(model, named_values)?;
        let origins = Provenance::read(provenance_json).origins(&isolator, named_values);
        let (has_rules, apart) = (session.has_patterns(), Mutex::default());
        Ok(Self { isolator, origins, unrounded, has_rules, apart })
    }

    /// What [`PartNodes::read`] of these takes beside the model's own bytes, at most: told before anything is decoded.
    pub fn footprint(model: &[u8], named_values: &[ValueName], provenance_json: &str) -> usize {
        // The isolator keeps the decoded model and knows each name of it by up to three tables.
        let Footprint { text_bytes, n_bytes, .. } = onnx::footprint(model);
        let decoded = text_bytes.saturating_add(n_bytes).saturating_mul(3);
        let named = named_values.iter().map(|name| 4 * name.len() + NAMED_BYTES).sum::<usize>();
        let count = |byte| provenance_json.bytes().filter(|&other| other == byte).count();
        // A text, and what it is put together or freed of escapes in.
        let provenance = 3 * provenance_json.len() + OBJECT_BYTES * count(b'{') + ENTRY_BYTES * count(b':');
        decoded.saturating_add(named).saturating_add(provenance)
    }

    /// Its own nodes failed.
    pub(super) fn set_apart(&self, value: &str) {
        let mut apart = lock(&self.apart);
        if !apart.contains(value) {
            apart.insert(value.to_owned());
        }
    }

    /// Whether they did in some call.
    pub(super) fn is_apart(&self, value: &str) -> bool {
        lock(&self.apart).contains(value)
    }

    pub(super) fn origin(&self, value: &str) -> Origin {
        self.origins.get(value).cloned().unwrap_or_default()
    }
}
