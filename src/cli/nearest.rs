//! The known name that is most like one that nobody knows.

/// `; did you mean "mul_1"?`, or nothing when none is near enough to help.
pub(super) fn hint<'a>(asked: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|name| (edits(asked, name), name)).min();
    match near {
        Some((n_edits, name)) if n_edits <= asked.chars().count().div_ceil(2) => format!("; did you mean {name:?}?"),
        _ => String::new(),
    }
}

/// Levenshtein's distance.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (from, to, n) in [("", "abc", 3), ("kitten", "sitting", 3), ("mul_1", "mul_1", 0), ("мир", "мор", 1)]
        {
            assert_eq!(edits(from, to), n, "{from} {to}");
        }
    }

    #[test]
    fn only_a_near_name_is_a_hint() {
        assert_eq!(hint("mul1", ["add", "mul_1"].into_iter()), "; did you mean \"mul_1\"?");
        assert_eq!(hint("mul", ["convolution_backward"].into_iter()), "");
    }
}
