//! What an example found, and whether it is so here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Source of a finding that no example has: this study's own.
pub const OWN: &str = "this study's own";

/// Whether a finding holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// It reproduces, in every draw of the numbers.
    Yes,
    /// It reproduces in some draws.
    InSome,
    /// It does not.
    No,
    /// Something that it is about was not run.
    NotExamined,
    /// It ran with sizes or on a provider for which nobody claims it.
    OtherSizes,
}

/// A finding of an example, and what the same numbers say here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// In one sentence.
    pub claim: String,
    /// Whose it is, and what it was measured on; [`OWN`] where no example has it.
    pub source: String,
    /// The example's numbers; empty for [`OWN`].
    pub seed: String,
    /// The same here, of the first draw.
    pub here: String,
    /// Computed from them, over all draws.
    pub holds: Holds,
    /// Draws in which it holds.
    pub n_holds: usize,
    /// Draws in which it was examined.
    pub n_draws: usize,
}

impl Finding {
    /// `seed`: whose, and the numbers. `here`: what was found, and whether that is what is claimed; None where it was not
    /// run.
    pub(super) fn new(
        claim: impl Into<String>,
        (source, seed): (&str, impl Into<String>),
        here: Option<(String, bool)>,
    ) -> Self {
        let (here, holds) = match here {
            Some((here, true)) => (here, Holds::Yes),
            Some((here, false)) => (here, Holds::No),
            None => ("not run".to_owned(), Holds::NotExamined),
        };
        let (n_holds, n_draws) = (usize::from(holds == Holds::Yes), usize::from(holds != Holds::NotExamined));
        Self { claim: claim.into(), source: source.to_owned(), seed: seed.into(), here, holds, n_holds, n_draws }
    }

    /// One that no example has.
    pub(super) fn own(claim: impl Into<String>, here: Option<(String, bool)>) -> Self {
        Self::new(claim, (OWN, ""), here)
    }

    /// The findings as they are where they are claimed; elsewhere without a verdict.
    pub(super) fn judged(mut findings: Vec<Self>, as_claimed: bool) -> Vec<Self> {
        if !as_claimed {
            let examined = findings.iter_mut().filter(|finding| finding.holds != Holds::NotExamined);
            examined.for_each(|finding| {
                (finding.holds, finding.n_holds, finding.n_draws) = (Holds::OtherSizes, 0, 0);
            });
        }
        findings
    }

    /// The findings of one draw with what another draw of the same study says of each. `others`: the same claims, in the
    /// same order.
    pub fn add_draw(findings: &mut [Self], others: &[Self]) {
        for (finding, other) in findings.iter_mut().zip(others) {
            debug_assert_eq!(finding.claim, other.claim);
            finding.n_holds += other.n_holds;
            finding.n_draws += other.n_draws;
            finding.holds = match (finding.n_holds, finding.n_draws) {
                (_, 0) => finding.holds,
                (0, _) => Holds::No,
                (n, of) if n == of => Holds::Yes,
                _ => Holds::InSome,
            };
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Holds::Yes => "reproduces",
            Holds::InSome => "reproduces in some draws",
            Holds::No => "does not reproduce",
            Holds::NotExamined => "not examined",
            Holds::OtherSizes => "no verdict here",
        })
    }
}

/// One line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, seed, here, n_holds, n_draws, .. } = self;
        // Nothing is made again that is this study's own.
        match (self.source == OWN, self.holds) {
            (true, Holds::Yes) => f.write_str("holds")?,
            (true, Holds::InSome) => f.write_str("holds in some draws")?,
            (true, Holds::No) => f.write_str("does not hold")?,
            (_, holds) => write!(f, "{holds}")?,
        }
        if *n_draws > 1 {
            write!(f, " ({n_holds} of {n_draws} draws)")?;
        }
        match self.source == OWN {
            true => write!(f, ": {claim} (here: {here})"),
            false => write!(f, ": {claim} (seed: {seed}; here: {here})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(here: Option<bool>) -> Finding {
        Finding::new("a", ("b", "c"), here.map(|holds| ("d".to_owned(), holds)))
    }

    #[test]
    fn other_sizes_have_no_verdict() {
        let all = || vec![finding(Some(true)), finding(None)];
        let holds = |at| Finding::judged(all(), at).iter().map(|finding| finding.holds).collect::<Vec<_>>();
        assert_eq!(holds(true), [Holds::Yes, Holds::NotExamined]);
        assert_eq!(holds(false), [Holds::OtherSizes, Holds::NotExamined]);
    }

    #[test]
    fn a_finding_reproduces_where_every_draw_says_so() {
        let over = |draws: &[Option<bool>]| {
            let mut first = vec![finding(draws[0])];
            draws[1..].iter().for_each(|&draw| Finding::add_draw(&mut first, &[finding(draw)]));
            (first[0].holds, first[0].n_holds, first[0].n_draws)
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(over(&[yes, yes]), (Holds::Yes, 2, 2));
        assert_eq!(over(&[yes, no, yes]), (Holds::InSome, 2, 3));
        assert_eq!(over(&[no, no]), (Holds::No, 0, 2));
        assert_eq!(over(&[None, None]), (Holds::NotExamined, 0, 0));
        let mut other = Finding::judged(vec![finding(yes)], false);
        Finding::add_draw(&mut other, &Finding::judged(vec![finding(no)], false));
        assert_eq!(other[0].holds, Holds::OtherSizes);
    }

    #[test]
    fn an_own_finding_says_that_it_holds_and_names_no_seed() {
        let own = Finding::own("a", Some(("d".to_owned(), true)));
        assert_eq!(own.to_string(), "holds: a (here: d)");
        let mut draws = vec![finding(Some(true))];
        Finding::add_draw(&mut draws, &[finding(Some(false))]);
        assert_eq!(draws[0].to_string(), "reproduces in some draws (1 of 2 draws): a (seed: c; here: d)");
    }
}
