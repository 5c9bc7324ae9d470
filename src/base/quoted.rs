//! Texts in what people paste.

/// A text between quotes, as Python and JSON both read it.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::quoted;

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
