//! Text that fits the terminal.

use std::io::{self, IsTerminal as _};

use rustix::termios::tcgetwinsize;

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
    let line = |cells: Vec<&str>| {
        let cells = cells.into_iter().zip(&widths).zip(gives).map(|((cell, &width), give)| {
            let cell = if *give == Give::Middle { cut_middle(cell, width) } else { cut(cell, width) };
            format!("{cell:width$}")
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
    let names = header.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let room = width.saturating_sub(names + GAP).max(LEAST);
    let known = header.iter().zip(row).filter(|(_, cell)| !matches!(cell.as_str(), "" | "-"));
    known.map(|(name, cell)| format!("{name:names$}  {}", cut_middle(cell, room))).collect::<Vec<_>>().join("\n")
}

/// Width of a row when every column has given way as far as it can.
pub(super) fn least_width(header: &[&str], rows: &[Vec<String>], gives: &[Give]) -> usize {
    let widths = natural_widths(header, rows).into_iter().zip(gives);
    row_width(
        &widths.map(|(width, give)| if *give == Give::Never { width } else { width.min(LEAST) }).collect::<Vec<_>>(),
    )
}

fn natural_widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
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

/// The text in lines of at most so many columns, broken at spaces; a longer word loses its middle.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').map(|word| cut_middle(word, width)) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word),
        }
    }
    lines
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The text without its middle, `…` in its place.
pub(super) fn cut_middle(text: &str, width: usize) -> String {
    let n = text.chars().count();
    if n <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let tail = kept / 2;
    text.chars().take(kept - tail).chain(['…']).chain(text.chars().skip(n - tail)).collect()
}

fn escape(text: &str) -> String {
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
    fn text_is_wrapped_at_spaces() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("a/very/long/path and", 9), ["a/ve…path", "and"]);
        assert_eq!(wrapped("", 9), [""]);
    }

    #[test]
    fn lines_are_cut_and_marked() {
        assert_eq!(fit("abcdef\nab\n", Some(4)), "abc…\nab\n");
        assert_eq!(fit("abcdef\n", None), "abcdef\n");
    }
}
