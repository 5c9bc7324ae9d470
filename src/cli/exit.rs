//! How a subcommand ends.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use crate::compare::Summary;
use crate::dump::Damage;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done; all match.
    Success = 0,
    /// Something differs.
    Mismatch = 1,
    /// An error.
    Error = 2,
    /// Nothing was compared, or something that could have been was left out. Where there is nothing to compare, whoever
    /// looks, as in memory that nobody wrote, nothing is left out.
    NothingCompared = 3,
    /// A file of a dump is not what was written: what it says is neither right nor wrong.
    Damaged = 4,
}

impl Exit {
    /// That of a process that ended with this code; None: with none of ours.
    pub(super) fn of_code(code: i32) -> Option<Self> {
        let all = [Exit::Success, Exit::Mismatch, Exit::Error, Exit::NothingCompared, Exit::Damaged];
        all.into_iter().find(|exit| i32::from(*exit as u8) == code)
    }

    /// Of what kept a subcommand from its work.
    pub(super) fn of(failure: &Failure) -> Self {
        if Damage::of(failure.as_ref()).is_some() { Exit::Damaged } else { Exit::Error }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

impl From<Summary> for Exit {
    fn from(total: Summary) -> Self {
        match total.exit_code() {
            0 => Exit::Success,
            1 => Exit::Mismatch,
            2 => Exit::Error,
            _ => Exit::NothingCompared,
        }
    }
}

/// What keeps a subcommand from doing its work.
pub(super) type Failure = Box<dyn Error>;

/// The error with its place before it, unless it is damage, which has one.
pub(super) fn at<E: Error + 'static>(place: &Path) -> impl Fn(E) -> Failure {
    move |error| match Damage::of(&error) {
        Some(damage) => Box::new(damage.clone()),
        None => {
            let (place, text) = (place.display().to_string(), error.to_string());
            if text.contains(&place) { text.into() } else { format!("{place}: {text}").into() }
        }
    }
}

/// What a subcommand returns: failures are printed by the caller, once.
pub(super) type Outcome = Result<Exit, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_without_counterpart_is_no_pass() {
        for ([matched, mismatch, not_compared, failed], expected) in [
            ([0, 0, 0, 0], Exit::NothingCompared),
            ([1, 0, 0, 0], Exit::Success),
            ([1, 0, 1, 0], Exit::NothingCompared),
            ([1, 1, 1, 0], Exit::Mismatch),
            ([1, 1, 1, 1], Exit::Error),
        ] {
            assert_eq!(Exit::from(Summary { matched, mismatch, not_compared, failed, ..Summary::default() }), expected);
        }
    }
}
