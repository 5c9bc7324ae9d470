//! Text that fits the terminal.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, IsTerminal as _};

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthChar as _;

/// Rows of what tells most: the rest is counted.
pub(super) const MOST_ROWS: usize = 20;

/// Columns of a table that is piped. A program reads `--json`.
const PIPED: usize = 120;
/// Below this nothing is cut any further.
const NARROWEST: usize = 40;

/// Columns of the terminal that standard output is; else those that `COLUMNS` tells.
pub(super) fn terminal() -> Option<usize> {
    let stdout = io::stdout();
    if stdout.is_terminal()
        && let Ok(size) = tcgetwinsize(&stdout)
        && size.ws_col > 0
    {
        return Some(usize::from(size.ws_col).max(NARROWEST));
    }
    std::env::var("COLUMNS").ok()?.parse().ok().map(|columns: usize| columns.max(NARROWEST))
}

/// Columns that a table may take: the terminal's, else [`PIPED`].
pub(super) fn width() -> usize {
    terminal().unwrap_or(PIPED)
}

/// Each once, in the order of the first of it, and how many there are of it.
pub(super) fn counted<T: PartialEq>(told: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for one in told {
        match counts.iter_mut().find(|(known, _)| *known == one) {
            Some((_, n)) => *n += 1,
            None => counts.push((one, 1)),
        }
    }
    counts
}

/// `and 35 more nodes (30 match, 5 noise): --all has all`, of counts of what is not shown beside `shown` rows; nothing of
/// none.
pub(super) fn hidden<'a>(shown: usize, counts: impl Iterator<Item = (&'a str, usize)>, what: &str) -> String {
    let counts: Vec<_> = counts.filter(|(_, n)| *n > 0).collect();
    let n: usize = counts.iter().map(|(_, n)| n).sum();
    let listed: Vec<_> = counts.iter().map(|(word, n)| format!("{n} {word}")).collect();
    let end = if n == 1 { "" } else { "s" };
    let n = if shown == 0 { n.to_string() } else { format!("and {n} more") };
    if listed.is_empty() {
        return String::new();
    }
    let text = format!("{n} {what}{end} ({}): --all has all", listed.join(", "));
    paragraph(&text, width())
}

/// Each line cut to the width, with `…` in the place of what is missing.
pub(super) fn fit(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    text.lines().map(|line| cut(line, width) + "\n").collect()
}

/// How the cells of a column give way when a row does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Give {
    /// Not at all: half a number is a wrong number. A row that does not fit for that becomes a block.
    Never,
    /// They lose their end.
    End,
    /// They lose their middle.
    Middle,
}

const GAP: usize = 2;
/// Columns are not cut below this.
const LEAST: usize = 6;
/// Below this a name that is cut tells little.
const READABLE: usize = 16;

/// A table in pieces.
pub(super) struct Pieces {
    /// The heads of the columns; None where each record is a block that names its fields.
    pub(super) header: Option<String>,
    /// One a row: a line, or a block of several.
    pub(super) records: Vec<String>,
}

impl Pieces {
    /// The pieces under each other, blocks apart.
    pub(super) fn text(&self) -> String {
        match &self.header {
            Some(header) => std::iter::once(header).chain(&self.records).map(|line| line.clone() + "\n").collect(),
            None => self.records.iter().map(|block| block.clone() + "\n").collect::<Vec<_>>().join("\n"),
        }
    }
}

/// Rows below a header, columns aligned, the widest columns giving way until a row fits the width. Where they cannot,
/// one block a row. Control characters are escaped.
pub(super) fn aligned(header: &[&str], rows: &[Vec<String>], gives: &[Give], width: usize) -> String {
    pieces(header, rows, gives, width).text()
}

