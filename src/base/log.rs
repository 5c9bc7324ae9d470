//! What is logged, and where.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{self, FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::limits;
use super::sync::lock;

/// Has the events that RUST_ORT_LOG asks for written, a line each: a level, or `target=level`, or several of them with
/// commas between; `info` where it is not set or is none of these. Of a warning that comes again and again so many are
/// written as [`limits::WARNINGS`] says. A log that was set before stays.
pub fn start<W>(writer: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let asked = std::env::var("RUST_ORT_LOG").ok().and_then(|asked| wanted(&asked));
    let wanted = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = fmt::layer().with_writer(writer).with_ansi(false).event_format(Limited::by(Instant::now));
    let _ = tracing_subscriber::registry().with(lines).with(wanted).try_init();
}

/// Lines as they are, but for warnings that come too often: these are counted, and the count is a line of its own, before
/// the next line after their time.
struct Limited {
    lines: format::Format,
    now: fn() -> Instant,
    warned: Mutex<HashMap<Identifier, Warned>>,
}

/// Of one place in the sources.
struct Warned {
    place: &'static Metadata<'static>,
    since: Instant,
    n: u32,
}

impl Warned {
    fn left_out(&self) -> u32 {
        self.n.saturating_sub(limits::WARNINGS)
    }
}

impl Limited {
    fn by(now: fn() -> Instant) -> Self {
        Self { lines: format::Format::default(), now, warned: Mutex::default() }
    }

    /// Whether the event is to be written, and those whose time is over with something left out.
    fn count(&self, event: &Metadata<'static>) -> (bool, Vec<Warned>) {
        let (mut warned, now) = (lock(&self.warned), (self.now)());
        let is_over = |_: &Identifier, warned: &mut Warned| now - warned.since >= limits::WARNINGS_WITHIN;
        let over: Vec<Warned> = warned.extract_if(is_over).map(|(_, over)| over).collect();
        let mut written = true;
        if *event.level() == Level::WARN {
            let fresh = || Warned { place: event.callsite().0.metadata(), since: now, n: 0 };
            let known = warned.entry(event.callsite()).or_insert_with(fresh);
            known.n = known.n.saturating_add(1);
            written = known.left_out() == 0;
        }
        let mut over: Vec<Warned> = over.into_iter().filter(|over| over.left_out() > 0).collect();
        over.sort_by_key(|over| (over.place.file(), over.place.line()));
        (written, over)
    }
}

impl<S, N> FormatEvent<S, N> for Limited
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, at: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let (written, over) = self.count(event.metadata());
        for warned in over {
            SystemTime.format_time(&mut to)?;
            let (place, n, within_s) = (warned.place, warned.left_out(), limits::WARNINGS_WITHIN.as_secs());
            let (file, line) = (place.file().unwrap_or_default(), place.line().unwrap_or_default());
            let target = place.target();
            writeln!(to, "  WARN {target}: {n} more warnings of {file}:{line} left out, of {within_s} s")?;
        }
        if written { self.lines.format_event(at, to, event) } else { Ok(()) }
    }
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
    use std::cell::Cell;
    use std::io::Write;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// What is written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// In a test's own thread.
    fn later() -> Instant {
        thread_local! { static BEGAN: Instant = Instant::now(); }
        BEGAN.with(|began| *began) + LATER.get()
    }

    thread_local! { static LATER: Cell<Duration> = const { Cell::new(Duration::ZERO) }; }

    #[test]
    fn a_warning_that_comes_again_and_again_is_counted_and_others_are_written() {
        let written = Written::default();
        let writer = written.clone();
        let lines = fmt::layer().with_writer(move || writer.clone()).with_ansi(false).event_format(Limited::by(later));
        let again = |n: u32| (0..n).for_each(|_| tracing::warn!("again"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            again(limits::WARNINGS + 7);
            tracing::warn!("another");
            (0..limits::WARNINGS + 1).for_each(|_| tracing::error!("lost"));
            LATER.set(limits::WARNINGS_WITHIN);
            tracing::info!("later");
            again(1);
        });
        let text = String::from_utf8(lock(&written.0).clone()).unwrap();
        let n = |what: &str| text.lines().filter(|line| line.ends_with(what)).count();
        assert_eq!([n(": again"), n(": another"), n(": lost")], [21, 1, 21], "{text}");
        let rest: Vec<&str> = text.lines().skip_while(|line| !line.ends_with(": lost")).skip(21).collect();
        assert_eq!(rest.len(), 3, "{text}");
        assert!(rest[0].contains(" WARN rust_ort::base::log::tests: 7 more warnings of src/base/log.rs:"), "{text}");
        assert!(rest[1].ends_with(": later") && rest[2].ends_with(": again"), "{text}");
    }

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
