//! Modules as one box each.
//!
//! Nodes of one folded module become one box, and so do nodes of no module between them, such as a backward's sums of
//! gradients; unless others stand between them that read from some and are read by others: then the lines would go in a
//! circle, and the module becomes several boxes, in program order. Boxes stand in the order of their first nodes, but below
//! all that they read. Time grows with boxes and lines.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::str::FromStr;

use super::drawing::{Drawing, Edge, Inside, Shown, count};
use super::marks::worse;
use crate::cli::nearest;
use crate::cli::node_table::Mark;
use crate::onnx;

/// Nodes that a detail names.
const MOST_NAMED: usize = 20;
/// Inputs that only one module reads and that are more than this are one box.
const MOST_INPUTS: usize = 3;
/// Modules among which the one that a pattern may mean is looked for.
const MOST_NEAR: usize = 10_000;
/// Depths that are offered.
const MOST_DEPTHS: usize = 5;

/// Which modules become one box each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    /// Those whose path has so many parts, and those with fewer.
    Depth(usize),
    /// Those whose path a pattern fits: `*` is any text, `?` any character.
    Pattern(String),
}

impl FromStr for Fold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(0) => Err("a depth is 1 or more".to_owned()),
            Ok(depth) if is_number => Ok(Self::Depth(depth)),
            Err(_) if is_number => Ok(Self::Depth(usize::MAX)),
            _ if text.is_empty() => Err("expected a depth, or a pattern of modules' paths".to_owned()),
            _ => Ok(Self::Pattern(text.to_owned())),
        }
    }
}

/// Beginnings of a module's path that are paths of modules, the shortest first.
fn beginnings(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.char_indices().filter(|(_, c)| *c == '.').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| &path[..end]).filter(|path| !path.is_empty())
}

/// How many modules there are at each depth, as `--fold` counts it. Empty where nothing tells of modules.
pub(super) fn depths(drawing: &Drawing) -> Vec<usize> {
    let modules: HashSet<&str> = drawing.boxes.iter().map(|shown| shown.module.as_str()).collect();
    let deepest = modules.iter().map(|path| beginnings(path).count()).max().unwrap_or_default();
    let at_depth = |depth: usize| {
        let cut = modules.iter().filter_map(|path| beginnings(path).take(depth).last());
        cut.collect::<HashSet<_>>().len()
    };
    (1..=deepest.min(MOST_DEPTHS)).map(at_depth).collect()
}

/// The drawing with the modules as boxes that one of `folds` names; of a module within another the outer one counts.
/// Errors: no node has a module, or a pattern fits none.
pub(super) fn folded(mut drawing: Drawing, folds: &[Fold]) -> Result<Drawing, String> {
    let mut paths = chosen(&drawing.boxes, folds)?;
    adopt(&drawing, &mut paths);
    let (mut of, n_clusters) = clusters(&paths, &drawing.edges);
    gather_inputs(&drawing, &paths, &mut of, n_clusters);
    let mut members = vec![Vec::new(); n_clusters];
    of.iter().enumerate().for_each(|(at, &cluster)| members[cluster].push(at));
    let mut reads = vec![Vec::new(); n_clusters];
    let across = drawing.edges.iter().map(|edge| (of[edge.from], of[edge.to])).filter(|(from, to)| from != to);
    across.for_each(|(from, to)| reads[to].push(from));
    let mut order = order(&reads);
    order.retain(|&cluster| !members[cluster].is_empty());
    let mut places = vec![0; n_clusters];
    order.iter().enumerate().for_each(|(place, &cluster)| places[cluster] = place);
    drawing.edges = edges(&drawing.edges, |at| places[of[at]], order.len());
    let mut modules = Modules::new(order.iter().filter_map(|&cluster| paths[members[cluster][0]]), &drawing.classes);
    let mut boxes = Vec::with_capacity(order.len());
    for &cluster in &order {
        let nodes: Vec<&Shown> = members[cluster].iter().map(|&at| &drawing.boxes[at]).collect();
        boxes.push(match (paths[members[cluster][0]], nodes.as_slice()) {
            (Some(path), nodes) => modules.shown(path, nodes),
            (None, [one]) => (*one).clone(),
            (None, many) => inputs(many),
        });
    }
    drawing.boxes = boxes;
    Ok(drawing)
}

