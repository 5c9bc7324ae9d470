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

/// Rows below a header, columns aligned, the widest columns cut until a row fits the width. Control characters are
/// escaped.
pub(super) fn table(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    const GAP: usize = 2;
    const LEAST: usize = 6;
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if let Some(limit) = width {
        while widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > limit {
            match widths.iter_mut().max() {
                Some(widest) if *widest > LEAST => *widest -= 1,
                _ => break,
            }
        }
    }
    let header = header.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{:width$}", cut(cell, width)));
        let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
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
    fn lines_are_cut_and_marked() {
        assert_eq!(fit("abcdef\nab\n", Some(4)), "abc…\nab\n");
        assert_eq!(fit("abcdef\n", None), "abcdef\n");
    }
}
