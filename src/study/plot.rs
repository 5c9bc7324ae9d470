//! Points in a plane, as SVG.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::compare::significant;

const WIDTH: f64 = 640.;
const HEIGHT: f64 = 300.;
const LEFT: f64 = 76.;
const RIGHT: f64 = 16.;
const TOP: f64 = 58.;
const BOTTOM: f64 = 62.;
/// Height of the title of all.
const HEAD: f64 = 34.;
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
    /// Its points.
    pub series: Vec<Series>,
}

/// Points of one colour.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// In the legend.
    pub label: String,
    /// x, y; those that are not finite are left out.
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
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let (upper, lower) = (top + TOP, top + HEIGHT - BOTTOM);
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let x = match self.categories.len() {
            0 => Scale::of(points().map(|(x, _)| x), false),
            n => Scale { from: -0.5, to: n as f64 - 0.5, log: false },
        };
        let y = Scale::of(points().map(|(_, y)| y), self.log_y);
        let across = |value: f64| left + x.place(value) * (right - left);
        let up = |value: f64| lower - y.place(value) * (lower - upper);
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
        let mut at = left;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let _ = writeln!(svg, r#"<circle cx="{at:.1}" cy="{:.1}" r="3.5" fill="{colour}"/>"#, top + 34.);
            label(svg, (at + 7., top + 38.), "start", "", &series.label);
            at += 18. + 5.4 * series.label.chars().count() as f64;
            // Of points that fall on the same tenth of a pixel, one.
            let drawn = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let drawn: BTreeSet<String> = drawn.map(|&(x, y)| format!("M{:.1} {:.1}h0", across(x), up(y))).collect();
            let path: String = drawn.into_iter().collect();
            let _ = writeln!(
                svg,
                r#"<path d="{path}" stroke="{colour}" stroke-width="4.4" stroke-linecap="round" stroke-opacity="0.75"/>"#
            );
        }
    }
}

impl Plot {
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
        assert_eq!(svg.matches("h0").count(), 2);
        for tag in ["text", "svg"] {
            assert_eq!(svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(svg.lines().all(|line| line.ends_with('>')), "{svg}");
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
