//! The known name that is most like one that nobody knows.

use strsim::levenshtein;

/// `; did you mean "mul_1"?`, or nothing when none is near enough to help.
pub(super) fn hint<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|name| (levenshtein(asked, name), name)).min();
    match near {
        Some((n_edits, name)) if n_edits <= asked.chars().count().div_ceil(2) => format!("; did you mean {name:?}?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (asked, name, is_near) in [
            ("", "abc", false),
            ("kitten", "sitting", true),
            ("kitten", "sittings", false),
            ("mul_1", "mul_1", true),
            ("мир", "мор", true),
            ("мир", "тор", true),
            ("мир", "так", false),
        ] {
            let expected = if is_near { format!("; did you mean {name:?}?") } else { String::new() };
            assert_eq!(hint(asked, [name].into_iter()), expected, "{asked} {name}");
        }
    }

    #[test]
    fn only_a_near_name_is_a_hint() {
        assert_eq!(hint("mul1", ["add", "mul_1"].into_iter()), "; did you mean \"mul_1\"?");
        assert_eq!(hint("mul", ["convolution_backward"].into_iter()), "");
    }
}