/// Of each box the path of the module that it is folded into. Errors: those of [`folded`].
fn chosen<'a>(boxes: &'a [Shown], folds: &[Fold]) -> Result<Vec<Option<&'a str>>, String> {
    let modules: BTreeSet<&str> = boxes.iter().map(|shown| shown.module.as_str()).collect();
    if modules.iter().all(|path| path.is_empty()) {
        let whose = "a part of a dump knows the modules of its nodes (`with rust_ort.dump(\"name\"): ...`), and so does a \
            model that rust_ort.to_onnx or torch.onnx.export(..., dynamo=True) wrote";
        return Err(format!("no node tells which module it is of: there is nothing to --fold; {whose}"));
    }
    let depth = folds.iter().filter_map(|fold| if let Fold::Depth(depth) = fold { Some(*depth) } else { None }).min();
    let mut is_met = vec![false; folds.len()];
    // What modules are in is looked at once.
    let mut fitting: HashMap<&str, bool> = HashMap::new();
    let mut choices: HashMap<&str, Option<&str>> = HashMap::new();
    for &path in &modules {
        let mut outermost = None;
        // All of them, so that a pattern that fits within another's module is met.
        for (at, beginning) in beginnings(path).enumerate() {
            let is_there = depth.is_some_and(|depth| at + 1 == depth || at + 1 < depth && beginning == path);
            let fits = *fitting.entry(beginning).or_insert_with(|| fits(beginning, folds, &mut is_met));
            outermost = outermost.or((fits || is_there).then_some(beginning));
        }
        choices.insert(path, outermost);
    }
    for (fold, _) in folds.iter().zip(&is_met).filter(|(_, is_met)| !**is_met) {
        if let Fold::Pattern(pattern) = fold {
            let all: BTreeSet<&str> = modules.iter().flat_map(|path| beginnings(path)).collect();
            let hint = nearest::hint(pattern, all.into_iter().take(MOST_NEAR));
            return Err(format!("--fold {pattern:?}: it fits the path of no module{hint}"));
        }
    }
    Ok(boxes.iter().map(|shown| choices.get(shown.module.as_str()).copied().flatten()).collect())
}

/// Whether a pattern fits a path; of all that do it is noted.
fn fits(path: &str, folds: &[Fold], is_met: &mut [bool]) -> bool {
    let mut fits = false;
    for (fold, is_met) in folds.iter().zip(is_met) {
        if matches!(fold, Fold::Pattern(pattern) if onnx::matches(pattern, path)) {
            (fits, *is_met) = (true, true);
        }
    }
    fits
}

/// Gives nodes of no module to the folded module that all that reads them is of, and some of what they read, both through
/// others of no module: as boxes of their own they would close a circle.
fn adopt<'a>(drawing: &Drawing, paths: &mut [Option<&'a str>]) {
    let is_free = |at: usize| drawing.boxes[at].module.is_empty() && !drawing.boxes[at].is_input;
    // The folded module of all readers; Some(None) where there are several, or others.
    let mut below: Vec<Option<Option<&'a str>>> = vec![None; paths.len()];
    for edge in drawing.edges.iter().rev().filter(|edge| is_free(edge.from)) {
        let path = if is_free(edge.to) { below[edge.to].flatten() } else { paths[edge.to] };
        let known = below[edge.from].unwrap_or(path);
        below[edge.from] = Some(known.filter(|_| known == path));
    }
    for Edge { from, to, .. } in drawing.edges.iter().filter(|edge| is_free(edge.to)) {
        // What is read comes first, and has its module by now.
        if let Some(path) = below[*to].flatten().filter(|path| paths[*from] == Some(path)) {
            paths[*to] = Some(path);
        }
    }
}

