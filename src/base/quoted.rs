//! Texts in what people paste.

/// A text between quotes, as Python and JSON both read it.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text for a terminal: what would move its cursor, set its title or turn the direction of what follows is escaped. Lines
/// stay lines.
pub fn printable(text: &str) -> String {
    let is_bidi = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            c if c.is_control() || is_bidi(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::{printable, quoted};

    #[test]
    fn a_terminal_gets_letters_alone() {
        assert_eq!(printable("a\tb\né"), "a\tb\né");
        assert_eq!(printable("\x1b]0;x\x07"), "\\u{1b}]0;x\\u{7}");
        assert_eq!(printable("a\u{202e}b\r\u{9b}"), "a\\u{202e}b\\u{d}\\u{9b}");
    }

    #[test]
    fn json_reads_what_was_quoted() {
        for (text, expected) in [
            ("mul", r#""mul""#),
            ("a\"b\\", r#""a\"b\\""#),
            ("é\u{200b}'", "\"é\u{200b}'\""),
            ("\u{1}\n", r#""\u0001\n""#),
        ] {
            assert_eq!(quoted(text), expected);
            assert_eq!(serde_json::from_str::<String>(expected).unwrap(), text);
        }
    }
}
