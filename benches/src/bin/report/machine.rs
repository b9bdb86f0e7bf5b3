//! Facts about the machine, and the versions that were measured.

use std::{fs, process::Command};

use tickwheel_benches::{children::Line, process};

const PEERS: [&str; 11] = [
    "tokio",
    "tokio-util",
    "pingora-timeout",
    "kestrel-timer",
    "nexus-timer",
    "bitwheel",
    "hierarchical_hash_wheel_timer",
    "futures-timer",
    "async-io",
    "hyper",
    "criterion",
];

pub fn lines() -> [Line; 2] {
    let memory = first_number(&read("/proc/meminfo"), "MemTotal:") / (1 << 20) as f64;
    let machine = Line::new("machine")
        .with(
            "mode",
            std::env::var("BENCHES_MODE").unwrap_or_else(|_| "full".to_owned()),
        )
        .with(
            "cpu",
            word(field(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown")),
        )
        .with("cores", process::cores())
        .with("memory_gib", memory.round())
        .with("kernel", word(&read("/proc/sys/kernel/osrelease")))
        .with("rustc", word(&output("rustc", &["--version"])))
        .with(
            "commit",
            word(&output("git", &["rev-parse", "--short=10", "HEAD"])),
        )
        .with("date", word(&output("date", &["-u", "+%Y-%m-%d"])))
        .with(
            "load_before",
            word(read("/proc/loadavg").split(' ').next().unwrap_or_default()),
        );
    let lock = read("Cargo.lock");
    let versions = PEERS.iter().fold(Line::new("versions"), |line, peer| {
        let version = lock.split(&format!("name = \"{peer}\"\nversion = \"")).nth(1);
        line.with(
            peer,
            version
                .and_then(|rest| rest.split('"').next())
                .unwrap_or("unknown"),
        )
    });
    [machine, versions]
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value)
}

fn first_number(text: &str, name: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or_default()
}

/// Lines of output have no room for spaces.
fn word(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("_")
}
