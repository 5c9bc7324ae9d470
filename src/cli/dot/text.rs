//! A drawing as DOT.

use std::fmt::Write as _;

use super::drawing::{Drawing, Edge, Shown};
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
        let told = told(edge, drawing);
        let _ = writeln!(text, "  n{} -> n{}{told};", edge.from, edge.to);
    }
    text + "}\n"
}

/// What stands on a line from or to a module's box: its value, or how many.
fn told(edge: &Edge, drawing: &Drawing) -> String {
    if !edge.is_of_module(drawing) {
        return String::new();
    }
    let label = match edge.values.as_slice() {
        [value] => short(value, COLUMNS),
        values => format!("{} values", values.len()),
    };
    format!(" [label={}, tooltip={}]", dot(&label), dot(&long(&edge.values.join("\n"))))
}

fn attributes(shown: &Shown) -> String {
    let label = format!("{}\n{}", shown.label(COLUMNS), shown.second_line(COLUMNS));
    let mut text = format!("label={}, tooltip={}", dot(&label), dot(&long(&shown.detail)));
    if let Some(mark) = shown.mark {
        let _ = write!(text, ", fillcolor={}", dot(colour(mark).0));
    }
    if shown.inside.is_some() {
        text += ", shape=box3d";
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
    use crate::cli::dot::drawing::Inside;
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
        let drawing = Drawing {
            title: "g".into(),
            boxes,
            edges: vec![Edge { from: 0, to: 1, ..Edge::default() }],
            ..Default::default()
        };
        let expected = "digraph \"g\" {\n  rankdir=TB;\n  \
            node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10];\n    \
            n0 [label=\"input\\nx\", tooltip=\"all\", shape=ellipse];\n  \
            subgraph cluster_1 {\n    label=\"m<b>\";\n    \
            n1 [label=\"Neg\\ny\\\"];\\\\N\", tooltip=\"all\", fillcolor=\"#f8b4ae\", penwidth=2];\n  }\n  \
            n0 -> n1;\n}\n";
        assert_eq!(text_of(&drawing), expected);
    }

    #[test]
    fn a_line_of_several_values_tells_their_number() {
        let shown = |inside: Option<Inside>| Shown { inside, ..Shown::default() };
        let edge = |to: usize, values: &[&str]| Edge {
            from: 0,
            to,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let boxes = vec![shown(Some(Inside::default())), shown(None), shown(None)];
        let edges = vec![edge(1, &["a"]), edge(2, &["a", "b"])];
        let text = text_of(&Drawing { boxes, edges, ..Drawing::default() });
        assert!(text.contains("n0 -> n1 [label=\"a\", tooltip=\"a\"];"), "{text}");
        assert!(text.contains("n0 -> n2 [label=\"2 values\", tooltip=\"a\\nb\"];"), "{text}");
    }
}
