//! The page: program, style and data in one file that reads nothing else.

use serde_json::Value;

use crate::cli::answer::schema;
use crate::cli::exit::Failure;

/// Built from `app/` by `npm run build`, which a test does again.
const PROGRAM: &str = include_str!("app.js");
const STYLE: &str = include_str!("app.css");
/// The page's Content-Security-Policy: it may run this program, use this style, and no more.
const POLICY: &str = include_str!("app.policy");

/// The page of a report.
pub(super) fn page(mut report: Value) -> Result<String, Failure> {
    report["schema"] = schema("report").into();
    let data = embedded(&report)?;
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>rust-ort report</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<noscript>This report needs JavaScript; it loads nothing.</noscript>\n\
         <main id=\"app\"></main>\n<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>{PROGRAM}</script>\n</body>\n</html>\n",
        policy = POLICY.trim()
    ))
}

/// JSON that ends no element, whatever it holds.
fn embedded(value: &Value) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(value)?;
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // In strings alone, where JSON reads the escape as the letter.
            '<' | '>' | '&' => safe += &format!("\\u{:04x}", u32::from(c)),
            c if c.is_ascii() || c.is_alphanumeric() => safe.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe += &format!("\\u{unit:04x}")),
        }
    }
    Ok(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_data_and_end_nothing() {
        let hostile = "</script><script>alert(1)</script><!--\u{2028}\u{202e}\u{0}😀é&amp;";
        let value = serde_json::json!({ "name": hostile });
        let text = embedded(&value).unwrap();
        assert!(text.bytes().all(|byte| !matches!(byte, b'<' | b'>' | b'&')), "{text}");
        assert!(text.chars().all(|c| !c.is_control() && c != '\u{202e}'), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let page = page(value).unwrap();
        assert_eq!(page.matches("<script").count(), 2 + PROGRAM.matches("<script").count());
    }

    #[test]
    fn the_program_ends_its_element_nowhere() {
        for text in [PROGRAM, STYLE] {
            let lower = text.to_lowercase();
            assert!(!lower.contains("</script") && !lower.contains("</style") && !lower.contains("<!--"));
        }
        assert!(PROGRAM.len() + STYLE.len() <= 200_000);
        for word in ["http://", "https://", "import(", "fetch(", "XMLHttpRequest"] {
            let found = PROGRAM.replace("http://www.w3.org/2000/svg", "").contains(word);
            assert!(!found, "{word}");
        }
        assert!(POLICY.starts_with("default-src 'none'") && !POLICY.contains('"') && !POLICY.contains("unsafe"));
    }
}
