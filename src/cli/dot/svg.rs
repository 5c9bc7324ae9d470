//! A drawing as SVG: no script, no link, nothing from elsewhere.

use std::fmt::Write as _;

use super::drawing::{Drawing, Edge, Shown};
use super::escape::{long, short, xml};
use super::layout::{BOX, Layout, Point, Run, layout};
use crate::cli::node_table::Mark;

/// Columns of a box's text.
pub(super) const COLUMNS: usize = 27;
/// Height of what stands above the picture.
const HEADER: i64 = 60;
/// Least room of a number beside a line.
const LEAST_ROOM: i64 = 16;
/// Least width, for the header.
const LEAST: i64 = 720;

const STYLE: &str = "\
    text{font:11px monospace;fill:#222}\
    .o{font-weight:bold}\
    rect{fill:#fff;stroke:#555}\
    .i rect{fill:#eef2f7;stroke-dasharray:3 2}\
    .d rect{stroke:#243b53;stroke-width:1.5}\
    .e rect{stroke:#111;stroke-width:2.5}\
    .n{font-size:9px;paint-order:stroke;stroke:#fff;stroke-width:2px}\
    .f{fill:#00000008;stroke:#9aa5b1}\
    .m{fill:#52606d}\
    path{fill:none;stroke:#8793a0}\
    g:hover>rect{stroke:#1463c9;stroke-width:2.5}";

/// Fill of a mark, and the name of its class.
pub(super) fn colour(mark: Mark) -> (&'static str, &'static str) {
    match mark {
        Mark::Match => ("#d3f2d6", "match"),
        Mark::Noise => ("#cdeff5", "noise"),
        Mark::Drifted => ("#fdebb3", "drifted"),
        Mark::Mismatch => ("#f8b4ae", "mismatch"),
        Mark::NotCompared => ("#e4e7eb", "not_compared"),
        Mark::Failed => ("#e58fd8", "failed"),
    }
}

/// The picture, and how many rows of boxes it has. heading: what it is of, and what is in it.
pub(super) fn svg_of(drawing: &Drawing, [of, content]: &[String; 2]) -> (String, usize) {
    let runs: Vec<Run> = drawing
        .runs()
        .into_iter()
        .map(|boxes| Run { is_framed: !drawing.boxes[boxes.start].module.is_empty(), boxes })
        .collect();
    let is_input: Vec<bool> = drawing.boxes.iter().map(|shown| shown.is_input).collect();
    let layout = layout(&runs, &drawing.edges, &is_input);
    let (width, height) = (layout.size.width.max(LEAST), layout.size.height + HEADER);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <title>{}</title>\n<style>{STYLE}",
        xml(&short(&drawing.title, 200))
    );
    for &mark in drawing.counts().keys() {
        let (fill, class) = colour(mark);
        let _ = write!(svg, ".{class} rect{{fill:{fill}}}");
    }
    svg += "</style>\n";
    let _ = writeln!(svg, "<text x=\"16\" y=\"18\" class=\"o\">{}</text>", xml(&short(of, 100)));
    let _ = writeln!(svg, "<text x=\"16\" y=\"34\">{}</text>", xml(&short(content, 100)));
    svg += &legend(drawing);
    let _ = writeln!(svg, "<g transform=\"translate(0 {HEADER})\">");
    frames(&mut svg, drawing, &runs, &layout);
    write_lines(&mut svg, drawing, &layout);
    for (shown, at) in drawing.boxes.iter().zip(&layout.boxes) {
        write_box(&mut svg, shown, *at);
    }
    (svg + "</g>\n</svg>\n", layout.n_rows)
}

/// The lines of each value; of several values from one box to another their number, where they arrive.
fn write_lines(svg: &mut String, drawing: &Drawing, layout: &Layout) {
    let mut leaving: Vec<Vec<&Edge>> = vec![Vec::new(); drawing.boxes.len()];
    let mut n_arriving = vec![0; drawing.boxes.len()];
    for edge in &drawing.edges {
        leaving[edge.from].push(edge);
        n_arriving[edge.to] += 1;
    }
    for (at, lines) in &layout.lines {
        let edges = &leaving[*at];
        let title = match edges.iter().any(|edge| edge.is_of_module(drawing)) {
            true => edges.iter().map(|edge| edge.told(drawing)).collect::<Vec<_>>().join("\n"),
            false => drawing.boxes[*at].name.clone(),
        };
        let _ = writeln!(svg, "<path d=\"{}\"><title>{}</title></path>", path(lines), xml(&long(&title)));
        // A box's own lines come first, in the order of the edges; the last may be the lane's.
        let is_told = |edge: &Edge| edge.is_of_module(drawing) && !drawing.boxes[*at].is_input;
        for (edge, line) in edges.iter().zip(lines).filter(|(edge, _)| is_told(edge)) {
            let is_room = BOX.width / (n_arriving[edge.to] + 1) >= LEAST_ROOM;
            if let (n @ 2.., true, Some(end)) = (edge.values.len(), is_room, line.last()) {
                let _ = writeln!(svg, "<text class=\"n\" x=\"{}\" y=\"{}\">{n}</text>", end.x + 2, end.y - 2);
            }
        }
    }
}

/// What the colours say, with counts; empty where nothing was compared.
fn legend(drawing: &Drawing) -> String {
    let mut text = String::new();
    let mut x = 16;
    for (mark, n) in drawing.counts() {
        let words = format!("{n} {}", mark.word());
        let class = colour(mark).1;
        let _ = writeln!(
            text,
            "<g class=\"{class}\"><rect x=\"{x}\" y=\"43\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"53\">{words}</text></g>",
            x + 17
        );
        x += 40 + 7 * words.len() as i64;
    }
    text
}

