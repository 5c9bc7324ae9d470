//! What requests write into the client's open dump. File systems may hang: nothing here holds the client's lock while it
//! writes, so that whoever asks for status or stop never waits for a disk. One thread of a client opens, fills and closes
//! dumps, one request at a time.

use std::sync::Arc;

use super::state::{Dumping, Leased, unexpected};
use crate::base::ids::{GraphId, Work};
use crate::daemon::client::Part;
use crate::daemon::ledger::Held;
use crate::link::message::{LinkReply, LinkRequest};
use crate::protocol::message::WireError;

/// Where a part is in the open dump.
pub struct DumpedPart {
    /// The graph's folder.
    pub name: String,
    /// It was written just now.
    pub new: bool,
}

impl Dumping<'_> {
    /// Counts bytes that wait for the dump's writer, after those before them are written where there is no room. Errors:
    /// Limit.
    pub fn hold(&self, len_bytes: usize) -> Result<Held, WireError> {
        let hold = || self.at.client.memory.hold("tensors on their way to a dump", len_bytes);
        hold().or_else(|_| {
            self.run.wait();
            hold()
        })
    }

    /// The folder of a registered graph, written when it is not there: a dump may be opened after the graph was
    /// registered. Errors: UnknownGraph, Dump.
    pub fn graph(&self, id: GraphId) -> Result<String, WireError> {
        let graph = {
            let state = self.at.client.state();
            if let Some((folder, _)) = state.dumped.get(&id) {
                return Ok(folder.clone());
            }
            Arc::clone(state.known(id)?)
        };
        let folder = self.run.graph(&graph.record())?;
        self.at.client.state().dumped.insert(id, (folder.clone(), Default::default()));
        Ok(folder)
    }

    /// The folder of the part's graph; part and graph are written when they are not there. Errors: UnknownGraph, Dump;
    /// what failed is tried again the next time.
    pub fn part(&self, part: &Part) -> Result<DumpedPart, WireError> {
        let (graph, index) = (part.spec.part.graph, part.spec.part.part);
        let name = self.graph(graph)?;
        if self.at.client.state().dumped.get(&graph).is_some_and(|(_, parts)| parts.contains(&index)) {
            return Ok(DumpedPart { name, new: false });
        }
        self.run.part(&name, index, &part.spec.part.model, &part.provenance_json())?;
        if let Some((_, parts)) = self.at.client.state().dumped.get_mut(&graph) {
            parts.insert(index);
        }
        Ok(DumpedPart { name, new: true })
    }

    /// The next time the part is dumped anew.
    pub fn forget(&self, part: &Part) {
        if let Some((_, parts)) = self.at.client.state().dumped.get_mut(&part.spec.part.graph) {
            parts.remove(&part.spec.part.part);
        }
    }

    /// Writes a graph that is not there, and those parts of it that are prepared. Errors: Dump.
    pub fn known(&self, graph: GraphId, work: Work) -> Result<(), WireError> {
        self.graph(graph)?;
        let parts = self.at.client.state().parts_of(graph);
        for part in parts {
            let folder = self.part(&part)?;
            if let Some(leased) = self.at.leased().ok().filter(|_| folder.new) {
                self.passes(&leased, &folder, &part, work);
            }
        }
        Ok(())
    }

    /// Writes what the precision pass and the runtime's optimizer make of the part's model. work: what the client waits
    /// for; with it this ends, too.
    pub fn passes(&self, leased: &Leased<'_>, folder: &DumpedPart, part: &Part, work: Work) {
        self.precision(leased, folder, part, work);
        self.optimized(leased, folder, part, work);
    }

    /// Writes the part's model after the precision pass, where the pass changes it. The executor runs the pass: a model
    /// comes from anywhere, and what it breaks there is one client's. What fails is logged: the session that is made of
    /// the same model fails too, and tells.
    pub fn precision(&self, leased: &Leased<'_>, folder: &DumpedPart, part: &Part, work: Work) {
        if is_divided(part) {
            return;
        }
        let written = match leased.ask(&LinkRequest::Widen { work, part: part.spec.part.clone() }) {
            Ok(LinkReply::Widened(None)) => Ok(()),
            Ok(LinkReply::Widened(Some(model))) => {
                self.run.precision(&folder.name, part.spec.part.part, &model).map_err(WireError::from)
            }
            Ok(other) => Err(unexpected("Widen", &other)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(graph = folder.name, part = part.spec.part.part, %error, "widened model not dumped");
        }
    }

    /// Writes what the runtime made of the part's model, once: a help to the reader that costs neither call nor dump when
    /// it cannot be had.
    pub fn optimized(&self, leased: &Leased<'_>, folder: &DumpedPart, part: &Part, work: Work) {
        if is_divided(part) {
            return;
        }
        let written = match leased.ask(&LinkRequest::Optimize { work, part: part.spec.part.clone() }) {
            Ok(LinkReply::Optimized(model)) => {
                self.run.optimized(&folder.name, part.spec.part.part, &model).map_err(WireError::from)
            }
            Ok(other) => Err(unexpected("Optimize", &other)),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(graph = folder.name, part = part.spec.part.part, %error, "optimized model not dumped");
        }
    }
}

/// Of a part that rules may divide among runtimes there is no one model that runs: the exported one, and the options, say
/// all there is to say.
fn is_divided(part: &Part) -> bool {
    !part.spec.part.session.runtimes.is_empty()
}
