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
    let asked = std::env::var("RUST_ORT_LOG").ok().and_then(|asked| asked.parse::<Targets>().ok());
    let wanted = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let _ = tracing_subscriber::registry().with(lines).with(wanted).try_init();
}
