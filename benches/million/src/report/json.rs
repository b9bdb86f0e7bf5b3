//! For programs, and to compare runs: all figures of all rounds.

use serde_json::{Value, json};

use super::text::{expectation, trust};
use crate::{
    figures::{Figures, Row, Section, Unit, Verdict},
    server::Part,
    statistics::Spread,
};

pub(super) fn page(figures: &Figures) -> Value {
    let server = &figures.server;
    json!({
        "machine": figures.machine,
        "sections": figures.all_sections().map(section).collect::<Vec<_>>(),
        "server": {
            "requests_per_second": server.requests_per_second,
            "kernel_micros": server.kernel,
            "program_micros": server.program,
            "tokio": part(server.tokio),
            "wheel": part(server.wheel),
        },
        "expectation": expectation(figures),
        "trust": trust(figures),
    })
}

fn section(section: &Section) -> Value {
    json!({
        "key": section.key,
        "title": section.title,
        "about": section.about,
        "used_by_others": section.others,
        "disturbed": section.is_disturbed(),
        "rows": section.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let unit = match row.unit {
        Unit::Nanos => "ns",
        Unit::Micros => "us",
        Unit::Millis => "ms",
        Unit::Bytes => "bytes",
        Unit::PerSecond => "per second",
    };
    let verdict = match row.verdict() {
        Verdict::WheelLess => "wheel takes less",
        Verdict::TokioLess => "tokio takes less",
        Verdict::NoDifference => "no difference",
    };
    json!({
        "name": row.name,
        "unit": unit,
        "tokio": { "median": row.tokio(), "rounds": row.tokio },
        "alternative": row.alternative.as_ref().map(|rounds| json!({ "median": row.by_alternative(), "rounds": rounds })),
        "wheel": { "median": row.wheel(), "rounds": row.wheel },
        "ratio": spread(row.ratio()),
        "verdict": verdict,
    })
}

fn part(part: Part) -> Value {
    json!({ "timers_micros": part.micros, "timers_percent": spread(part.share) })
}

fn spread(spread: Spread) -> Value {
    json!({ "low": spread.low, "median": spread.median, "high": spread.high })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};

    #[test]
    fn it_is_json_with_every_round() {
        let text = page(&figures()).to_string();
        let page: Value = serde_json::from_str(&text).unwrap();
        let row = &page["sections"][0]["rows"][0];
        assert_eq!(row["tokio"]["rounds"], json!([500.0, 520.0, 540.0]));
        assert_eq!(row["wheel"]["median"], 52.0);
        assert_eq!(row["ratio"]["high"], 10.0);
        assert_eq!(row["verdict"], "wheel takes less");
        assert_eq!(page["sections"][1]["rows"][0]["verdict"], "no difference");
        assert_eq!(page["sections"][1]["disturbed"], true);
        assert_eq!(page["sections"][2]["key"], "server");
        assert_eq!(page["server"]["tokio"]["timers_percent"]["median"], 2.8);
    }
}
