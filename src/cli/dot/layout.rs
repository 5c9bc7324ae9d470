//! Where boxes and lines go: in program order, after SpiderMonkey's iongraph.
//!
//! Runs of boxes of one module stand below each other. In a run a box stands one row below the last box that it reads, from
//! left to right as the program has them, below the first that it reads where there is room. Lines go down only, around
//! corners of right angles: to the next row through the gap between the rows, further by a lane at the left that the value
//! has to itself as long as it is read. No crossing is looked for. Time grows with boxes and lines, but for sorting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::drawing::Edge;

/// Size of a box, in pixels.
pub(super) const BOX: Size = Size { width: 190, height: 36 };
const GAP: i64 = 18;
const MARGIN: i64 = 16;
/// From the middle of a box to where lines enter that come from elsewhere.
const ASIDE: i64 = 10;
/// Between lines that run beside each other.
const STEP: i64 = 6;
/// Above and below the lines of a gap between rows.
const PAD: i64 = 8;
/// Above the boxes of a module, for its name; below them.
const HEAD: i64 = 20;
const FOOT: i64 = 8;
/// Between a module's frame and its boxes.
const SIDE: i64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: i64,
    pub(super) height: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) x: i64,
    pub(super) y: i64,
}

/// A rectangle by its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    pub(super) at: Point,
    pub(super) size: Size,
}

/// The picture, in pixels.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) size: Size,
    /// Rows of boxes.
    pub(super) n_rows: usize,
    /// Upper left corner of each box.
    pub(super) boxes: Vec<Point>,
    /// One a run, in order; None where the run has no frame.
    pub(super) frames: Vec<Option<Rectangle>>,
    /// For each box whose value is read: its lines, each from corner to corner.
    pub(super) lines: Vec<(usize, Vec<Vec<Point>>)>,
}

/// Runs of boxes, and which of them have a frame.
pub(super) struct Run {
    pub(super) boxes: Range<usize>,
    pub(super) is_framed: bool,
}

/// Places for boxes that stand in runs, which follow each other without a gap. edges: by reader; they go forward.
/// is_input: of each box.
pub(super) fn layout(runs: &[Run], edges: &[Edge], is_input: &[bool]) -> Layout {
    let n_boxes = runs.last().map_or(0, |run| run.boxes.end);
    let graph = Graph::new(n_boxes, edges);
    let (rows, first_rows) = rows(runs, &graph, is_input);
    let columns = columns(runs, &rows, &graph);
    let lanes = lanes(&rows, &graph);
    let n_lanes = lanes.iter().flatten().max().map_or(0, |lane| lane + 1);
    let left = MARGIN + n_lanes as i64 * STEP + if n_lanes > 0 { GAP } else { 0 };
    let places = Places {
        x: columns.iter().map(|&column| left + SIDE + column as i64 * (BOX.width + GAP)).collect(),
        lanes: lanes.iter().map(|lane| lane.map(|lane| left - GAP - (lane as i64 + 1) * STEP)).collect(),
        rows,
    };
    let n_rows = places.rows.iter().max().map_or(0, |row| row + 1);
    let nets = Nets::new(&places, &graph, n_rows);
    let heights = Heights::new(runs, &first_rows, &nets, n_rows);
    let corner = |at: usize| Point { x: places.x[at], y: heights.rows[places.rows[at]] };
    let boxes: Vec<Point> = (0..n_boxes).map(corner).collect();
    let frames = runs.iter().map(|run| run.is_framed.then(|| frame(&boxes[run.boxes.clone()]))).collect();
    let lines = lines(&places, &graph, &nets, &heights, &boxes);
    let right = boxes.iter().map(|point| point.x + BOX.width).max().unwrap_or(left) + SIDE + MARGIN;
    Layout { size: Size { width: right, height: heights.end }, n_rows, boxes, frames, lines }
}

