//! Which execution providers have a session's nodes. No function of the C API up to version 17 tells: ONNX Runtime writes it
//! to the session's log, at the level VERBOSE, while the session is made.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::base::sync::lock;
use crate::protocol::message::{Placed, Placement};

const BEGIN: &str = "Node placements";
const ALL: &str = " All nodes placed on [";
const SOME: &str = " Node(s) placed on [";
const COUNT: &str = "]. Number of nodes: ";
const NODE: &str = "  ";

/// What is heard of a log: `VerifyEachNodeIsAssignedToAnEp` of ONNX Runtime's session_state.cc, which has said it in these
/// words since 1.13. Whatever does not fit them is unknown, and no error.
#[derive(Debug, Default)]
pub(super) struct Told {
    state: State,
    placed: BTreeMap<String, Placed>,
}

#[derive(Debug, Default, PartialEq)]
enum State {
    /// Nothing yet.
    #[default]
    Before,
    /// Nodes of this provider follow, so many.
    Listing { provider: String, left: u32 },
    /// All of a provider was told; another may follow.
    Between,
    /// Everything was told.
    After,
    /// Other words than these.
    Unknown,
}

impl Told {
    /// The next message of the log, without what says when and where it was written.
    pub(super) fn hear(&mut self, message: &str) {
        let state = std::mem::take(&mut self.state);
        self.state = match state {
            State::Before if message == BEGIN => State::Between,
            State::Before => State::Before,
            State::Listing { provider, left } => self.node(provider, left, message),
            State::Between => self.provider(message),
            // A second time: of what is it then?
            State::After if message == BEGIN => State::Unknown,
            State::After => State::After,
            State::Unknown => State::Unknown,
        };
    }

    fn provider(&mut self, message: &str) -> State {
        let (all, told) = match (message.strip_prefix(ALL), message.strip_prefix(SOME)) {
            (Some(told), _) => (true, told),
            (None, Some(told)) => (false, told),
            (None, None) if message.starts_with(' ') || self.placed.is_empty() => return State::Unknown,
            (None, None) => return State::After,
        };
        let Some((provider, nodes)) = told.split_once(COUNT) else { return State::Unknown };
        let Ok(nodes) = nodes.parse() else { return State::Unknown };
        if provider.is_empty() || self.placed.contains_key(provider) || all && !self.placed.is_empty() {
            return State::Unknown;
        }
        self.placed.insert(provider.to_owned(), Placed { nodes, ops: BTreeMap::new() });
        match (all, nodes) {
            (true, _) => State::After,
            (false, 0) => State::Between,
            (false, left) => State::Listing { provider: provider.to_owned(), left },
        }
    }

    /// "  Shape (node_7)"; the name is anything.
    fn node(&mut self, provider: String, left: u32, message: &str) -> State {
        let op = message.strip_prefix(NODE).and_then(|node| node.split_once(" (")).map(|(op, _)| op);
        let Some(op) = op.filter(|op| !op.is_empty() && !op.contains(' ')) else { return State::Unknown };
        let placed = self.placed.entry(provider.clone()).or_default();
        *placed.ops.entry(op.to_owned()).or_default() += 1;
        if left == 1 { State::Between } else { State::Listing { provider, left: left - 1 } }
    }

    /// What the log told, all of it heard.
    pub(super) fn placement(self) -> Placement {
        match self.state {
            State::After | State::Between if !self.placed.is_empty() => Placement::Told(self.placed),
            _ => Placement::Unknown,
        }
    }
}

/// A session's log while it is made. What ONNX Runtime logs afterwards goes by.
#[derive(Debug, Default)]
pub(super) struct Listener(Mutex<Option<Told>>);

