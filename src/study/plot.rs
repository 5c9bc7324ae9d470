//! Points in a plane, as SVG.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::compare::significant;

const WIDTH: f64 = 640.;
const HEIGHT: f64 = 310.;
const LEFT: f64 = 76.;
const RIGHT: f64 = 16.;
const TOP: f64 = 68.;
const BOTTOM: f64 = 62.;
/// Height of the title of all.
const HEAD: f64 = 34.;
/// Of what is not finite.
const BEYOND: &str = "\u{d7}";
/// One a series, told apart by people who see colours otherwise (Okabe and Ito), again from the first where there are more.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A picture of panels under each other.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// Above all.
    pub title: String,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

/// What stands between the axes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A dot a point.
    #[default]
    Dots,
    /// A bar a point, from the bottom, with its value above it. Needs categories.
    Bars,
}

/// A matrix drawn in colours, the darker the larger.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// Of rows and columns.
    pub labels: Vec<String>,
    /// Row by row; None: not run.
    pub cells: Vec<Vec<Option<Cell>>>,
}

/// A cell of a matrix.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Makes the colour.
    pub value: f64,
    /// What stands in it.
    pub lines: Vec<String>,
}

/// Axes and what stands between them.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Below it.
    pub x_label: String,
    /// Beside it.
    pub y_label: String,
    /// Names of the places 0, 1, 2, … on the x axis; empty: it has numbers.
    pub categories: Vec<String>,
    /// By powers of ten; what is not above 0 stands at the bottom.
    pub log_y: bool,
    /// How points are drawn.
    pub form: Form,
    /// Its points. Series stand beside each other, those of a numeric axis above each other, or one would hide the other.
    pub series: Vec<Series>,
    /// In the place of all that: a matrix.
    pub heat: Option<Heat>,
}

/// Points of one colour.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// In the legend.
    pub label: String,
    /// x, y; a y that is not finite is marked at the upper edge. x: the place of its category, where there are some.
    pub points: Vec<(f64, f64)>,
}

/// Which numbers an axis is for.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone, log: bool) -> Self {
        let known = values.filter(|value| value.is_finite() && (!log || *value > 0.));
        let (low, high) =
            known.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (if log { 1e-1 } else { 0. }, 1.) };
        if log {
            // A decade below the least, for what is 0.
            return Self {
                from: low.log10().floor() - 1.,
                to: (high.log10().ceil()).max(low.log10().floor() + 1.),
                log,
            };
        }
        let low = if low > 0. { 0. } else { low };
        Self { from: low, to: if high > low { high } else { low + 1. }, log }
    }

    /// 0 at the beginning, 1 at the end.
    fn place(&self, value: f64) -> f64 {
        let at = match self.log {
            true if value > 0. => value.log10(),
            true => self.from,
            false => value,
        };
        ((at - self.from) / (self.to - self.from)).clamp(0., 1.)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if self.log {
            let n = (self.to - self.from) as i32;
            let step = (n / 6).max(1);
            let decades = (0..=n).step_by(step as usize).map(|at| self.from as i32 + at);
            return decades
                .map(|decade| {
                    let name = if decade == self.from as i32 { "0".to_owned() } else { format!("1e{decade}") };
                    (10_f64.powi(decade), name)
                })
                .collect();
        }
        let step = nice((self.to - self.from) / 5.);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|at| (at as f64 * step, significant(at as f64 * step, 4))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, not below the value.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1., 2., 5., 10.].map(|times| times * power).into_iter().find(|&step| step >= value * 0.999).unwrap_or(value)
}