/// A frame round the boxes of a run.
fn frame(boxes: &[Point]) -> Rectangle {
    let least = |of: fn(&Point) -> i64| boxes.iter().map(of).min().unwrap_or_default();
    let most = |of: fn(&Point) -> i64| boxes.iter().map(of).max().unwrap_or_default();
    let at = Point { x: least(|point| point.x) - SIDE, y: least(|point| point.y) - HEAD };
    let width = most(|point| point.x) + BOX.width + SIDE - at.x;
    Rectangle { at, size: Size { width, height: most(|point| point.y) + BOX.height + FOOT - at.y } }
}

/// Who reads whom.
struct Graph {
    /// By reader: whom it reads.
    reads: Vec<Vec<usize>>,
    /// By giver: the reader, and the line's place among the reader's.
    readers: Vec<Vec<(usize, usize)>>,
}

impl Graph {
    fn new(n_boxes: usize, edges: &[Edge]) -> Self {
        let mut graph = Self { reads: vec![Vec::new(); n_boxes], readers: vec![Vec::new(); n_boxes] };
        for edge in edges {
            graph.readers[edge.from].push((edge.to, graph.reads[edge.to].len()));
            graph.reads[edge.to].push(edge.from);
        }
        graph
    }
}

/// Row of each box, and the first row of each run.
fn rows(runs: &[Run], graph: &Graph, is_input: &[bool]) -> (Vec<usize>, Vec<usize>) {
    let mut rows = vec![0; graph.reads.len()];
    let mut first_rows = Vec::with_capacity(runs.len());
    let mut first = 0;
    for run in runs {
        first_rows.push(first);
        let within = |at: &usize| run.boxes.contains(at);
        // Made of nothing but constants: it may come as late as it is read. So may an input, but not what is made of it.
        let mut floats = vec![false; run.boxes.len()];
        for at in run.boxes.clone() {
            let reads = &graph.reads[at];
            rows[at] = reads.iter().filter(|from| within(from)).map(|&from| rows[from] + 1).max().unwrap_or(first);
            floats[at - run.boxes.start] =
                reads.iter().all(|from| within(from) && floats[from - run.boxes.start] && !is_input[*from]);
        }
        for at in run.boxes.clone().rev().filter(|at| floats[at - run.boxes.start]) {
            let readers = graph.readers[at].iter().map(|(to, _)| to).filter(|to| within(to));
            if let Some(earliest) = readers.map(|&to| rows[to]).min() {
                rows[at] = earliest - 1;
            }
        }
        first = run.boxes.clone().map(|at| rows[at] + 1).max().unwrap_or(first);
    }
    (rows, first_rows)
}

/// Column of each box: below the first box of the row above that it reads, where those before it leave room, and inside the
/// widest row of its run.
fn columns(runs: &[Run], rows: &[usize], graph: &Graph) -> Vec<usize> {
    let mut columns = vec![0; rows.len()];
    for run in runs {
        let mut by_row: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        run.boxes.clone().for_each(|at| by_row.entry(rows[at]).or_default().push(at));
        let widest = by_row.values().map(Vec::len).max().unwrap_or_default();
        for (row, boxes) in by_row {
            let mut free = 0;
            for &at in &boxes {
                let above = graph.reads[at].iter().find(|&&from| rows[from] + 1 == row);
                columns[at] = above.map_or(0, |&from| columns[from]).max(free);
                free = columns[at] + 1;
            }
            let mut end = widest;
            for &at in boxes.iter().rev() {
                end = columns[at].min(end - 1);
                columns[at] = end;
            }
        }
    }
    columns
}

/// Lane of each box whose value is read further down than in the next row. A lane is free again in the row where it ends.
fn lanes(rows: &[usize], graph: &Graph) -> Vec<Option<usize>> {
    let last_row = |at: usize| graph.readers[at].iter().map(|(to, _)| rows[*to]).max();
    let mut far: Vec<(usize, usize, usize)> = (0..rows.len())
        .filter_map(|at| last_row(at).filter(|&last| last > rows[at] + 1).map(|last| (rows[at], last, at)))
        .collect();
    far.sort_unstable();
    let mut intervals = Intervals::default();
    let mut lanes = vec![None; rows.len()];
    for (start, end, at) in far {
        // Its own row's lines are below that row, the last of the one before above.
        lanes[at] = Some(intervals.place(start as i64, end as i64 - 1));
    }
    lanes
}