impl Listener {
    /// Hears from now on.
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(Told::default())))
    }

    /// A message below the level of a warning.
    pub(super) fn hear(&self, message: &str) {
        if let Some(told) = &mut *lock(&self.0) {
            told.hear(message);
        }
    }

    /// The session is made: what was told, once; nothing is listened to any more.
    pub(super) fn end(&self) -> Placement {
        lock(&self.0).take().map_or(Placement::Unknown, Told::placement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(log: &str) -> Placement {
        let listener = Listener::new();
        log.lines().for_each(|line| listener.hear(line));
        listener.end()
    }

    /// A provider, how many nodes it has, and of which operators.
    type Of<'t> = (&'t str, u32, &'t [(&'t str, u32)]);

    fn told<const N: usize>(providers: [Of<'_>; N]) -> Placement {
        let ops = |ops: &[(&str, u32)]| ops.iter().map(|&(op, n)| (op.to_owned(), n)).collect();
        let placed = |(provider, nodes, of): Of<'_>| (provider.to_owned(), Placed { nodes, ops: ops(of) });
        Placement::Told(providers.into_iter().map(placed).collect())
    }

    /// What the log of 1.31.1 holds around it, of a session on the CPU.
    const OF_ONE: &str = "\
GraphTransformer MemcpyTransformer modified: 0 with status: OK
Node placements
 All nodes placed on [CPUExecutionProvider]. Number of nodes: 5
SaveMLValueNameIndexMapping
Done saving OrtValue mappings.
Use DeviceBasedPartition as default";

    const OF_TWO: &str = "\
Node placements
 Node(s) placed on [CPUExecutionProvider]. Number of nodes: 3
  Shape (node_Shape_4)
  NonZero ()
  Shape (a (b) c)
 Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 2
  MatMul (mm)
  MemcpyToHost (Memcpy)
SaveMLValueNameIndexMapping";

    #[test]
    fn a_session_of_one_provider_tells_a_number() {
        assert_eq!(heard(OF_ONE), told([("CPUExecutionProvider", 5, &[])]));
        let last = OF_ONE.split("SaveML").next().unwrap();
        assert_eq!(heard(last), told([("CPUExecutionProvider", 5, &[])]), "nothing comes after it");
    }

    #[test]
    fn a_session_of_two_providers_tells_each_node() {
        let cpu: &[(&str, u32)] = &[("NonZero", 1), ("Shape", 2)];
        let cuda: &[(&str, u32)] = &[("MatMul", 1), ("MemcpyToHost", 1)];
        let both = told([("CPUExecutionProvider", 3, cpu), ("CUDAExecutionProvider", 2, cuda)]);
        assert_eq!(heard(OF_TWO), both);
        assert_eq!(heard(OF_TWO.strip_suffix("\nSaveMLValueNameIndexMapping").unwrap()), both);
    }

    #[test]
    fn other_words_are_unknown_and_never_all_on_one() {
        let twice = format!("{OF_TWO}\n{OF_TWO}");
        let changed = [
            "",
            "Node placements",
            "Node placements\nSaveMLValueNameIndexMapping",
            "Node placements\n All nodes are on [CUDAExecutionProvider]: 5",
            " All nodes placed on [CUDAExecutionProvider]. Number of nodes: 5",
            "Node placements\n All nodes placed on [CUDAExecutionProvider]. Number of nodes: many",
            "Node placements\n All nodes placed on []. Number of nodes: 5",
            "Node placements\n Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 2\n  MatMul (mm)",
            "Node placements\n Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 1\n  MatMul (a)\n  Add (b)",
            "Node placements\n Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 2\n  MatMul (a)\nx\n  Add (b)",
            "Node placements\n Node(s) placed on [CUDAExecutionProvider]. Number of nodes: 1\n  a node (a)",
            &twice,
        ];
        for log in changed {
            assert_eq!(heard(log), Placement::Unknown, "{log}");
        }
    }

    #[test]
    fn nothing_is_listened_to_after_the_session_is_made() {
        let listener = Listener::new();
        OF_ONE.lines().for_each(|line| listener.hear(line));
        assert_eq!(listener.end(), told([("CPUExecutionProvider", 5, &[])]));
        OF_ONE.lines().for_each(|line| listener.hear(line));
        assert_eq!(listener.end(), Placement::Unknown);
    }
}
