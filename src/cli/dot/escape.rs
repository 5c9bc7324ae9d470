//! Names from models in pictures: text, never markup, and nothing that moves what stands beside it.

use crate::base::quoted::is_printable;
use crate::cli::table;

/// Characters of a text that is shown in full.
const MOST: usize = 2000;

/// The text on as many lines as it has; what cannot be shown is escaped as `\u{1b}`.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // XML knows no way to write the last two.
        if is_printable(c) && !matches!(c, '\u{fffe}' | '\u{ffff}') {
            shown.push(c)
        } else {
            shown.extend(c.escape_unicode())
        }
    }
    shown
}

/// One line of at most so many columns: both ends of a name tell, its middle goes.
pub(super) fn short(text: &str, columns: usize) -> String {
    table::cut_middle(&visible(text).replace(['\n', '\t'], " "), columns)
}

/// One line of at most so many columns that ends as a path does, whole parts of it where there are some.
pub(super) fn short_start(text: &str, columns: usize) -> String {
    let line = visible(text).replace(['\n', '\t'], " ");
    if table::columns(&line) <= columns {
        return line;
    }
    let kept: String = line.chars().rev().take(columns.saturating_sub(1)).collect();
    let mut end: String = kept.chars().rev().collect();
    while table::columns(&end) >= columns.max(1) {
        end.remove(0);
    }
    format!("…{}", end.split_once('.').map_or(end.as_str(), |(_, parts)| parts))
}

/// Lines, whole but for what is longer than anybody reads.
pub(super) fn long(text: &str) -> String {
    match text.char_indices().nth(MOST) {
        None => visible(text),
        Some((end, _)) => format!("{}… ({} characters)", visible(&text[..end]), text.chars().count()),
    }
}

/// Text or attribute of SVG.
pub(super) fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A quoted text of DOT. Graphviz reads escapes and HTML's entities in labels: neither is left of a name.
pub(super) fn dot(text: &str) -> String {
    let mut escaped = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '&' => escaped.push_str("&amp;"),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_name_is_text() {
        let name = "</title><script>alert('1')</script>&\"";
        assert_eq!(xml(name), "&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;");
        assert_eq!(dot("a\"]; b [label=\"\\N &lt;\n"), "\"a\\\"]; b [label=\\\"\\\\N &amp;lt;\\n\"");
    }

    #[test]
    fn what_moves_other_text_is_escaped() {
        let name = "a\u{1b}[31m\u{202e}\0\r\u{9b}\u{fffe}\u{ffff}b";
        let shown = "a\\u{1b}[31m\\u{202e}\\u{0}\\u{d}\\u{9b}\\u{fffe}\\u{ffff}b";
        assert_eq!((long(name).as_str(), short(name, 200).as_str()), (shown, shown));
        assert_eq!(short("two\nlines\t", 20), "two lines ");
    }

    #[test]
    fn a_long_name_is_cut_in_its_box_and_told_in_its_title() {
        let name = "é".repeat(10_000);
        assert_eq!(short(&name, 9), "éééé…éééé");
        assert_eq!(short_start("model.layers.0.mlp", 10), "…0.mlp");
        assert_eq!(short_start("model.post_attention_layernorm", 10), "…layernorm");
        assert_eq!(
            [short_start("漢字", 4), short_start("漢字", 3), short_start("漢", 0)],
            ["漢字", "…字", "…"].map(str::to_owned)
        );
        let told = long(&name);
        assert!(told.ends_with("é… (10000 characters)") && told.chars().count() < MOST + 30, "{}", told.len());
    }
}
