//! Programs that measure each peer in a process of its own, in turn, and print one line for each.

use std::{
    env,
    fmt::Write as _,
    process::{Command, Stdio},
};

/// The arguments of a program: `--name value` pairs, and what else there is.
pub struct Arguments {
    named: Vec<(String, String)>,
    pub rest: Vec<String>,
}

impl Arguments {
    /// # Panics
    ///
    /// When a name has no value.
    pub fn read() -> Arguments {
        let (mut named, mut rest) = (Vec::new(), Vec::new());
        let mut given = env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.strip_prefix("--") {
                Some(name) => {
                    let value = given.next().unwrap_or_else(|| panic!("--{name} wants a value"));
                    named.push((name.to_owned(), value));
                }
                None => rest.push(argument),
            }
        }
        Arguments { named, rest }
    }

    /// # Panics
    ///
    /// When the value is not a number.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.text(name).map_or(default, |value| {
            value
                .replace('_', "")
                .parse()
                .unwrap_or_else(|_| panic!("--{name} wants a number, not {value:?}"))
        })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        let found = self.named.iter().rev().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    /// These arguments again, for a child.
    pub fn again(&self) -> impl Iterator<Item = String> {
        self.named
            .iter()
            .flat_map(|(name, value)| [format!("--{name}"), value.clone()])
    }
}

/// A line of output: a name, and values with theirs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: String,
    pub values: Vec<(String, String)>,
}

impl Line {
    pub fn new(name: &str) -> Line {
        Line {
            name: name.to_owned(),
            values: Vec::new(),
        }
    }

    pub fn with(mut self, key: &str, value: impl ToString) -> Line {
        self.values.push((key.to_owned(), value.to_string()));
        self
    }

    /// A number, to a precision that is not more than the measurement's.
    pub fn with_number(self, key: &str, value: f64) -> Line {
        let text = shorten(value);
        self.with(key, text)
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.values.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.parse().ok()
    }

    pub fn parse(line: &str) -> Option<Line> {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let values = words
            .map(|word| {
                word.split_once('=')
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Line { name, values })
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.name.clone();
        for (key, value) in &self.values {
            write!(text, " {key}={value}")?;
        }
        f.write_str(&text)
    }
}

fn shorten(value: f64) -> String {
    let decimals = match value.abs() {
        at_least_100 if at_least_100 >= 100.0 => 0,
        at_least_10 if at_least_10 >= 10.0 => 1,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Runs this program again with `arguments`, and reads the line it prints.
///
/// # Panics
///
/// When the child fails.
pub fn child(arguments: impl IntoIterator<Item = String>) -> Line {
    let program = env::current_exe().expect("the program has a path");
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the program starts again");
    assert!(output.status.success(), "a child failed: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Line::parse(text.trim()).unwrap_or_else(|| panic!("a child printed {text:?}"))
}

/// Runs the peers in turn, each time in a new process, and prints the median of every number, a line for each
/// peer.
pub fn in_turn(arguments: &Arguments, peers: &[&str]) {
    in_turn_at(arguments, None, peers);
}

/// The same, at one kind of work, a further argument that has a name.
pub fn in_turn_at(arguments: &Arguments, work: Option<(&str, &str)>, peers: &[&str]) {
    let work = work.map(|(name, value)| [format!("--{name}"), value.to_owned()]);
    let rounds = arguments.number("rounds", 1);
    let mut lines = vec![Vec::new(); peers.len()];
    for _ in 0..rounds {
        for (peer, lines) in peers.iter().zip(&mut lines) {
            let given = [(*peer).to_owned()].into_iter().chain(arguments.again());
            lines.push(child(given.chain(work.iter().flatten().cloned())));
        }
    }
    for lines in lines {
        println!("{}", merge(&lines).with("rounds", rounds));
    }
}

/// One line with the median of each number.
fn merge(lines: &[Line]) -> Line {
    let first = &lines[0];
    let mut merged = Line::new(&first.name);
    for (key, text) in &first.values {
        let numbers: Option<Vec<f64>> = lines.iter().map(|line| line.number(key)).collect();
        merged = match numbers {
            Some(numbers) => merged.with_number(key, median(numbers)),
            None => merged.with(key, text),
        };
    }
    merged
}

/// # Panics
///
/// When there are no numbers.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        0 => (numbers[middle - 1] + numbers[middle]) / 2.0,
        _ => numbers[middle],
    }
}