/// As [`aligned`]. Where cells would be cut to pieces, whole columns go first: those with the highest number in `rooms`, of
/// equal ones the last; 0: what decides, which stays.
pub(super) fn roomy(header: &[&str], rows: &[Vec<String>], gives: &[Give], rooms: &[u8], width: usize) -> String {
    let mut kept: Vec<usize> = (0..header.len()).collect();
    loop {
        let shown: Vec<&str> = kept.iter().map(|&at| header[at]).collect();
        let cells = |row: &Vec<String>| kept.iter().filter_map(|&at| row.get(at).cloned()).collect::<Vec<_>>();
        let cells: Vec<_> = rows.iter().map(cells).collect();
        let giving: Vec<Give> = kept.iter().map(|&at| gives[at]).collect();
        let last = kept.iter().enumerate().filter(|(_, at)| rooms[**at] > 0).max_by_key(|(_, at)| rooms[**at]);
        match last.map(|(place, _)| place) {
            Some(place) if width_down_to(READABLE, &shown, &cells, &giving) > width => drop(kept.remove(place)),
            _ => return aligned(&shown, &cells, &giving, width),
        }
    }
}

/// As [`aligned`], in pieces.
pub(super) fn pieces(header: &[&str], rows: &[Vec<String>], gives: &[Give], width: usize) -> Pieces {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    let mut widths = natural_widths(header, &rows);
    while row_width(&widths) > width {
        let giving = widths.iter_mut().zip(gives).filter(|(width, give)| **give != Give::Never && **width > LEAST);
        match giving.map(|(width, _)| width).max() {
            Some(widest) => *widest -= 1,
            None => return blocks(header, &rows, width),
        }
    }
    let column = |at: usize| rows.iter().filter_map(move |row| row.get(at)).map(String::as_str);
    let cuts: Vec<HashMap<&str, String>> = (0..widths.len())
        .map(|at| if gives[at] == Give::Middle { cut_apart(column(at), widths[at]) } else { HashMap::new() })
        .collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.into_iter().enumerate().map(|(at, cell)| {
            let width = widths[at];
            let cell = cuts[at].get(cell).cloned().unwrap_or_else(|| match gives[at] {
                Give::Middle => cut_middle(cell, width),
                _ => cut(cell, width),
            });
            padded(&cell, width)
        });
        cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let records = rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).collect();
    Pieces { header: Some(line(header.to_vec())), records }
}

/// One block a row, whatever its width.
pub(super) fn blocks(header: &[&str], rows: &[Vec<String>], width: usize) -> Pieces {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| escape(cell)).collect::<Vec<_>>();
    Pieces { header: None, records: rows.iter().map(|row| block(header, &escaped(row), width)).collect() }
}

/// A row as lines of name and value, without what is not known.
fn block(header: &[&str], row: &[String], width: usize) -> String {
    let names = header.iter().map(|name| columns(name)).max().unwrap_or_default();
    let room = width.saturating_sub(names + GAP).max(LEAST);
    let known = header.iter().zip(row).filter(|(_, cell)| !matches!(cell.as_str(), "" | "-"));
    known
        .map(|(name, cell)| format!("{}  {}", padded(name, names), cut_middle(cell, room)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Width of a row when every column has given way as far as it can.
pub(super) fn least_width(header: &[&str], rows: &[Vec<String>], gives: &[Give]) -> usize {
    width_down_to(LEAST, header, rows, gives)
}

/// Width of a row when every column that gives way is so wide at most.
fn width_down_to(most: usize, header: &[&str], rows: &[Vec<String>], gives: &[Give]) -> usize {
    let widths = natural_widths(header, rows).into_iter().zip(gives);
    row_width(
        &widths.map(|(width, give)| if *give == Give::Never { width } else { width.min(most) }).collect::<Vec<_>>(),
    )
}

fn natural_widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = header.iter().map(|cell| columns(cell)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns(cell));
        }
    }
    widths
}

fn row_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Whether to colour: standard output is a terminal that can, and `NO_COLOR` (no-color.org) does not forbid it.
pub(super) fn colours() -> bool {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    io::stdout().is_terminal() && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb"
}

/// Lines of at most so many columns, as [`wrapped`] breaks them.
pub(super) fn paragraph(text: &str, width: usize) -> String {
    wrapped(text, width).into_iter().map(|line| line + "\n").collect()
}

/// The text in lines of at most so many columns, broken at spaces; a longer word loses its middle.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in escape(text).split(' ').map(|word| cut_middle(word, width)) {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(&word) <= width => *line += &format!(" {word}"),
            _ => lines.push(word),
        }
    }
    lines
}

/// Columns that a character takes: 2 a wide one, none a mark that combines with the one before, 1 a control character.
fn column(c: char) -> usize {
    c.width().unwrap_or(1)
}

