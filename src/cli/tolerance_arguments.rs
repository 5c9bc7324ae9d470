//! A tolerance as the command line names it.

use crate::compare::Tolerance;

/// Its terms, for every subcommand that judges; what is not given is the default's.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct ToleranceArguments {
    /// Absolute tolerance
    #[arg(long, value_parser = term)]
    atol: Option<f64>,
    /// Tolerance relative to each reference element
    #[arg(long, value_parser = term)]
    rtol: Option<f64>,
    /// Tolerance relative to the largest reference element
    #[arg(long, value_parser = term)]
    scale: Option<f64>,
}

impl ToleranceArguments {
    /// Whether all terms were given: nothing is left of a default.
    pub(super) fn is_whole(&self) -> bool {
        self.atol.and(self.rtol).and(self.scale).is_some()
    }

    /// `default` but for what was given; None: nothing was.
    pub(super) fn over(&self, default: Tolerance) -> Option<Tolerance> {
        let Self { atol, rtol, scale } = *self;
        let given = Tolerance {
            atol: atol.unwrap_or(default.atol),
            rtol: rtol.unwrap_or(default.rtol),
            scale: scale.unwrap_or(default.scale),
            ..default
        };
        atol.or(rtol).or(scale).map(|_| given)
    }
}

/// A term of a tolerance, or a factor of one. Errors: no finite number that is at least 0.
pub(super) fn term(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.);
    number.ok_or_else(|| "expected a finite number that is at least 0".to_owned())
}
