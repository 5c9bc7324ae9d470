//! What is logged, and where.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Has the events that RUST_ORT_LOG asks for written, a line each: a level, or `target=level`, or several of them with
/// commas between; `info` where it is not set or is none of these. A log that was set before stays.
pub fn start<W>(writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let asked = std::env::var("RUST_ORT_LOG").ok().and_then(|asked| wanted(&asked));
    let wanted = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let _ = tracing_subscriber::registry().with(lines).with(wanted).try_init();
}

/// None of what has another form.
fn wanted(asked: &str) -> Option<Targets> {
    // A word alone that is no level would be a target, and all others silent.
    let is_known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    asked.split(',').all(|part| !part.is_empty() && is_known(part)).then(|| asked.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_silences_nothing() {
        for asked in ["", "inof", "warning", "info,", "rust_ort=loud", "rust_ort"] {
            assert_eq!(wanted(asked), None, "{asked}");
        }
        for asked in ["debug", "WARN", "off", "rust_ort::daemon=debug", "info,rust_ort=trace"] {
            assert!(wanted(asked).is_some(), "{asked}");
        }
    }
}
