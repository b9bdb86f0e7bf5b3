//! What an exporter reports of the connections.

use std::sync::Weak;

use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source};

use crate::{control::Control, stats::LimitStats};

/// The counts of a `ConnectionLimits`, for as long as that or one of its connections lives.
#[derive(Clone, Debug)]
pub(crate) struct LimitSource(pub(crate) Weak<Control>);

impl Source for LimitSource {
    fn exported(&self) -> Option<Vec<Exported>> {
        let control = self.0.upgrade()?;
        let server = control.settings().name.clone();
        Some(list(&server, &control.stats()))
    }

    fn identity(&self) -> Option<usize> {
        Some(self.0.as_ptr().addr())
    }
}

/// Returns the values, sorted by name.
fn list(server: &str, stats: &LimitStats) -> Vec<Exported> {
    let server = || ("server", server.to_owned());
    let ended = |limit: &str, count| {
        Exported::new(
            "tickwheel_connections_ended_total",
            "Connections that a limit has ended.",
            ExportedUnit::Count,
            ExportedKind::Counter,
            vec![server(), ("limit", limit.to_owned())],
            ExportedValue::Count(count),
        )
    };
    let open = Exported::new(
        "tickwheel_connections_open",
        "Connections that are open.",
        ExportedUnit::Count,
        ExportedKind::Gauge,
        vec![server()],
        ExportedValue::Count(stats.open),
    );
    vec![
        ended("body_progress", stats.body_progress),
        ended("grace", stats.grace),
        ended("header", stats.header),
        ended("idle", stats.idle),
        ended("lifetime", stats.lifetime),
        open,
    ]
}
