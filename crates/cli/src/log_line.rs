//! The format of a line of the node's log: time, level and module, the message, then the fields, the node's own first:
//!
//! `2026-11-22T10:00:00.000000Z  INFO onetrip_node::node: node started region=b node=2 listen=10.0.0.2:7000`

use std::fmt;

use onetrip_node::without_errno;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people
    #[default]
    Text,
    /// A JSON object
    Json,
}

/// From now on this process logs to standard error.  `RUST_LOG` chooses how much is logged; without it `level` does.
pub fn to_stderr(level: &str, format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(with_spans(filter)).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(false).event_format(LogLine).init(),
        // The event's fields are beside `message`, and the node's own in `span`.
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
}

/// Lets the node's span pass whatever the filter says, so that every line that is logged says which node it comes from.
fn with_spans(filter: EnvFilter) -> EnvFilter {
    let spans = format!("{}=error", onetrip_node::span::TARGET);
    filter.add_directive(spans.parse().expect("a target and a level"))
}

struct LogLine;

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let about = event.metadata();
        let mut text = String::new();
        let mut out = Writer::new(&mut text);
        SystemTime.format_time(&mut out)?;
        write!(out, " {:>5} {}: ", about.level(), about.target())?;
        let mut message = Only { message: true, visitor: DefaultVisitor::new(out.by_ref(), true) };
        event.record(&mut message);
        for span in ctx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                write!(out, " {fields}")?;
            }
        }
        let mut fields = Only { message: false, visitor: DefaultVisitor::new(out.by_ref(), false) };
        event.record(&mut fields);
        writeln!(line, "{}", without_errno(text))
    }
}

/// Shows only the message, or everything except the message.
struct Only<'a> {
    message: bool,
    visitor: DefaultVisitor<'a>,
}

impl Visit for Only<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if (field.name() == "message") == self.message {
            self.visitor.record_debug(field, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What a node logs under this filter, without the time.
    fn logged(filter: &str) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(with_spans(EnvFilter::new(filter)))
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(LogLine)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!(target: onetrip_node::span::TARGET, "node", region = %"b", node = %2);
            let _within = span.enter();
            let (index, why) = (17, "it is full");
            tracing::warn!(target: "onetrip_node::disk", %index, why, "the disk: {}", "no\x1b[31m space");
            tracing::info!(target: "onetrip_node::disk", "no fields");
        });
        let text = String::from_utf8(memory.0.lock().expect("no panic").clone()).expect("text");
        text.lines().map(|line| line.split_once(' ').expect("a time").1.to_owned() + "\n").collect()
    }

    #[test]
    fn a_line_says_whose_it_is_behind_the_message() {
        let warning =
            " WARN onetrip_node::disk: the disk: no\\x1b[31m space region=b node=2 index=17 why=\"it is full\"\n";
        let information = " INFO onetrip_node::disk: no fields region=b node=2\n";
        assert_eq!(logged("info"), format!("{warning}{information}"));
        for filter in ["warn", "onetrip_node::disk=warn", "error,onetrip_node::disk=warn"] {
            assert_eq!(logged(filter), warning, "{filter}");
        }
        assert_eq!(logged("off"), "");
    }
}