fn frames(svg: &mut String, drawing: &Drawing, runs: &[Run], layout: &Layout) {
    for (run, frame) in runs.iter().zip(&layout.frames) {
        let Some(frame) = frame else { continue };
        let module = &drawing.boxes[run.boxes.start].module;
        let (Point { x, y }, size) = (frame.at, frame.size);
        // 7 pixels a column, and some at the sides.
        let columns = usize::try_from(size.width / 7 - 1).unwrap_or_default();
        let _ = writeln!(
            svg,
            "<g><title>{}</title><rect class=\"f\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"/>\
             <text class=\"m\" x=\"{}\" y=\"{}\">{}</text></g>",
            xml(&long(module)),
            size.width,
            size.height,
            x + 6,
            y + 14,
            xml(&short(module, columns)),
        );
    }
}

fn write_box(svg: &mut String, shown: &Shown, Point { x, y }: Point) {
    let mut classes = Vec::new();
    classes.extend(shown.is_input.then_some("i"));
    classes.extend(shown.inside.as_ref().map(|_| "d"));
    classes.extend(shown.is_output.then_some("e"));
    classes.extend(shown.mark.map(|mark| colour(mark).1));
    let _ = writeln!(
        svg,
        "<g class=\"{}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\
         <text class=\"o\" x=\"{tx}\" y=\"{}\">{}</text><text x=\"{tx}\" y=\"{}\">{}</text></g>",
        classes.join(" "),
        xml(&long(&shown.detail)),
        BOX.width,
        BOX.height,
        y + 15,
        xml(&shown.label(COLUMNS)),
        y + 29,
        xml(&shown.second_line(COLUMNS)),
        tx = x + 5,
    );
}

fn path(lines: &[Vec<Point>]) -> String {
    let mut text = String::new();
    for points in lines {
        let mut last: Option<&Point> = None;
        for point in points {
            let _ = match last {
                None => write!(text, "M{} {}", point.x, point.y),
                Some(last) if last.x == point.x => write!(text, "V{}", point.y),
                Some(_) => write!(text, "H{}", point.x),
            };
            last = Some(point);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::dot::drawing::Inside;

    #[test]
    fn a_hostile_name_leaves_no_markup_and_no_control_character() {
        let hostile = "</text><script>alert(1)</script><!--]]>&x;\" onload=\"x\u{1b}\u{202e}\0";
        let long = "n".repeat(10_000);
        let shown = |op: &str, name: &str| Shown {
            op: op.to_owned(),
            name: name.to_owned(),
            module: hostile.to_owned(),
            detail: format!("{op} {name}"),
            ..Default::default()
        };
        let boxes = vec![shown(hostile, hostile), shown("Neg", &long)];
        let drawing = Drawing {
            title: hostile.into(),
            boxes,
            edges: vec![Edge { from: 0, to: 1, ..Edge::default() }],
            ..Drawing::default()
        };
        let (svg, _) = svg_of(&drawing, &[hostile.to_owned(), String::new()]);
        let is_harmless = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        assert!(!svg.contains("<script") && !svg.contains("<!--") && svg.chars().all(is_harmless), "{svg}");
        assert_eq!(svg.matches("onload=&quot;").count(), svg.matches("onload=").count());
        assert!(
            svg.contains(&format!("{}… (10004 characters)", "n".repeat(1990))) && svg.len() < 12_000,
            "{}",
            svg.len()
        );
        // As many ends as beginnings, in order.
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split(' ').next().unwrap()),
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn a_line_goes_down_and_across() {
        let points = [(3, 4), (3, 9), (7, 9), (7, 12)].map(|(x, y)| Point { x, y });
        assert_eq!(path(&[points.to_vec(), points[..2].to_vec()]), "M3 4V9H7V12M3 4V9");
    }

    #[test]
    fn marks_are_colours_with_a_legend() {
        let boxes = [Mark::Match, Mark::Match, Mark::Failed]
            .map(|mark| Shown { mark: Some(mark), ..Default::default() })
            .to_vec();
        let (svg, n_rows) = svg_of(&Drawing { boxes, ..Default::default() }, &Default::default());
        assert!(svg.contains(">2 match</text>") && svg.contains(">1 failed</text>"), "{svg}");
        assert!(svg.contains(".failed rect{fill:#e58fd8}") && !svg.contains(".drifted"), "{svg}");
        assert_eq!(n_rows, 1);
    }

    #[test]
    fn a_line_between_modules_tells_its_values() {
        let module = |name: &str| Shown {
            name: name.to_owned(),
            inside: Some(Inside { n_nodes: 2, ..Inside::default() }),
            ..Shown::default()
        };
        let values = ["a<b", "c"].map(str::to_owned).to_vec();
        let edges = vec![Edge { from: 0, to: 1, values }];
        let mut drawing = Drawing { boxes: vec![module("m.0"), module("m.1")], edges, ..Drawing::default() };
        let (svg, _) = svg_of(&drawing, &Default::default());
        assert!(svg.contains("<title>to m.1: a&lt;b, c</title>") && svg.contains(">2</text>"), "{svg}");
        assert_eq!(svg.matches("class=\"d\"").count(), 2);
        drawing.boxes.iter_mut().for_each(|shown| shown.inside = None);
        let (svg, _) = svg_of(&drawing, &Default::default());
        assert!(svg.contains("<title>m.0</title>") && !svg.contains(">2</text>"), "{svg}");
    }
}