/// Of each box the number of the cluster that it is in, in the order of the clusters' first boxes, and how many there are.
/// Lines between clusters go in no circle.
fn clusters(paths: &[Option<&str>], edges: &[Edge]) -> (Vec<usize>, usize) {
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut groups = Vec::with_capacity(paths.len());
    let mut n_groups = 0;
    for path in paths {
        let group = path.map_or(n_groups, |path| *known.entry(path).or_insert(n_groups));
        n_groups = n_groups.max(group + 1);
        groups.push(group);
    }
    let mut reads = vec![Vec::new(); n_groups];
    let mut reads_of = vec![Vec::new(); paths.len()];
    for edge in edges {
        reads[groups[edge.to]].push(groups[edge.from]);
        reads_of[edge.to].push(edge.from);
    }
    let circles = circles(&reads);
    // The cluster of a group that is filled: in a circle one that reads from none that began later.
    let mut open: Vec<Option<usize>> = vec![None; n_groups];
    let mut clusters: Vec<usize> = Vec::with_capacity(paths.len());
    let mut n_clusters = 0;
    for (at, &group) in groups.iter().enumerate() {
        let circle = circles[group];
        let fits = |cluster: &usize| {
            let within = reads_of[at].iter().filter(|&&from| circles[groups[from]] == circle);
            circle.is_none() || within.map(|&from| clusters[from]).all(|from| from <= *cluster)
        };
        let cluster = open[group].filter(fits).unwrap_or(n_clusters);
        n_clusters = n_clusters.max(cluster + 1);
        open[group] = Some(cluster);
        clusters.push(cluster);
    }
    (clusters, n_clusters)
}

/// Of each of a graph's nodes the number of the circle that it is in with others (strongly connected components, after
/// Tarjan); None of one that is in none. reads: whom each reads.
fn circles(reads: &[Vec<usize>]) -> Vec<Option<usize>> {
    const NEW: usize = usize::MAX;
    let (mut found, mut low) = (vec![NEW; reads.len()], vec![NEW; reads.len()]);
    let mut circles = vec![None; reads.len()];
    let mut is_done = vec![false; reads.len()];
    let (mut n_found, mut waiting) = (0, Vec::new());
    for root in 0..reads.len() {
        let mut path = if found[root] == NEW { vec![(root, 0)] } else { Vec::new() };
        while let Some((at, next)) = path.pop() {
            if next == 0 {
                (found[at], low[at]) = (n_found, n_found);
                n_found += 1;
                waiting.push(at);
            } else {
                low[at] = low[at].min(low[reads[at][next - 1]]);
            }
            let step = (next..reads[at].len()).find(|&step| {
                let from = reads[at][step];
                if found[from] != NEW && !is_done[from] {
                    low[at] = low[at].min(found[from]);
                }
                found[from] == NEW
            });
            if let Some(step) = step {
                path.extend([(at, step + 1), (reads[at][step], 0)]);
            } else if low[at] == found[at] {
                let first = waiting.iter().rposition(|&one| one == at).unwrap_or_default();
                let circle = waiting.split_off(first);
                for &one in &circle {
                    is_done[one] = true;
                    low[one] = NEW;
                    circles[one] = (circle.len() > 1).then_some(at);
                }
            }
        }
    }
    circles
}

/// Puts the inputs that one folded module alone reads into one cluster, where they are many: a backward reads hundreds.
fn gather_inputs(drawing: &Drawing, paths: &[Option<&str>], of: &mut [usize], n_clusters: usize) {
    let mut readers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for edge in drawing.edges.iter().filter(|edge| drawing.boxes[edge.from].is_input) {
        let reader = if paths[edge.to].is_some() { of[edge.to] } else { n_clusters };
        readers.entry(edge.from).or_default().insert(reader);
    }
    let mut alone: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (input, readers) in readers.into_iter().filter(|(input, _)| !drawing.boxes[*input].is_output) {
        if let (1, Some(&reader)) = (readers.len(), readers.first().filter(|reader| **reader < n_clusters)) {
            alone.entry(reader).or_default().push(input);
        }
    }
    for inputs in alone.into_values().filter(|inputs| inputs.len() > MOST_INPUTS) {
        let first = of[inputs[0]];
        inputs.into_iter().for_each(|input| of[input] = first);
    }
}

/// Clusters in their order, but each behind all that it reads.
fn order(reads: &[Vec<usize>]) -> Vec<usize> {
    let mut order = Vec::with_capacity(reads.len());
    let mut is_met = vec![false; reads.len()];
    for first in 0..reads.len() {
        let mut path = if is_met[first] { Vec::new() } else { vec![(first, 0)] };
        is_met[first] = true;
        while let Some((at, next)) = path.pop() {
            match reads[at].get(next) {
                None => order.push(at),
                Some(&from) => {
                    path.push((at, next + 1));
                    if !is_met[from] {
                        is_met[from] = true;
                        path.push((from, 0));
                    }
                }
            }
        }
    }
    order
}

