//! How a set of suspects is made small: pure, over a test that may cost seconds.

use std::ops::Range;

/// A smallest set of `0..n` that still passes `test`, found by delta debugging; `test` gets ascending indices. Smallest
/// means that no single member can be left out. None when all of them together do not pass, or the test gave up (None).
///
/// The first failing member of a list of independent ones costs 2·log2(n) tests, k of them about k times that.
/// Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002.
pub fn smallest(n: usize, mut test: impl FnMut(&[usize]) -> Option<bool>) -> Option<Vec<usize>> {
    let mut left: Vec<usize> = (0..n).collect();
    if !test(&left)? {
        return None;
    }
    let mut n_pieces = 2;
    while left.len() >= 2 {
        let pieces = pieces(left.len(), n_pieces);
        match pass(&left, &pieces, &mut test)? {
            Some(Passed::Alone(one)) => (left, n_pieces) = (one, 2),
            Some(Passed::Without(rest)) => (left, n_pieces) = (rest, (n_pieces - 1).max(2)),
            None if n_pieces < left.len() => n_pieces = (2 * n_pieces).min(left.len()),
            None => break,
        }
    }
    Some(left)
}

enum Passed {
    /// A piece.
    Alone(Vec<usize>),
    /// All but a piece.
    Without(Vec<usize>),
}

/// What of these passes by itself. None inside: nothing does; None outside: the test gave up.
fn pass(
    left: &[usize],
    pieces: &[Range<usize>],
    test: &mut impl FnMut(&[usize]) -> Option<bool>,
) -> Option<Option<Passed>> {
    for piece in pieces {
        let alone = &left[piece.clone()];
        if test(alone)? {
            return Some(Some(Passed::Alone(alone.to_vec())));
        }
    }
    // Of two, what is left out of one is the other.
    for piece in pieces.iter().filter(|_| pieces.len() > 2) {
        let rest: Vec<usize> = [&left[..piece.start], &left[piece.end..]].concat();
        if test(&rest)? {
            return Some(Some(Passed::Without(rest)));
        }
    }
    Some(None)
}

fn pieces(n: usize, n_pieces: usize) -> Vec<Range<usize>> {
    (0..n_pieces).map(|at| at * n / n_pieces..(at + 1) * n / n_pieces).collect()
}

/// The first of `0..n` from which on `test` holds, by bisection: `test` fails before it and holds after it. `n` when it
/// holds nowhere; None when the test gave up.
pub fn first(n: usize, mut test: impl FnMut(usize) -> Option<bool>) -> Option<usize> {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if test(middle)? { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_passes_or_the_test_gives_up() {
        assert_eq!(smallest(5, |_| Some(false)), None);
        assert_eq!(smallest(5, |_| None), None);
        assert_eq!(smallest(0, |set| Some(set.is_empty())), Some(vec![]));
        let mut n_tests = 0;
        let gives_up = |_: &[usize]| {
            n_tests += 1;
            (n_tests < 3).then_some(n_tests == 1)
        };
        assert_eq!(smallest(8, gives_up), None);
        assert_eq!(first(8, |_| None), None);
    }

    #[test]
    fn one_of_many_costs_a_logarithm() {
        let mut n_tests = 0;
        let found = smallest(64, |set| {
            n_tests += 1;
            Some(set.contains(&41))
        });
        assert_eq!(found, Some(vec![41]));
        assert!(n_tests <= 1 + 2 * 6, "{n_tests}");
    }

    proptest! {
        #[test]
        fn the_guilty_are_found_whoever_they_are(guilty in proptest::collection::btree_set(0_usize..40, 1..5)) {
            let all = |set: &[usize]| Some(guilty.iter().all(|one| set.contains(one)));
            prop_assert_eq!(smallest(40, all), Some(guilty.iter().copied().collect()));
        }

        #[test]
        fn no_member_of_the_smallest_can_be_left_out(clauses in proptest::collection::vec(
            proptest::collection::btree_set(0_usize..12, 1..4), 1..4)) {
            // Passes when one member of each clause is there.
            let test = |set: &[usize]| clauses.iter().all(|clause| clause.iter().any(|one| set.contains(one)));
            let found = smallest(12, |set| Some(test(set))).unwrap();
            prop_assert!(test(&found));
            for left_out in &found {
                let rest: Vec<usize> = found.iter().copied().filter(|one| one != left_out).collect();
                prop_assert!(!test(&rest));
            }
        }

        #[test]
        fn bisection_finds_where_it_begins(n in 0_usize..50, from in 0_usize..60) {
            prop_assert_eq!(first(n, |at| Some(at >= from)), Some(from.min(n)));
        }
    }
}