/// Intervals on as few tracks as will do, given by their starts in order.
#[derive(Default)]
struct Intervals {
    taken: BinaryHeap<Reverse<(i64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
    n_tracks: usize,
}

impl Intervals {
    /// The track of an interval; both ends are in it.
    fn place(&mut self, start: i64, end: i64) -> usize {
        while let Some(&Reverse((last, track))) = self.taken.peek()
            && last < start
        {
            self.taken.pop();
            self.free.push(Reverse(track));
        }
        let track = self.free.pop().map_or(self.n_tracks, |Reverse(track)| track);
        self.n_tracks = self.n_tracks.max(track + 1);
        self.taken.push(Reverse((end, track)));
        track
    }
}

/// Where boxes stand, but for their height.
struct Places {
    rows: Vec<usize>,
    x: Vec<i64>,
    /// x of the lane that the value has.
    lanes: Vec<Option<i64>>,
}

impl Places {
    /// Where the value leaves its box.
    fn exit(&self, at: usize) -> i64 {
        self.x[at] + BOX.width / 2
    }

    /// Where a line enters a box, at its place among the box's lines. The middle, where the box above lets its value out,
    /// is left to that value.
    fn entry(&self, graph: &Graph, from: usize, (to, place): (usize, usize)) -> i64 {
        let along = BOX.width * (place as i64 + 1) / (graph.reads[to].len() as i64 + 1);
        let is_straight = self.x[from] == self.x[to] && self.rows[from] + 1 == self.rows[to];
        let aside = if along == BOX.width / 2 && !is_straight { ASIDE } else { 0 };
        self.x[to] + along + aside
    }
}

/// The horizontal lines of one value in one gap: track, and where it is drawn.
struct Nets {
    /// By gap, which is above the row of its number: value → track. A value whose lines there are straight has none.
    tracks: Vec<BTreeMap<usize, usize>>,
    n_tracks: Vec<usize>,
}

impl Nets {
    fn new(places: &Places, graph: &Graph, n_rows: usize) -> Self {
        let mut spans: Vec<BTreeMap<usize, (i64, i64)>> = vec![BTreeMap::new(); n_rows + 1];
        let mut span = |gap: usize, at: usize, x: i64| {
            let (low, high) = spans[gap].entry(at).or_insert((x, x));
            (*low, *high) = ((*low).min(x), (*high).max(x));
        };
        for (at, readers) in graph.readers.iter().enumerate() {
            let own = places.rows[at] + 1;
            for &reader in readers {
                let row = places.rows[reader.0];
                span(row, at, places.entry(graph, at, reader));
                match places.lanes[at] {
                    Some(lane) if row > own => span(row, at, lane),
                    _ => span(own, at, places.exit(at)),
                }
            }
            if let Some(lane) = places.lanes[at] {
                span(own, at, lane);
                span(own, at, places.exit(at));
            }
        }
        let (mut tracks, mut n_tracks) = (Vec::new(), Vec::new());
        for spans in spans {
            let mut spans: Vec<_> = spans.into_iter().filter(|(_, (low, high))| low < high).collect();
            spans.sort_unstable_by_key(|&(at, span)| (span, at));
            let mut intervals = Intervals::default();
            let placed = spans.into_iter().map(|(at, (low, high))| (at, intervals.place(low, high)));
            tracks.push(placed.collect());
            n_tracks.push(intervals.n_tracks);
        }
        Self { tracks, n_tracks }
    }
}

/// Heights of rows, and of the first track of the gaps above them.
struct Heights {
    rows: Vec<i64>,
    tracks: Vec<i64>,
    end: i64,
}

impl Heights {
    fn new(runs: &[Run], first_rows: &[usize], nets: &Nets, n_rows: usize) -> Self {
        let (mut heads, mut feet) = (vec![0; n_rows + 1], vec![0; n_rows + 1]);
        for (at, _) in runs.iter().enumerate().filter(|(_, run)| run.is_framed) {
            heads[first_rows[at]] = HEAD;
            feet[first_rows.get(at + 1).copied().unwrap_or(n_rows)] = FOOT;
        }
        let mut heights = Self { rows: Vec::new(), tracks: Vec::new(), end: 0 };
        let mut y = MARGIN;
        for row in 0..=n_rows {
            let between = if row == 0 || row == n_rows { 0 } else { 2 * PAD };
            heights.tracks.push(y + feet[row] + PAD);
            y += feet[row] + between + nets.n_tracks[row] as i64 * STEP + heads[row];
            heights.rows.push(y);
            y += BOX.height;
        }
        heights.end = heights.rows[n_rows] + MARGIN;
        heights
    }
}

fn lines(
    places: &Places,
    graph: &Graph,
    nets: &Nets,
    heights: &Heights,
    boxes: &[Point],
) -> Vec<(usize, Vec<Vec<Point>>)> {
    let mut all = Vec::new();
    for (at, readers) in graph.readers.iter().enumerate().filter(|(_, readers)| !readers.is_empty()) {
        let own = places.rows[at] + 1;
        let track = |gap: usize| nets.tracks[gap].get(&at).map(|&track| heights.tracks[gap] + track as i64 * STEP);
        let start = Point { x: places.exit(at), y: boxes[at].y + BOX.height };
        let mut lines = Vec::with_capacity(readers.len() + 1);
        let mut lane_end = None;
        for &reader in readers {
            let end = Point { x: places.entry(graph, at, reader), y: boxes[reader.0].y };
            let row = places.rows[reader.0];
            match (places.lanes[at], track(row)) {
                (Some(x), Some(y)) if row > own => {
                    lines.push(vec![Point { x, y }, Point { x: end.x, y }, end]);
                    lane_end = lane_end.max(Some(y));
                }
                (_, Some(y)) => lines.push(vec![start, Point { x: start.x, y }, Point { x: end.x, y }, end]),
                (_, None) => lines.push(vec![start, end]),
            }
        }
        if let (Some(x), Some(y), Some(last)) = (places.lanes[at], track(own), lane_end) {
            lines.push(vec![start, Point { x: start.x, y }, Point { x, y }, Point { x, y: last }]);
        }
        all.push((at, lines));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge((from, to): (usize, usize)) -> Edge {
        Edge { from, to, ..Edge::default() }
    }

    /// One run without a frame.
    fn plain(n: usize, edges: &[(usize, usize)]) -> Layout {
        let edges: Vec<Edge> = edges.iter().copied().map(edge).collect();
        layout(&[Run { boxes: 0..n, is_framed: false }], &edges, &vec![false; n])
    }

    /// A picture that anyone can read: see the asserts.
    fn check(layout: &Layout) {
        let mut rows: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        layout.boxes.iter().for_each(|point| rows.entry(point.y).or_default().push(point.x));
        let ys: Vec<i64> = rows.keys().copied().collect();
        assert!(ys.windows(2).all(|pair| pair[1] - pair[0] >= BOX.height), "rows overlap");
        for xs in rows.values_mut() {
            xs.sort_unstable();
            assert!(xs.windows(2).all(|pair| pair[1] - pair[0] >= BOX.width + GAP), "boxes overlap");
        }
        for points in layout.lines.iter().flat_map(|(_, lines)| lines) {
            for pair in points.windows(2) {
                let (from, to) = (pair[0], pair[1]);
                assert!(from.x == to.x || from.y == to.y, "no right angle: {points:?}");
                assert!(from.y <= to.y, "a line goes up: {points:?}");
            }
            for point in points {
                assert!(point.x >= 0 && point.x <= layout.size.width, "{point:?} is outside");
                assert!(point.y >= 0 && point.y <= layout.size.height, "{point:?} is outside");
            }
            // A line runs between rows or beside all boxes.
            for pair in points.windows(2).filter(|pair| pair[0].y == pair[1].y) {
                let y = pair[0].y;
                assert!(ys.iter().all(|&row| y <= row || y >= row + BOX.height), "a line crosses boxes: {points:?}");
            }
            let left = layout.boxes.iter().map(|point| point.x).min().unwrap();
            for pair in points.windows(2).filter(|pair| pair[0].x == pair[1].x && pair[0].x >= left) {
                let crossed = ys.iter().filter(|&&row| row > pair[0].y && row < pair[1].y).count();
                assert_eq!(crossed, 0, "a line crosses rows: {points:?}");
            }
        }
        let frames: Vec<&Rectangle> = layout.frames.iter().flatten().collect();
        assert!(
            frames.windows(2).all(|pair| pair[0].at.y + pair[0].size.height <= pair[1].at.y),
            "frames overlap: {frames:?}"
        );
    }

    /// A graph that looks drawn by chance and is the same each time; its boxes read up to three of the boxes before.
    fn drawn_by_chance(n: usize, seed: u64) -> Vec<(usize, usize)> {
        let mut state = seed;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut edges = Vec::new();
        for to in 1..n {
            let mut from: Vec<usize> = (0..next(4)).map(|_| to - 1 - next(to.min(40))).collect();
            from.sort_unstable();
            from.dedup();
            edges.extend(from.into_iter().map(|from| (from, to)));
        }
        edges
    }

    #[test]
    fn readers_stand_below_who_they_read() {
        // 0 → 1, 2 → 3
        let layout = plain(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        check(&layout);
        let at = |box_: usize| layout.boxes[box_];
        assert_eq!((at(0).x, at(1).x), (at(1).x, at(3).x));
        assert_eq!(at(1).y, at(2).y);
        assert!(at(2).x > at(1).x && at(3).y > at(1).y && at(1).y > at(0).y);
        assert_eq!(layout.n_rows, 3);
    }

    #[test]
    fn what_is_read_far_below_has_a_lane_at_the_left() {
        let layout = plain(4, &[(0, 1), (1, 2), (2, 3), (0, 3)]);
        check(&layout);
        let (_, lines) = layout.lines.iter().find(|(at, _)| *at == 0).unwrap();
        let lane = lines.last().unwrap();
        let left = layout.boxes.iter().map(|point| point.x).min().unwrap();
        assert!(lane.last().unwrap().x < left, "{lane:?}");
        // A straight line where nothing is between.
        let (_, lines) = layout.lines.iter().find(|(at, _)| *at == 1).unwrap();
        assert_eq!(lines[0].len(), 2);
    }

    #[test]
    fn what_is_made_of_constants_alone_stands_where_it_is_read() {
        // 0 is an input, 1 and 2 a chain below it; 3 and 4 are made of constants, 5 of both, 6 of the input.
        let edges = [(0, 1), (1, 2), (3, 4), (2, 5), (4, 5), (0, 6), (5, 7), (6, 7)].map(edge);
        let is_input = [true, false, false, false, false, false, false, false];
        let layout = layout(&[Run { boxes: 0..8, is_framed: false }], &edges, &is_input);
        check(&layout);
        assert_eq!(layout.boxes[4].y, layout.boxes[2].y);
        assert_eq!(layout.boxes[3].y, layout.boxes[1].y);
        assert_eq!(layout.boxes[6].y, layout.boxes[1].y);
    }

    #[test]
    fn modules_have_frames_that_stand_below_each_other() {
        let runs = [(0..2, true), (2..5, true), (5..6, false), (6..7, true)]
            .map(|(boxes, is_framed)| Run { boxes, is_framed });
        let edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (0, 6), (5, 6)].map(edge);
        let layout = layout(&runs, &edges, &[false; 7]);
        check(&layout);
        assert!(layout.frames[2].is_none());
        for (run, frame) in runs.iter().zip(&layout.frames).filter_map(|(run, frame)| Some((run, frame.as_ref()?))) {
            for (at, point) in layout.boxes.iter().enumerate() {
                let is_inside = point.x >= frame.at.x
                    && point.x + BOX.width <= frame.at.x + frame.size.width
                    && point.y >= frame.at.y
                    && point.y + BOX.height <= frame.at.y + frame.size.height;
                assert_eq!(is_inside, run.boxes.contains(&at), "{at}: {frame:?}");
            }
        }
    }

    #[test]
    fn nothing_overlaps_in_graphs_drawn_by_chance() {
        for seed in 0..20 {
            let n = 20 + seed as usize * 10;
            check(&plain(n, &drawn_by_chance(n, seed)));
            let runs: Vec<Run> = (0..n)
                .step_by(7)
                .map(|at| at..(at + 7).min(n))
                .map(|boxes| Run { is_framed: boxes.start % 2 == 0, boxes })
                .collect();
            let edges: Vec<Edge> = drawn_by_chance(n, seed).into_iter().map(edge).collect();
            check(&layout(&runs, &edges, &vec![false; n]));
        }
    }

    #[test]
    fn lines_of_two_values_never_lie_on_each_other() {
        let layout = plain(200, &drawn_by_chance(200, 3));
        let mut spans: BTreeMap<i64, Vec<(i64, i64, usize)>> = BTreeMap::new();
        for (at, lines) in &layout.lines {
            for pair in lines.iter().flat_map(|points| points.windows(2)).filter(|pair| pair[0].y == pair[1].y) {
                let (low, high) = (pair[0].x.min(pair[1].x), pair[0].x.max(pair[1].x));
                spans.entry(pair[0].y).or_default().push((low, high, *at));
            }
        }
        for spans in spans.values_mut() {
            spans.sort_unstable();
            for pair in spans.windows(2) {
                assert!(pair[0].2 == pair[1].2 || pair[0].1 < pair[1].0, "{pair:?}");
            }
        }
    }

    /// What leaves a box never runs into what enters the one below it.
    #[test]
    fn upright_lines_of_two_values_never_lie_on_each_other() {
        for seed in 0..10 {
            let layout = plain(200, &drawn_by_chance(200, seed));
            let left = layout.boxes.iter().map(|point| point.x).min().unwrap();
            let mut spans: BTreeMap<i64, Vec<(i64, i64, usize)>> = BTreeMap::new();
            for (at, lines) in &layout.lines {
                let pairs = lines.iter().flat_map(|points| points.windows(2));
                for pair in pairs.filter(|pair| pair[0].x == pair[1].x && pair[0].x >= left) {
                    spans.entry(pair[0].x).or_default().push((pair[0].y, pair[1].y, *at));
                }
            }
            for (x, spans) in &mut spans {
                spans.sort_unstable();
                for pair in spans.windows(2) {
                    assert!(pair[0].2 == pair[1].2 || pair[0].1 < pair[1].0, "at {x}: {pair:?}");
                }
            }
        }
    }

    #[test]
    fn a_picture_grows_with_its_graph_and_no_faster() {
        let corners = |n: usize| {
            let edges = drawn_by_chance(n, 1);
            let layout = plain(n, &edges);
            let corners = layout.lines.iter().flat_map(|(_, lines)| lines).map(Vec::len).sum::<usize>();
            assert!(corners <= 4 * (edges.len() + n), "{corners} corners of {} lines", edges.len());
            corners
        };
        let (small, large) = (corners(5_000), corners(50_000));
        assert!(large < 12 * small, "{small}, {large}");
    }

    #[test]
    fn nothing_is_an_empty_picture() {
        let layout = layout(&[], &[], &[]);
        assert!(layout.boxes.is_empty() && layout.size.width > 0 && layout.size.height > 0);
    }
}
