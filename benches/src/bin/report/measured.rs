//! All measurements, as lines of `name key=value ...`.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tickwheel_benches::children::Line;

use crate::machine;

#[derive(Debug, Default)]
pub struct Measured {
    lines: Vec<Line>,
}

impl Measured {
    /// # Panics
    ///
    /// When a file cannot be read, or does not hold what it should.
    pub fn gather(programs: &Path) -> Measured {
        let text =
            fs::read_to_string(programs).unwrap_or_else(|error| panic!("{}: {error}", programs.display()));
        let mut lines = machine::lines().to_vec();
        lines.extend(Measured::parse(&text).lines);
        let mut estimates = Vec::new();
        visit(&criterion_home(), &mut estimates);
        estimates.sort_by_key(|line| format!("{line}"));
        lines.extend(estimates);
        Measured { lines }
    }

    pub fn parse(text: &str) -> Measured {
        Measured {
            lines: text.lines().filter_map(Line::parse).collect(),
        }
    }

    pub fn lines<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.name == name)
    }

    /// The value of `key` in the line with this name and these values.
    pub fn number(&self, name: &str, with: &[(&str, &str)], key: &str) -> Option<f64> {
        let matches = |line: &&Line| with.iter().all(|(key, value)| line.get(key) == Some(value));
        self.lines(name).find(matches)?.number(key)
    }

    /// Criterion's median, in nanoseconds for one operation.
    pub fn criterion(&self, group: &str, function: &str) -> Option<f64> {
        self.number("criterion", &[("group", group), ("bench", function)], "ns")
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

fn criterion_home() -> PathBuf {
    let folder = env::var_os("CRITERION_HOME").map(PathBuf::from);
    folder.unwrap_or_else(|| {
        let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Path::new(&target).join("criterion")
    })
}

/// Every estimate below `folder`.
fn visit(folder: &Path, lines: &mut Vec<Line>) {
    let Ok(inside) = fs::read_dir(folder) else { return };
    for entry in inside.flatten().filter(|entry| entry.path().is_dir()) {
        match entry.file_name() == "new" {
            true => lines.extend(estimate(&entry.path())),
            false => visit(&entry.path(), lines),
        }
    }
}

fn estimate(folder: &Path) -> Option<Line> {
    let read = |name: &str| -> Option<Value> {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        serde_json::from_str(&text).ok()
    };
    let (about, estimates) = (read("benchmark.json")?, read("estimates.json")?);
    let function = about["function_id"].as_str()?;
    let bench = match about["value_str"].as_str() {
        Some(value) => format!("{function}/{value}"),
        None => function.to_owned(),
    };
    let elements = about["throughput"]["Elements"].as_f64().unwrap_or(1.0);
    let median = &estimates["median"];
    let interval = &median["confidence_interval"];
    let line = Line::new("criterion")
        .with("group", about["group_id"].as_str()?)
        .with("bench", bench);
    Some(
        line.with_number("ns", median["point_estimate"].as_f64()? / elements)
            .with_number("low", interval["lower_bound"].as_f64()? / elements)
            .with_number("high", interval["upper_bound"].as_f64()? / elements),
    )
}
