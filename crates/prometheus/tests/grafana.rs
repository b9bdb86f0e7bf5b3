//! grafana.json and grafana-alerts.json query only what is exported: the names, labels and label values of
//! each query are looked up in a scrape. Those of queues and leases on Redis are looked up by
//! tests/exported.rs of tickwheel-redis, which has some.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::Value;
use tickwheel::Wheel;
use tickwheel_prometheus::WheelCollector;

/// The series that are exported, by name; of each its labels, as `key="value"`.
type Series = BTreeMap<String, Vec<BTreeSet<String>>>;

/// Returns the series of a wheel with a label.
fn exported() -> Series {
    let wheel = Wheel::new();
    wheel.labelled("a");
    let mut registry = Registry::default();
    registry.register_collector(Box::new(WheelCollector::new(&wheel)));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();

    let mut series = Series::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series_name, _)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series_name.split_once('{').unwrap_or((series_name, ""));
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .map(str::to_owned)
            .collect();
        series.entry(name.to_owned()).or_default().push(labels);
    }
    series
}

/// Every query of a dashboard or an alert, wherever in the file it stands.
fn queries<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("expr" | "definition", Value::String(query)) => found.push(query),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| queries(value, found)),
        _ => {}
    }
}

fn is_in_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// Returns the parts of the query that name nothing that is exported.
fn unknown(query: &str, series: &Series) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut keys: BTreeSet<&str> = BTreeSet::new();
    for (start, _) in query.match_indices("tickwheel_") {
        let rest = &query[start..];
        let (name, rest) = rest.split_at(rest.find(|char| !is_in_word(char)).unwrap_or(rest.len()));
        let Some(series) = series.get(name) else {
            unknown.push(name.to_owned());
            continue;
        };
        let labels: BTreeSet<&str> = series.iter().flatten().map(String::as_str).collect();
        keys.extend(
            labels
                .iter()
                .filter_map(|label| label.split_once('=').map(|(key, _)| key)),
        );
        let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for matcher in matchers.into_iter().flat_map(|(matchers, _)| matchers.split(',')) {
            let (key, values) = matcher.split_once('=').unwrap();
            for value in values.trim_matches(['~', '"']).split('|') {
                let exists = if value.starts_with('$') {
                    labels.iter().any(|label| label.starts_with(&format!("{key}=")))
                } else {
                    labels.contains(format!("{key}=\"{value}\"").as_str())
                };
                if !exists {
                    unknown.push(format!("{name}{{{key}=\"{value}\"}}"));
                }
            }
        }
    }
    let grouped = query
        .split("by (")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'));
    let grouped = grouped.flat_map(|(labels, _)| labels.split(", "));
    unknown.extend(
        grouped
            .filter(|label| !keys.contains(label))
            .map(|label| format!("by ({label})")),
    );
    unknown
}

#[test]
fn queries_ask_for_what_is_exported() {
    let series = exported();
    for (file, expected) in [("grafana.json", 30), ("grafana-alerts.json", 3)] {
        // Where it runs, not where it was built: CI builds it in a folder that is new each time.
        let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
        let path = format!("{package}/{file}");
        let json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut found = Vec::new();
        queries(&json, &mut found);
        found.retain(|query| !query.contains("tickwheel_redis_"));
        assert!(found.len() >= expected, "{file} has only {} queries", found.len());
        for query in found {
            assert!(
                query.contains("tickwheel_"),
                "{file}: {query} asks nothing of a wheel"
            );
            let unknown = unknown(query, &series);
            assert!(
                unknown.is_empty(),
                "{file}: {query} asks for {unknown:?}; there are {series:#?}"
            );
        }
    }
}

#[test]
fn what_is_not_exported_is_found() {
    let series = exported();
    let faults = [
        ("rate(tickwheel_refused_total[5m])", "tickwheel_refused_total"),
        ("tickwheel_due{within=\"1d\"}", "tickwheel_due{within=\"1d\"}"),
        (
            "tickwheel_pending{label=~\"$label\"}",
            "tickwheel_pending{label=\"$label\"}",
        ),
        (
            "tickwheel_timeouts_headroom_ratio_bucket{le=\"0.15\"}",
            "tickwheel_timeouts_headroom_ratio_bucket{le=\"0.15\"}",
        ),
        (
            "tickwheel_lag_seconds_bucket{le=\"0.03\"}",
            "tickwheel_lag_seconds_bucket{le=\"0.03\"}",
        ),
        ("sum by (mode) (tickwheel_pending)", "by (mode)"),
    ];
    for (query, fault) in faults {
        assert_eq!(unknown(query, &series), [fault], "{query}");
    }
}