/// Text as XML holds it.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}"{more}>{content}</text>"#);
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#);
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64) {
        if let Some(heat) = &self.heat {
            heat.draw(svg, [&self.title, &self.x_label], top);
            return;
        }
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let (upper, lower) = (top + TOP, top + HEIGHT - BOTTOM);
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let x = match self.categories.len() {
            0 => Scale::of(points().map(|(x, _)| x), false),
            n => Scale { from: -0.5, to: n as f64 - 0.5, log: false },
        };
        let y = Scale::of(points().map(|(_, y)| y), self.log_y);
        let across = |value: f64| left + x.place(value) * (right - left);
        // Above bars stand their values.
        let share = if self.form == Form::Bars { 0.82 } else { 1. };
        let up = |value: f64| lower - y.place(value) * share * (lower - upper);
        label(svg, (left, top + 18.), "start", r#" font-size="12" font-weight="bold""#, &self.title);
        for (value, name) in y.ticks() {
            line(svg, (left, up(value)), (right, up(value)), "#dddddd");
            label(svg, (left - 6., up(value) + 4.), "end", "", &name);
        }
        let ticks = match self.categories.is_empty() {
            true => x.ticks(),
            false => self.categories.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect(),
        };
        for (value, name) in ticks {
            line(svg, (across(value), lower), (across(value), lower + 4.), "#333333");
            label(svg, (across(value), lower + 17.), "middle", "", &name);
        }
        line(svg, (left, lower), (right, lower), "#333333");
        line(svg, (left, upper), (left, lower), "#333333");
        label(svg, ((left + right) / 2., lower + 36.), "middle", "", &self.x_label);
        let turned = format!(r#" transform="rotate(-90 14 {:.1})""#, (upper + lower) / 2.);
        label(svg, (14., (upper + lower) / 2.), "middle", &turned, &self.y_label);
        self.legend(svg, top);
        let n = self.series.len().max(1) as f64;
        // Series of a category share eight tenths of its place; of numbers each is a little above the one before.
        let (width, step) = match self.categories.is_empty() {
            true => (0., 4.4),
            false => ((right - left) / self.categories.len() as f64 * 0.8 / n, 0.),
        };
        for (place, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let beside = (place as f64 - (n - 1.) / 2.) * width;
            let above = place as f64 * step;
            let known = || series.points.iter().filter(|(x, _)| x.is_finite());
            let drawn = || known().filter(|(_, y)| y.is_finite());
            match self.form {
                Form::Dots => dots(svg, drawn().map(|(x, y)| (across(*x) + beside, up(*y) - above)), colour),
                Form::Bars => {
                    for &(x, y) in drawn() {
                        let (from, height) = (across(x) + beside - width * 0.45, (lower - up(y)).max(1.));
                        let (width, at) = (width * 0.9, lower - height);
                        let _ = writeln!(
                            svg,
                            r#"<rect x="{from:.1}" y="{at:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
                        );
                        beside_bar(svg, (from, at - 3.), width, &significant(y, 3));
                    }
                }
            }
            for (x, _) in known().filter(|(_, y)| !y.is_finite()) {
                let more = format!(r#" fill="{colour}" font-size="12""#);
                label(svg, (across(*x) + beside, upper - 2. - above), "middle", &more, BEYOND);
            }
        }
    }

    fn legend(&self, svg: &mut String, top: f64) {
        let beyond = || self.series.iter().flat_map(|series| &series.points).any(|(_, y)| !y.is_finite());
        let (mut x, mut y) = (LEFT, top + 36.);
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let width = 18. + 5.6 * series.label.chars().count() as f64;
            if x > LEFT && x + width > WIDTH {
                (x, y) = (LEFT, y + 14.);
            }
            let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{:.1}" r="3.5" fill="{colour}"/>"#, y - 4.);
            label(svg, (x + 7., y), "start", "", &series.label);
            x += width;
        }
        if beyond() {
            label(svg, (WIDTH - RIGHT, top + 18.), "end", "", &format!("{BEYOND} not finite"));
        }
    }

    fn has_points(&self) -> bool {
        let cells = self.heat.iter().flat_map(|heat| heat.cells.iter().flatten());
        cells.flatten().next().is_some() || self.series.iter().any(|series| !series.points.is_empty())
    }
}

/// The value of a bar above it; turned where the bar is narrower than the number.
fn beside_bar(svg: &mut String, (from, at): (f64, f64), width: f64, number: &str) {
    const SIZE: &str = r#" font-size="8""#;
    if width >= 4.8 * number.chars().count() as f64 {
        label(svg, (from + width / 2., at), "middle", SIZE, number);
        return;
    }
    let x = from + width / 2. + 3.;
    label(svg, (x, at), "start", &format!(r#"{SIZE} transform="rotate(-90 {x:.1} {at:.1})""#), number);
}

/// Points that fall on the same tenth of a pixel are one.
fn dots(svg: &mut String, places: impl Iterator<Item = (f64, f64)>, colour: &str) {
    let each: BTreeSet<String> = places.map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect();
    if each.is_empty() {
        return;
    }
    let path: String = each.into_iter().collect();
    let _ = writeln!(
        svg,
        r#"<path d="{path}" stroke="{colour}" stroke-width="4.4" stroke-linecap="round" stroke-opacity="0.75"/>"#
    );
}

impl Heat {
    /// From the least above 0 to the largest by powers of ten; 0 is white, what is not finite is marked.
    fn draw(&self, svg: &mut String, [title, legend]: [&str; 2], top: f64) {
        label(svg, (LEFT, top + 18.), "start", r#" font-size="12" font-weight="bold""#, title);
        label(svg, (WIDTH - RIGHT, top + HEIGHT - 2.), "end", r#" font-size="9""#, legend);
        let n = self.labels.len().max(1) as f64;
        let (left, upper) = (LEFT + 60., top + 40.);
        let (width, height) = ((WIDTH - RIGHT - left) / n, (HEIGHT - 52.) / n);
        let known = || self.cells.iter().flatten().flatten().map(|cell| cell.value);
        let scale = Scale::of(known(), true);
        for (row, name) in self.labels.iter().enumerate() {
            let middle = upper + (row as f64 + 0.5) * height + 3.5;
            label(svg, (left - 6., middle), "end", r#" font-size="9""#, &format!("{} {name}", row + 1));
            label(svg, (left + (row as f64 + 0.5) * width, upper - 4.), "middle", "", &(row + 1).to_string());
            for (column, cell) in self.cells.get(row).into_iter().flatten().enumerate() {
                let x = left + column as f64 * width;
                let (shade, lines) = match cell {
                    None => (0., vec!["not run".to_owned()]),
                    Some(cell) if !cell.value.is_finite() => (0., vec![BEYOND.to_owned()]),
                    Some(cell) => (if cell.value > 0. { scale.place(cell.value) } else { 0. }, cell.lines.clone()),
                };
                let dark = shade > 0.6;
                let _ = writeln!(
                    svg,
                    r##"<rect x="{x:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" fill="#0072b2" fill-opacity="{shade:.2}" stroke="#dddddd"/>"##,
                    upper + row as f64 * height
                );
                let more = format!(r#" font-size="8" fill="{}""#, if dark { "white" } else { "black" });
                let first = middle - 4.5 * (lines.len() as f64 - 1.);
                for (at, content) in lines.iter().enumerate() {
                    label(svg, (x + width / 2., first + 9. * at as f64), "middle", &more, content);
                }
            }
        }
    }
}

impl Plot {
    /// Whether nothing that it is of was run.
    pub fn is_empty(&self) -> bool {
        !self.panels.iter().any(Panel::has_points)
    }

    /// As an SVG document.
    pub fn svg(&self) -> String {
        let height = HEAD + HEIGHT * self.panels.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        label(&mut svg, (WIDTH / 2., 22.), "middle", r#" font-size="14""#, &self.title);
        for (at, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, HEAD + HEIGHT * at as f64);
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_escaped_and_finite() {
        let series = Series { label: "a<b".to_owned(), points: vec![(0., 1.), (1., f64::NAN), (2., 0.)] };
        let panel = Panel { title: "x & \"y\"".to_owned(), log_y: true, series: vec![series], ..Panel::default() };
        let svg = Plot { title: "t".to_owned(), panels: vec![panel.clone(), Panel::default()] }.svg();
        assert!(svg.contains("a&lt;b") && svg.contains("x &amp; &quot;y&quot;") && !svg.contains("NaN"));
        assert_eq!(svg.matches(BEYOND).count(), 2); // the point, and what the mark means
        assert_eq!(svg.matches("h0").count(), 2);
        for tag in ["text", "svg"] {
            assert_eq!(svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(svg.lines().all(|line| line.ends_with('>')), "{svg}");
    }

    fn picture(panel: Panel) -> String {
        Plot { title: String::new(), panels: vec![panel] }.svg()
    }

    #[test]
    fn series_with_the_same_points_do_not_cover_each_other() {
        let series = |label: &str| Series { label: label.to_owned(), points: vec![(1., 1.), (2., 2.)] };
        let both = vec![series("a"), series("b")];
        for categories in [vec![], vec!["x".to_owned(), "y".to_owned(), "z".to_owned()]] {
            let svg = picture(Panel { series: both.clone(), categories, ..Panel::default() });
            let paths: Vec<&str> =
                svg.lines().filter_map(|line| line.split('"').nth(1).filter(|d| d.ends_with("h0"))).collect();
            assert_eq!(paths.len(), 2);
            assert_ne!(paths[0], paths[1]);
        }
    }

    #[test]
    fn bars_and_cells_say_their_values() {
        let series = Series { label: "a".to_owned(), points: vec![(0., 0.25), (1., f64::INFINITY)] };
        let categories = vec!["x".to_owned(), "y".to_owned()];
        let bars = Panel { form: Form::Bars, log_y: true, categories, series: vec![series], ..Panel::default() };
        let svg = picture(bars);
        assert_eq!((svg.matches("<rect").count(), svg.matches(">0.25<").count()), (2, 1), "{svg}");
        let cell = |value: f64, line: &str| Some(Cell { value, lines: vec![line.to_owned()] });
        let cells = vec![vec![cell(0., "none"), cell(0.125, "some")], vec![None, cell(f64::NAN, "more")]];
        let heat = Heat { labels: vec!["p".to_owned(), "q".to_owned()], cells };
        let svg = picture(Panel { heat: Some(heat), ..Panel::default() });
        for content in [">none<", ">some<", ">not run<", ">\u{d7}<", ">1 p<"] {
            assert!(svg.contains(content), "{content} {svg}");
        }
    }

    #[test]
    fn a_plot_of_nothing_is_empty() {
        let none = Panel { series: vec![Series::default()], ..Panel::default() };
        let not_run =
            Panel { heat: Some(Heat { labels: vec!["a".to_owned()], cells: vec![vec![None]] }), ..Panel::default() };
        let plot = |panels| Plot { title: String::new(), panels };
        assert!(plot(vec![none, not_run]).is_empty());
        let series = Series { label: String::new(), points: vec![(0., f64::NAN)] };
        assert!(!plot(vec![Panel { series: vec![series], ..Panel::default() }]).is_empty());
    }

    #[test]
    fn ticks_are_round_numbers() {
        let names = |low: f64, high: f64, log| -> Vec<String> {
            Scale::of([low, high].into_iter(), log).ticks().into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(0., 16., false), ["0", "5", "10", "15"]);
        assert_eq!(names(0., 0.003, false), ["0", "0.001", "0.002", "0.003"]);
        assert_eq!(names(2e-6, 0.5, true), ["0", "1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1", "1e0"]);
        assert_eq!(names(f64::NAN, f64::NAN, false).len(), 6);
        assert_eq!(Scale::of(std::iter::empty(), true).place(0.), 0.);
    }
}
