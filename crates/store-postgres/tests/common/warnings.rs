//! What the store warned of.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Begins to keep warnings, of all tests of this program.
pub fn keep_warnings() {
    static BEGUN: OnceLock<()> = OnceLock::new();
    BEGUN.get_or_init(|| tracing::subscriber::set_global_default(Keeper).expect("nobody else listens"));
}

/// Those that have this in them.
pub fn warnings_with(part: &str) -> Vec<String> {
    let all = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|warning| warning.contains(part)).cloned().collect()
}

struct Keeper;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("written");
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= Level::WARN && of.target().starts_with("windlass_store_postgres")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
