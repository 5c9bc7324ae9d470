//! Texts in what people paste.

/// A text between quotes, as Python and JSON both read it.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text as one word of a shell's command line.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_./-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a terminal shows it, and goes on as before: it moves no cursor, sets no title, and does not turn the direction
/// of what follows. Ends of lines and tabulators are.
pub fn is_printable(c: char) -> bool {
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    matches!(c, '\n' | '\t') || !(c.is_control() || is_bidi)
}

/// A text for a terminal: what is not [`is_printable`] is escaped, but for what sets the colour of letters.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let (plain, left) = rest.split_at(plain_len(rest));
        safe.push_str(plain);
        rest = left;
        let Some(c) = rest.chars().next() else { return safe };
        let len = colour_len(rest).unwrap_or(c.len_utf8());
        let (taken, left) = rest.split_at(len);
        if len > c.len_utf8() || is_printable(c) {
            safe.push_str(taken)
        } else {
            safe.extend(c.escape_unicode())
        }
        rest = left;
    }
}

/// Bytes at the start that are printable ASCII.
pub fn plain_len(text: &str) -> usize {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    text.bytes().position(|byte| !is_plain(byte)).unwrap_or(text.len())
}

/// A text that stays on its line, as a name that somebody else chose: what is not [`is_printable`] is escaped, and so are
/// ends of lines and tabulators.
pub fn one_line(text: &str) -> String {
    let escape = |c| match c {
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        // Those of Unicode alone, which is_printable leaves: terminals take them for letters, other readers do not.
        '\u{2028}' | '\u{2029}' => c.escape_unicode().to_string(),
        c if is_printable(c) => c.to_string(),
        c => c.escape_unicode().to_string(),
    };
    text.chars().map(escape).collect()
}

/// Numbers of the colours that our tables have; another may hide letters.
const COLOURS: [&str; 8] = ["0", "1", "2", "31", "32", "33", "36", "1;31"];

/// Bytes of an escape sequence at the start that sets a colour of ours, ESC [ numbers m.
fn colour_len(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find('m')?;
    COLOURS.contains(&&numbers[..end]).then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::{one_line, printable, quoted, shell_word};

    #[test]
    fn a_shell_reads_one_word() {
        for (text, expected) in
            [("dumps/run_1", "dumps/run_1"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x;", "'$x;'"), ("", "''")]
        {
            assert_eq!(shell_word(text), expected);
        }
    }

    #[test]
    fn a_terminal_gets_letters_alone() {
        assert_eq!(printable("a\tb\né"), "a\tb\né");
        assert_eq!((printable(""), printable("é\u{7f}~")), (String::new(), "é\\u{7f}~".to_owned()));
        assert_eq!(printable("\x1b]0;x\x07"), "\\u{1b}]0;x\\u{7}");
        assert_eq!(printable("\x1b[1;31mred\x1b[0m\x1b[2J"), "\x1b[1;31mred\x1b[0m\\u{1b}[2J");
        assert_eq!(printable("a\u{202e}b\r\u{9b}"), "a\\u{202e}b\\u{d}\\u{9b}");
        assert_eq!(printable("\x1b[8mx\x1b[30;40my"), "\\u{1b}[8mx\\u{1b}[30;40my", "letters that nobody sees");
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(one_line("a\nb\tc\u{2028}é"), "a\\nb\\tc\\u{2028}é");
        assert_eq!(one_line("\x1b[31mred\r"), "\\u{1b}[31mred\\u{d}");
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
