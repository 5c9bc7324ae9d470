//! A drawing as DOT.

use std::fmt::Write as _;

use super::drawing::{Drawing, Shown};
use super::escape::{dot, long, short};
use super::svg::{COLUMNS, colour};

/// DOT text: one node a box, one cluster a run of boxes of one module. Graphviz finds the places.
pub(super) fn text_of(drawing: &Drawing) -> String {
    let mut text = format!("digraph {} {{\n", dot(&long(&drawing.title)));
    text += "  rankdir=TB;\n  node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10];\n";
    for (at, run) in drawing.runs().into_iter().enumerate() {
        let module = &drawing.boxes[run.start].module;
        if !module.is_empty() {
            let _ = writeln!(text, "  subgraph cluster_{at} {{\n    label={};", dot(&short(module, 4 * COLUMNS)));
        }
        for place in run {
            let shown = &drawing.boxes[place];
            let _ = writeln!(text, "    n{place} [{}];", attributes(shown));
        }
        if !module.is_empty() {
            text += "  }\n";
        }
    }
    for edge in &drawing.edges {
        let _ = writeln!(text, "  n{} -> n{};", edge.from, edge.to);
    }
    text + "}\n"
}

fn attributes(shown: &Shown) -> String {
    let label = format!("{}\n{}", shown.label(COLUMNS), short(&shown.name, COLUMNS));
    let mut text = format!("label={}, tooltip={}", dot(&label), dot(&long(&shown.detail)));
    if let Some(mark) = shown.mark {
        let _ = write!(text, ", fillcolor={}", dot(colour(mark).0));
    }
    if shown.is_input {
        text += ", shape=ellipse";
    }
    if shown.is_output {
        text += ", penwidth=2";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::dot::drawing::Edge;
    use crate::cli::node_table::Mark;

    #[test]
    fn a_drawing_is_nodes_clusters_and_edges() {
        let shown = |op: &str, name: &str, module: &str| Shown {
            op: op.to_owned(),
            name: name.to_owned(),
            module: module.to_owned(),
            detail: "all".to_owned(),
            ..Shown::default()
        };
        let mut boxes = vec![shown("input", "x", ""), shown("Neg", "y\"];\\N", "m<b>")];
        (boxes[0].is_input, boxes[1].is_output, boxes[1].mark) = (true, true, Some(Mark::Mismatch));
        let drawing = Drawing { title: "g".into(), boxes, edges: vec![Edge { from: 0, to: 1 }], ..Default::default() };
        let expected = "digraph \"g\" {\n  rankdir=TB;\n  \
            node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10];\n    \
            n0 [label=\"input\\nx\", tooltip=\"all\", shape=ellipse];\n  \
            subgraph cluster_1 {\n    label=\"m<b>\";\n    \
            n1 [label=\"Neg\\ny\\\"];\\\\N\", tooltip=\"all\", fillcolor=\"#f8b4ae\", penwidth=2];\n  }\n  \
            n0 -> n1;\n}\n";
        assert_eq!(text_of(&drawing), expected);
    }
}
