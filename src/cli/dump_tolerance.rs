//! The tolerance that a dump brings along. Whoever made the dump chose it, so it is told wherever it is not the default.

use serde_json::Value;

use crate::compare::{Policy, Tolerance, few};

/// So many are told; others are counted.
const TOLD: usize = 3;

/// Policies of data sets that are not the default, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Brought(Vec<Policy>);

impl Brought {
    /// Of these.
    pub(super) fn of(policies: impl IntoIterator<Item = Policy>) -> Self {
        let mut brought = Vec::new();
        for policy in policies {
            if policy != Policy::default() && !brought.contains(&policy) {
                brought.push(policy);
            }
        }
        Self(brought)
    }

    /// ` within the dump's own tolerance (atol 1e9)`, to follow what was judged; empty where every one is
    /// the default.
    pub(super) fn words(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut all: Vec<String> = Vec::new();
        for text in self.0.iter().map(of) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        let n_more = all.len().saturating_sub(TOLD);
        let more = (n_more > 0).then(|| format!("{n_more} others"));
        let told: Vec<String> = all.into_iter().take(TOLD).chain(more).collect();
        format!(" within the dump's own tolerance ({})", told.join("; "))
    }

    /// A line of its own for a listing of verdicts; empty where every one is by the default.
    pub(super) fn line(&self) -> String {
        match self.words() {
            words if words.is_empty() => words,
            words => format!("judged{words}\n"),
        }
    }

    /// As JSON: a list, empty where every one is the default.
    pub(super) fn json(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(&self.0)
    }
}

fn of(policy: &Policy) -> String {
    let Policy { given, through, noise_factor } = policy;
    let given = given.map(|tolerance: Tolerance| {
        let nan = if tolerance.equal_nan { "" } else { ", NaN differs from NaN" };
        format!("{}{nan}", tolerance.terms())
    });
    let through = through.filter(|_| given.is_none()).map(|half| format!("that of {half}"));
    let noise =
        (*noise_factor != Policy::default().noise_factor).then(|| format!("noise up to {} times", few(*noise_factor)));
    given.into_iter().chain(through).chain(noise).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn what_is_not_the_default_is_told_each_once() {
        let default = Policy::default();
        assert_eq!(Brought::of([default, default]).words(), "");
        let given = Policy { given: Some(Tolerance { atol: 1e9, ..Tolerance::EXACT }), ..default };
        let half = Policy { through: Some(DType::F16), ..default };
        let words = Brought::of([default, given, half, given]).words();
        let half = format!("that of {}", DType::F16);
        assert_eq!(words, format!(" within the dump's own tolerance (atol 1e9; {half})"));
        let noise = Policy { noise_factor: 1e6, ..default };
        assert_eq!(Brought::of([noise]).words(), " within the dump's own tolerance (noise up to 1e6 times)");
        let many = (1..6).map(|n| Policy { noise_factor: 100. * f64::from(n), ..default });
        assert!(Brought::of(many).words().ends_with("; 2 others)"));
    }
}
