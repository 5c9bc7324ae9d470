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
    let level = |text: &str| if text.is_empty() { None } else { text.parse::<LevelFilter>().ok() };
    let is_target = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c)) && !text.is_empty();
    let mut wanted = Targets::new();
    for part in asked.split(',').map(str::trim) {
        wanted = match part.split_once('=') {
            None => wanted.with_default(level(part)?),
            // Another target would be nobody's, and all others silent.
            Some((target, of)) if is_target(target) => wanted.with_target(target, level(of)?),
            Some(_) => return None,
        };
    }
    Some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_silences_nothing() {
        for asked in ["", "inof", "warning", "info,", "rust_ort=loud", "rust_ort", "rust_ort[call]=debug", "rust_ort="]
        {
            assert_eq!(wanted(asked), None, "{asked}");
        }
        for asked in ["debug", "WARN", "off", "rust_ort::daemon=debug", "info, rust_ort=trace"] {
            assert!(wanted(asked).is_some(), "{asked}");
        }
    }
}
