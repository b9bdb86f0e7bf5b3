//! docs/grafana.json and docs/grafana-alerts.json query only what the feature `metrics` exports: the names, labels and label values of each
//! query are looked up in the output of Prometheus' exporter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde_json::Value;
use tickwheel::Wheel;

/// The series that are exported, by name; of each its labels, as `key="value"`.
type Series = BTreeMap<String, Vec<BTreeSet<String>>>;

/// What the exporter renders for a wheel with a labelled timeout, with the buckets that docs/guide.md tells to set.
async fn exported() -> Series {
    let tenths: Vec<f64> = (1..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full("tickwheel_timeouts_headroom_ratio".to_owned()),
            &tenths,
        )
        .unwrap()
        .set_buckets_for_metric(Matcher::Full("tickwheel_lag_seconds".to_owned()), &[0.001, 0.1])
        .unwrap()
        .build_recorder();
    let wheel = Wheel::new();
    let answer = tokio::time::sleep(Duration::from_millis(5));
    let answered = wheel.labelled("a").timeout(Duration::from_secs(1), answer).await;
    answered.unwrap();
    wheel.sleep(Duration::from_millis(20)).await; // the driver comes
    assert!(metrics::with_local_recorder(&recorder, || wheel
        .metrics_reporter()
        .report()));

    let mut series = Series::new();
    for line in recorder
        .handle()
        .render()
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
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

/// What of the query names nothing that is exported.
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
                let exists = match value.starts_with('$') {
                    true => labels.iter().any(|label| label.starts_with(&format!("{key}="))),
                    false => labels.contains(format!("{key}=\"{value}\"").as_str()),
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

#[tokio::test]
async fn queries_ask_for_what_is_exported() {
    let series = exported().await;
    for (file, expected) in [("grafana.json", 30), ("grafana-alerts.json", 3)] {
        // Where it runs, not where it was built: CI builds it in a folder that is new each time.
        let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
        let path = format!("{package}/../docs/{file}");
        let json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut found = Vec::new();
        queries(&json, &mut found);
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

#[tokio::test]
async fn what_is_not_exported_is_found() {
    let series = exported().await;
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
        ("sum by (mode) (tickwheel_pending)", "by (mode)"),
    ];
    for (query, fault) in faults {
        assert_eq!(unknown(query, &series), [fault], "{query}");
    }
}