/// Lines between boxes, each pair's once, with all values that go from one to the other.
fn edges(all: &[Edge], place: impl Fn(usize) -> usize, n_boxes: usize) -> Vec<Edge> {
    let mut by_reader: Vec<Vec<(usize, &Edge)>> = vec![Vec::new(); n_boxes];
    for edge in all {
        let (from, to) = (place(edge.from), place(edge.to));
        if from != to {
            by_reader[to].push((from, edge));
        }
    }
    let mut edges: Vec<Edge> = Vec::new();
    for (to, read) in by_reader.into_iter().enumerate() {
        let mut known: HashMap<usize, usize> = HashMap::new();
        let mut told: HashSet<(usize, &str)> = HashSet::new();
        for (from, edge) in read {
            let line = *known.entry(from).or_insert(edges.len());
            if line == edges.len() {
                edges.push(Edge { from, to, values: Vec::new() });
            }
            let new = edge.values.iter().filter(|value| told.insert((from, value)));
            edges[line].values.extend(new.cloned());
        }
    }
    edges
}

/// Modules that are folded, as boxes.
struct Modules<'a> {
    /// Boxes of each, and how many of them are made.
    boxes: HashMap<&'a str, (usize, usize)>,
    /// Those with others within them.
    outer: HashSet<&'a str>,
    classes: &'a HashMap<String, String>,
}

impl<'a> Modules<'a> {
    /// paths: one a box.
    fn new(paths: impl Iterator<Item = &'a str>, classes: &'a HashMap<String, String>) -> Self {
        let mut boxes: HashMap<&str, (usize, usize)> = HashMap::new();
        paths.for_each(|path| boxes.entry(path).or_default().0 += 1);
        let within = |path: &&'a str| {
            let path = *path;
            beginnings(path).filter(move |beginning| *beginning != path)
        };
        let outer = boxes.keys().flat_map(within).collect();
        Self { boxes, outer, classes }
    }

    /// The next box of a module, of these nodes. It stands in the frame of the module that it is in; what is a module's own
    /// in its own frame.
    fn shown(&mut self, path: &'a str, nodes: &[&Shown]) -> Shown {
        let (of, made) = self.boxes.entry(path).or_default();
        *made += 1;
        let part = (*made, *of);
        let is_own = self.outer.contains(path);
        let mut marks: BTreeMap<Mark, usize> = BTreeMap::new();
        nodes.iter().filter_map(|node| node.mark).for_each(|mark| *marks.entry(mark).or_default() += 1);
        let mut ops: HashMap<&str, usize> = HashMap::new();
        nodes.iter().for_each(|node| *ops.entry(&node.op).or_default() += 1);
        let mut ops: Vec<(String, usize)> = ops.into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
        ops.sort_by(|(one, n), (other, others)| others.cmp(n).then_with(|| one.cmp(other)));
        let inside = Inside { n_nodes: nodes.len(), ops, marks, is_own, part };
        let mark = inside.marks.keys().copied().reduce(worse);
        let class = self.classes.get(path).cloned().unwrap_or_default();
        let outside = if is_own { path } else { path.rsplit_once('.').map_or("", |(outside, _)| outside) };
        Shown {
            detail: detail(path, &class, &inside, nodes),
            op: class,
            name: path.to_owned(),
            module: outside.to_owned(),
            of: String::new(),
            mark,
            is_input: false,
            is_output: nodes.iter().any(|node| node.is_output),
            inside: Some(inside),
        }
    }
}

fn detail(path: &str, class: &str, inside: &Inside, nodes: &[&Shown]) -> String {
    let class = if class.is_empty() { String::new() } else { format!(" ({class})") };
    let mut lines = vec![format!("module {path}{class}")];
    lines.extend(inside.is_own.then(|| "its own nodes; modules in it have their boxes".to_owned()));
    if let (part, of @ 2..) = inside.part {
        lines.push(format!("box {part} of {of}: other boxes read from one and are read by the next"));
    }
    lines.push(format!("{}: {}", count(inside.n_nodes, "node"), inside.operators()));
    if let Some(worst) = inside.marks.keys().copied().reduce(worse) {
        let counts: Vec<_> = inside.marks.iter().map(|(mark, n)| format!("{n} {}", mark.word())).collect();
        lines.push(format!("verdicts: {}", counts.join(", ")));
        if !matches!(worst, Mark::Match | Mark::NotCompared) {
            let names = nodes.iter().filter(|node| node.mark == Some(worst)).map(|node| node.name.as_str());
            lines.push(format!("{}: {}", worst.word(), some(names)));
        }
    }
    if let [node] = nodes {
        lines.push(node.detail.clone());
    }
    lines.join("\n")
}