pub(super) fn columns(text: &str) -> usize {
    text.chars().map(column).sum()
}

pub(super) fn padded(text: &str, width: usize) -> String {
    text.to_owned() + &" ".repeat(width.saturating_sub(columns(text)))
}

/// As many of the characters as so many columns hold.
fn within(chars: impl Iterator<Item = char>, width: usize) -> impl Iterator<Item = char> {
    let mut used = 0;
    chars.take_while(move |&c| {
        used += column(c);
        used <= width
    })
}

pub(super) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    within(text.chars(), width.saturating_sub(1)).chain(['…']).collect()
}

/// The text without its middle, `…` in its place.
pub(super) fn cut_middle(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let tail: Vec<char> = within(text.chars().rev(), kept / 2).collect();
    // A mark whose letter is cut away has nothing to combine with.
    let tail = tail.into_iter().rev().skip_while(|&c| column(c) == 0);
    within(text.chars(), kept - kept / 2).chain(['…']).chain(tail).collect()
}

/// Texts that are too wide, cut so that those that differ stay apart: without their middle where that is enough, else
/// without what they have in common.
pub(super) fn cut_apart<'a>(texts: impl Iterator<Item = &'a str>, width: usize) -> HashMap<&'a str, String> {
    let wide: BTreeSet<&str> = texts.filter(|text| columns(text) > width).collect();
    let mut alike: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for text in wide {
        alike.entry(cut_middle(text, width)).or_default().push(text);
    }
    let mut cuts = HashMap::new();
    let mut used: HashSet<String> =
        alike.iter().filter(|(_, texts)| texts.len() == 1).map(|(cut, _)| cut.clone()).collect();
    for (middle_cut, texts) in alike {
        if let [text] = texts.as_slice() {
            cuts.insert(*text, middle_cut);
            continue;
        }
        let begin = shared(&texts);
        for text in texts {
            let own: Vec<char> = text.chars().collect();
            // Back to where the part that differs begins.
            let from = own[..begin].iter().rposition(|c| !c.is_alphanumeric()).map_or(0, |at| at + 1);
            let from = if begin - from < width / 2 { from } else { begin };
            let from = from.min(own.len().saturating_sub(width.saturating_sub(1)));
            let rest: String = own[from..].iter().collect();
            let apart = |rest: String| if from > 0 { format!("…{rest}") } else { rest };
            let mut shown = apart(cut(&rest, width.saturating_sub(usize::from(from > 0))));
            if used.contains(&shown) {
                shown = apart(cut_middle(&rest, width.saturating_sub(usize::from(from > 0))));
            }
            let mut n = 2;
            while !used.insert(shown.clone()) {
                let end = format!("~{n}");
                shown = cut_middle(text, width.saturating_sub(end.len())) + &end;
                n += 1;
            }
            cuts.insert(text, shown);
        }
    }
    cuts
}

/// Characters that all of some texts begin with.
fn shared(texts: &[&str]) -> usize {
    let Some((first, others)) = texts.split_first() else { return 0 };
    let with = |other: &&str| first.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    others.iter().map(with).min().unwrap_or_default()
}

pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if c.is_control() {
            escaped.extend(c.escape_default())
        } else {
            escaped.push(c)
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_width_by_cutting_its_widest_column() {
        let rows = vec![vec!["a".repeat(40), "1".to_owned()], vec!["b\u{1b}[0m".to_owned(), "200".to_owned()]];
        let gives = [Give::End, Give::Never];
        let text = aligned(&["name", "n"], &rows, &gives, 20);
        let cut = "a".repeat(14) + "…";
        assert_eq!(text, format!("{:17}n\n{cut}  1\n{:17}200\n", "name", "b\\u{1b}[0m"));
        assert!(aligned(&["name", "n"], &rows, &gives, 200).contains(&"a".repeat(40)));
    }

    #[test]
    fn names_lose_their_middle_and_numbers_nothing() {
        let rows = vec![vec!["model_layers_0_mlp_weight".to_owned(), "1.234e-7".to_owned()]];
        let gives = [Give::Middle, Give::Never];
        assert_eq!(aligned(&["name", "n"], &rows, &gives, 20), "name        n\nmodel…ight  1.234e-7\n");
        assert_eq!(least_width(&["name", "n"], &rows, &gives), 6 + 2 + 8);
    }

    #[test]
    fn a_row_that_cannot_fit_is_a_block_of_what_is_known() {
        let row = |name: &str, why: &str| [name, "1.234e-7", "-", why].map(str::to_owned).to_vec();
        let rows = [row("model_layers_0_mlp_weight", ""), row("b", "x")];
        let gives = [Give::Never; 4];
        let text = aligned(&["name", "n", "m", "why"], &rows, &gives, 20);
        assert_eq!(text, "name  model_l…weight\nn     1.234e-7\n\nname  b\nn     1.234e-7\nwhy   x\n");
    }

    #[test]
    fn columns_that_decide_nothing_go_where_cells_would_be_cut_to_pieces() {
        let rows = vec![vec!["a".repeat(16), "1/2".to_owned(), "MISMATCH".to_owned(), "5.00e-1".to_owned()]];
        let (header, gives) =
            (["name", "outside", "verdict", "to pass"], [Give::Middle, Give::Never, Give::Never, Give::Never]);
        let shown =
            |width: usize| roomy(&header, &rows, &gives, &[0, 1, 0, 2], width).lines().next().unwrap().to_owned();
        assert_eq!(shown(50), "name              outside  verdict   to pass");
        assert_eq!(shown(43), "name              outside  verdict");
        assert_eq!(shown(30), "name              verdict");
        // What decides stays, however little room there is.
        assert_eq!(shown(20), "name        verdict");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let rows = [["重み", "1"], ["w", "200"]].map(|row| row.map(str::to_owned).to_vec());
        let gives = [Give::End, Give::Never];
        assert_eq!(aligned(&["name", "n"], &rows, &gives, 80), "name  n\n重み  1\nw     200\n");
        assert_eq!(fit("重み重み\n", Some(6)), "重み…\n");
        assert_eq!(cut_middle("重み重み重み", 8), "重み…み");
    }

    #[test]
    fn combining_marks_take_none_and_stay_with_their_letter() {
        let rows = [["e\u{301}te\u{301}", "1"], ["w", "200"]].map(|row| row.map(str::to_owned).to_vec());
        let gives = [Give::End, Give::Never];
        assert_eq!(aligned(&["n", "n"], &rows, &gives, 80), "n    n\ne\u{301}te\u{301}  1\nw    200\n");
        assert_eq!(fit("abce\u{301}\n", Some(4)), "abce\u{301}\n");
        assert_eq!(fit("e\u{301}e\u{301}e\u{301}\n", Some(2)), "e\u{301}…\n");
        assert_eq!(cut_middle("abcde\u{301}f", 4), "ab…f");
        assert_eq!(cut_middle("abcdefe\u{301}", 4), "ab…e\u{301}");
        assert_eq!(cut_middle("重重重重\u{301}", 4), "重…");
    }

    #[test]
    fn text_is_wrapped_at_spaces() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("a/very/long/path and", 9), ["a/ve…path", "and"]);
        assert_eq!(wrapped("", 9), [""]);
    }

    #[test]
    fn names_that_differ_stay_apart() {
        let layer = |at: usize, name: &str| format!("model.layers.{at}.self_attn.{name}_proj.weight");
        let names: Vec<String> = ["q", "k", "v", "o"].map(|name| [layer(0, name), layer(1, name)]).concat();
        let of = |width: usize| {
            let cuts = cut_apart(names.iter().map(String::as_str), width);
            assert!(cuts.values().all(|cut| columns(cut) <= width), "{width}: {cuts:?}");
            assert_eq!(cuts.values().collect::<HashSet<_>>().len(), names.len(), "{width}: {cuts:?}");
            names.iter().map(|name| cuts[name.as_str()].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(20)[..2], ["…0.self_attn.q_proj…", "…1.self_attn.q_proj…"]);
        for width in 8..37 {
            of(width);
        }
        assert!(cut_apart(["short"].into_iter(), 5).is_empty());
        let two = ["aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb"];
        assert_eq!(cut_apart(two.into_iter(), 5)[two[1]], "bb…bb");
    }

    #[test]
    fn lines_are_cut_and_marked() {
        assert_eq!(fit("abcdef\nab\n", Some(4)), "abc…\nab\n");
        assert_eq!(fit("abcdef\n", None), "abcdef\n");
    }
}
