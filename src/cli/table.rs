//! Text that fits the terminal.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use rustix::termios::tcgetwinsize;

/// What keeps a subcommand from doing its work.
pub(super) type Failure = Box<dyn Error>;

/// Columns of the terminal that standard output is; else those that `COLUMNS` tells; else None: no line is cut.
pub(super) fn width() -> Option<usize> {
    let stdout = io::stdout();
    if stdout.is_terminal()
        && let Ok(size) = tcgetwinsize(&stdout)
        && size.ws_col > 0
    {
        return Some(size.ws_col.into());
    }
    std::env::var("COLUMNS").ok()?.parse().ok()
}

/// Write to standard output. A reader that has gone (`| head`) is no error.
pub(super) fn put(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Each line cut to the width, with `…` in the place of what is missing.
pub(super) fn fit(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    text.lines().map(|line| cut(line, width) + "\n").collect()
}

/// How the cells of a column give way when a row does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Give {
    /// Not at all: half a number is a wrong number.
    Never,
    /// They lose their end.
    End,
    /// They lose their middle.
    Middle,
}

const GAP: usize = 2;
/// Columns are not cut below this.
const LEAST: usize = 6;

/// Rows below a header, columns aligned, the widest columns cut until a row fits the width. Control characters are
/// escaped.
pub(super) fn table(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    aligned(header, rows, &vec![Give::End; header.len()], width)
}

/// As [`table`], each column giving way in its own manner. When none can any more, rows are wider than the width.
pub(super) fn aligned(header: &[&str], rows: &[Vec<String>], gives: &[Give], width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    let mut widths = natural_widths(header, &rows);
    if let Some(limit) = width {
        while row_width(&widths) > limit {
            let giving = widths.iter_mut().zip(gives).filter(|(width, give)| **give != Give::Never && **width > LEAST);
            match giving.map(|(width, _)| width).max() {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
    }
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(&rows) {
        let cells = row.iter().zip(&widths).zip(gives).map(|((cell, &width), give)| {
            let cell = if *give == Give::Middle { cut_middle(cell, width) } else { cut(cell, width) };
            format!("{cell:width$}")
        });
        let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
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
        let text = table(&["name", "n"], &rows, Some(20));
        let cut = "a".repeat(14) + "…";
        assert_eq!(text, format!("{:17}n\n{cut}  1\n{:17}200\n", "name", "b\\u{1b}[0m"));
        assert!(table(&["name", "n"], &rows, None).contains(&"a".repeat(40)));
    }

    #[test]
    fn names_lose_their_middle_and_numbers_nothing() {
        let rows = vec![vec!["model_layers_0_mlp_weight".to_owned(), "1.234e-7".to_owned()]];
        let gives = [Give::Middle, Give::Never];
        assert_eq!(aligned(&["name", "n"], &rows, &gives, Some(20)), "name        n\nmodel…ight  1.234e-7\n");
        assert_eq!(least_width(&["name", "n"], &rows, &gives), 6 + 2 + 8);
        assert!(aligned(&["name", "n"], &rows, &gives, Some(3)).contains("1.234e-7"));
    }

    #[test]
    fn lines_are_cut_and_marked() {
        assert_eq!(fit("abcdef\nab\n", Some(4)), "abc…\nab\n");
        assert_eq!(fit("abcdef\n", None), "abcdef\n");
    }
}