/// The first names, and how many more there are.
fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let mut text = names.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MOST_NAMED {
        text += &format!(" and {} more", names.len() - MOST_NAMED);
    }
    text
}

/// One box of many inputs.
fn inputs(inputs: &[&Shown]) -> Shown {
    let name = format!("{}, {}, …", inputs[0].name, inputs[1].name);
    let detail = inputs.iter().map(|input| input.detail.as_str()).collect::<Vec<_>>().join("\n");
    Shown { op: count(inputs.len(), "input"), name, detail, is_input: true, ..Shown::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boxes by name, module, and the names of those that they read; a name that begins with `in` is an input.
    fn drawing(boxes: &[(&str, &str, &[&str])]) -> Drawing {
        let at = |name: &str| boxes.iter().position(|(one, ..)| *one == name).unwrap();
        let shown = |&(name, module, _): &(&str, &str, &[&str])| Shown {
            op: format!("Op{}", &name[..1]),
            name: name.to_owned(),
            module: module.to_owned(),
            is_input: name.starts_with("in"),
            ..Shown::default()
        };
        let edge = |to: usize, from: &&str| Edge { from: at(from), to, values: vec![(*from).to_owned()] };
        let edges =
            boxes.iter().enumerate().flat_map(|(to, (_, _, reads))| reads.iter().map(move |from| edge(to, from)));
        Drawing { boxes: boxes.iter().map(shown).collect(), edges: edges.collect(), ..Drawing::default() }
    }

    fn fold(drawing: Drawing, folds: &[&str]) -> Drawing {
        let folds: Vec<Fold> = folds.iter().map(|text| text.parse().unwrap()).collect();
        folded(drawing, &folds).unwrap()
    }

    /// Labels of boxes.
    fn labels(drawing: &Drawing) -> Vec<String> {
        let label = |shown: &Shown| if shown.inside.is_some() { shown.label(99) } else { shown.name.clone() };
        drawing.boxes.iter().map(label).collect()
    }

    /// Lines by labels, with their values.
    fn lines(drawing: &Drawing) -> Vec<String> {
        let labels = labels(drawing);
        assert!(drawing.edges.iter().all(|edge| edge.from < edge.to), "{:?}", drawing.edges);
        let line = |edge: &Edge| format!("{} > {}: {}", labels[edge.from], labels[edge.to], edge.values.join(" "));
        drawing.edges.iter().map(line).collect()
    }

    #[test]
    fn a_fold_is_a_depth_or_a_pattern() {
        assert_eq!("3".parse(), Ok(Fold::Depth(3)));
        assert_eq!("99999999999999999999999".parse(), Ok(Fold::Depth(usize::MAX)));
        for pattern in ["layers.*", "+3", "3.1", "*"] {
            assert_eq!(pattern.parse(), Ok(Fold::Pattern(pattern.to_owned())));
        }
        assert!("0".parse::<Fold>().is_err() && "".parse::<Fold>().is_err());
    }

    #[test]
    fn modules_are_boxes_and_lines_between_them_are_one_each() {
        let drawing = drawing(&[
            ("in", "", &[]),
            ("a", "m.0.q", &["in"]),
            ("b", "m.0.k", &["in"]),
            ("c", "m.0", &["a", "b"]),
            ("d", "m.1.q", &["c", "a"]),
            ("e", "m.1", &["d", "c", "in"]),
            ("f", "", &["e"]),
        ]);
        let deep = fold(drawing, &["2"]);
        assert_eq!(labels(&deep), ["in", "m.0", "m.1", "f"]);
        assert_eq!(lines(&deep), ["in > m.0: in", "m.0 > m.1: c a", "in > m.1: in", "m.1 > f: e"]);
        assert_eq!(deep.boxes.iter().map(|shown| shown.module.as_str()).collect::<Vec<_>>(), ["", "m", "m", ""]);
        let inside = deep.boxes[1].inside.as_ref().unwrap();
        assert_eq!((inside.n_nodes, inside.operators().as_str()), (3, "1 Opa, 1 Opb, 1 Opc"));
        assert_eq!((deep.n_nodes(), deep.counts().len()), (1, 0));
    }

    #[test]
    fn of_modules_within_each_other_the_outer_one_is_the_box() {
        let model = || {
            drawing(&[
                ("a", "m.0.mlp.up", &[]),
                ("b", "m.0.mlp", &["a"]),
                ("c", "m.0", &["b"]),
                ("d", "m.1.mlp.up", &["c"]),
                ("e", "m", &["d"]),
            ])
        };
        assert_eq!(labels(&fold(model(), &["m.*.mlp"])), ["m.0.mlp", "c", "m.1.mlp", "e"]);
        assert_eq!(labels(&fold(model(), &["m.*.mlp", "m.1"])), ["m.0.mlp", "c", "m.1", "e"]);
        assert_eq!(labels(&fold(model(), &["3", "m.1"])), ["m.0.mlp", "m.0 (own)", "m.1", "m (own)"]);
        assert_eq!(labels(&fold(model(), &["9", "1"])), ["m"]);
        assert_eq!(
            labels(&fold(model(), &["9"])),
            ["m.0.mlp.up", "m.0.mlp (own)", "m.0 (own)", "m.1.mlp.up", "m (own)"]
        );
        // What is a module's own stands in its frame.
        assert_eq!(fold(model(), &["9"]).boxes[2].module, "m.0");
        for (folds, said) in [("m.*.mpl", "did you mean"), ("n", "fits the path of no module")] {
            let error = folded(model(), &[folds.parse().unwrap()]).unwrap_err();
            assert!(error.contains(said) && error.contains(folds), "{error}");
        }
    }

    #[test]
    fn a_module_that_others_stand_within_is_several_boxes_in_order() {
        let drawing = drawing(&[
            ("a", "m", &[]),
            ("b", "n", &["a"]),
            ("c", "m", &["a"]),
            ("d", "m", &["b"]),
            ("e", "n", &["d"]),
            ("f", "m", &["c", "e"]),
            ("g", "o", &["f"]),
            ("h", "o", &["g"]),
        ]);
        let folded = fold(drawing, &["1"]);
        assert_eq!(labels(&folded), ["m 1/3", "n 1/2", "m 2/3", "n 2/2", "m 3/3", "o"]);
        let expected = [
            "m 1/3 > n 1/2: a",
            "n 1/2 > m 2/3: b",
            "m 2/3 > n 2/2: d",
            "m 1/3 > m 3/3: c",
            "n 2/2 > m 3/3: e",
            "m 3/3 > o: f",
        ];
        assert_eq!(lines(&folded), expected);
        assert_eq!(folded.boxes[0].inside.as_ref().unwrap().n_nodes, 2);
        assert!(folded.boxes[0].detail.contains("box 1 of 3"), "{}", folded.boxes[0].detail);
    }

    /// m begins before n and reads of it, but n reads nothing of m.
    #[test]
    fn a_module_stands_below_all_that_it_reads_and_is_not_cut_for_it() {
        let drawing =
            drawing(&[("p", "p", &[]), ("a", "m", &[]), ("in", "", &[]), ("b", "n", &["in"]), ("c", "m", &["a", "b"])]);
        let folded = fold(drawing, &["1"]);
        assert_eq!(labels(&folded), ["p", "in", "n", "m"]);
        assert_eq!(lines(&folded), ["in > n: in", "n > m: b"]);
    }

    #[test]
    fn what_is_of_no_module_between_nodes_of_one_is_folded_with_them() {
        let drawing = drawing(&[
            ("in", "", &[]),
            ("first", "", &["in"]),
            ("o", "o", &["in"]),
            ("a", "m", &["first"]),
            ("s", "", &["o", "a", "in"]),
            ("t", "", &["s", "o"]),
            ("b", "m", &["t"]),
            ("u", "", &["b"]),
            ("c", "n", &["u"]),
            ("end", "", &["c"]),
        ]);
        let folded = fold(drawing, &["1"]);
        assert_eq!(labels(&folded), ["in", "first", "o", "m", "u", "n", "end"]);
        assert_eq!(folded.boxes[3].inside.as_ref().unwrap().n_nodes, 4);
    }

    #[test]
    fn the_worst_of_a_module_is_its_mark_and_all_are_counted() {
        let mut drawing = drawing(&[("a", "m", &[]), ("b", "m", &["a"]), ("c", "m", &["b"]), ("d", "n", &["c"])]);
        let marks = [Some(Mark::Match), Some(Mark::Mismatch), Some(Mark::Match), None];
        drawing.boxes.iter_mut().zip(marks).for_each(|(shown, mark)| shown.mark = mark);
        drawing.boxes[2].is_output = true;
        let folded = fold(drawing, &["1"]);
        let [m, n] = folded.boxes.as_slice() else { panic!("{:?}", folded.boxes) };
        assert_eq!((m.mark, n.mark), (Some(Mark::Mismatch), None));
        assert!(m.is_output && !n.is_output);
        assert!(m.detail.contains("2 match, 1 mismatch\nmismatch: b"), "{}", m.detail);
        assert_eq!(folded.counts(), BTreeMap::from([(Mark::Match, 2), (Mark::Mismatch, 1)]));
    }

    #[test]
    fn many_inputs_of_one_module_are_one_box() {
        let drawing = drawing(&[
            ("in0", "", &[]),
            ("a", "m", &["in0"]),
            ("in1", "", &[]),
            ("in2", "", &[]),
            ("in3", "", &[]),
            ("b", "m", &["a", "in1", "in2", "in3"]),
            ("in4", "", &[]),
            ("c", "n", &["b", "in4"]),
            ("in5", "", &[]),
            ("d", "", &["c", "in5"]),
        ]);
        let folded = fold(drawing, &["1"]);
        assert_eq!(labels(&folded), ["in0, in1, …", "m", "in4", "n", "in5", "d"]);
        assert_eq!(folded.boxes[0].op, "4 inputs");
        assert_eq!(lines(&folded)[0], "in0, in1, … > m: in0 in1 in2 in3");
    }

    #[test]
    fn a_box_tells_class_or_operators() {
        let mut drawing = drawing(&[
            ("a1", "m.0", &[]),
            ("a2", "m.0", &[]),
            ("b", "m.0", &[]),
            ("c", "m.1", &[]),
            ("d", "m.1", &[]),
            ("e", "m.2", &[]),
        ]);
        drawing.classes = ["m.1", "m.2"].map(|path| (path.to_owned(), "Layer".to_owned())).into();
        let folded = fold(drawing, &["2"]);
        let told: Vec<_> = folded.boxes.iter().map(|shown| (shown.label(27), shown.second_line(27))).collect();
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(told, [pair("m.0", "3 nodes: 2 Opa, 1 Opb"), pair("m.1", "Layer: 2 nodes"), pair("m.2", "Ope")]);
    }

    #[test]
    fn a_drawing_without_modules_says_where_there_are_some() {
        let plain = || drawing(&[("a", "", &[]), ("b", "", &["a"])]);
        let error = folded(plain(), &[Fold::Depth(1)]).unwrap_err();
        assert!(error.contains("nothing to --fold") && error.contains("rust_ort.dump"), "{error}");
        assert!(depths(&plain()).is_empty());
        let deep = drawing(&[("a", "m.0.q", &[]), ("b", "m.1", &[]), ("c", "", &[])]);
        assert_eq!(depths(&deep), [1, 2, 2]);
    }

    /// By chance, and the same each time: lines go down, no node is lost, and values stay between their boxes.
    #[test]
    fn folded_graphs_drawn_by_chance_have_no_circle() {
        let mut state = 7_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for n in [1, 2, 10, 300] {
            for n_modules in [1, 3, 40] {
                let boxes: Vec<Shown> = (0..n)
                    .map(|at| {
                        let module = format!("m.{}", (at / 3 + next(3)) % n_modules);
                        Shown { name: format!("v{at}"), module, ..Shown::default() }
                    })
                    .collect();
                let mut edges = Vec::new();
                for to in 1..n {
                    let from: BTreeSet<usize> = (0..next(4)).map(|_| to - 1 - next(to.min(20))).collect();
                    edges.extend(from.into_iter().map(|from| Edge { from, to, values: vec![format!("v{from}")] }));
                }
                let folded = fold(Drawing { boxes, edges, ..Drawing::default() }, &["2"]);
                lines(&folded);
                assert_eq!(folded.boxes.iter().map(|shown| shown.inside.as_ref().unwrap().n_nodes).sum::<usize>(), n);
            }
        }
    }
}
