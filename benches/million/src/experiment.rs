//! The experiment: calibration, then alternating rounds, each in processes of its own.

use std::{
    env,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{machine::cores, options::Options};

/// Of each version.
const ROUNDS: usize = 5;
/// The part of the machine's CPU that server and clients are to use together.
const LOAD: f64 = 0.5;
const WARM_UP: Duration = Duration::from_millis(700);

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Version {
    None,
    Wheel,
    Tokio,
}

impl Version {
    pub(crate) const ALL: [Version; 3] = [Version::None, Version::Wheel, Version::Tokio];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Version::None => "no timers",
            Version::Wheel => "tickwheel",
            Version::Tokio => "tokio::time",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|version| version.name() == name)
    }
}

/// What one round has measured.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) armed_in: f64,
    pub(crate) bytes: f64,
    /// Microseconds of the server's CPU.
    pub(crate) cpu_each: f64,
    /// The part of the machine's CPU that server and clients used.
    pub(crate) load: f64,
    pub(crate) answered: f64,
    /// Microseconds.
    pub(crate) late: Vec<u64>,
}

pub(crate) struct Figures {
    pub(crate) rate: u64,
    /// For each version, its rounds.
    pub(crate) rounds: [Vec<Round>; 3],
}

pub(crate) fn run(options: Options) -> io::Result<Figures> {
    let rate = calibrate(options)?;
    let mut rounds: [Vec<Round>; 3] = Default::default();
    for number in 1..=ROUNDS {
        // Each version comes first, in the middle and last.
        for place in 0..3 {
            let version = Version::ALL[(place + number) % 3];
            progress(&format!(
                "round {number} of {ROUNDS} at {rate} requests/s: {}",
                version.name()
            ));
            rounds[version as usize].push(round(options, version, rate, options.lasts())?);
        }
    }
    progress("");
    Ok(Figures { rate, rounds })
}

/// The rate at which the version without timers, with its clients, uses about half of the machine.
fn calibrate(options: Options) -> io::Result<u64> {
    let mut rate = 2_000 * cores() as u64;
    for _ in 0..4 {
        progress(&format!("calibrating: {rate} requests/s"));
        let round = round(options, Version::None, rate, Duration::from_secs(1))?;
        let change = (LOAD / round.load.max(0.01)).clamp(0.25, 6.0);
        rate = ((rate as f64 * change) as u64).max(100);
        if (0.9..1.1).contains(&change) {
            break;
        }
    }
    // Rounded, since it is not known better than that.
    Ok(rate.next_multiple_of(100))
}

fn round(options: Options, version: Version, rate: u64, lasts: Duration) -> io::Result<Round> {
    let (tick, timers) = (options.tick.to_string(), options.timers.to_string());
    let mut server = Peer::start(&["server", version.name(), &tick, &timers])?;
    let ready = server.line()?;
    let port = (field(&ready, 0)? as u16).to_string();
    let (rate, connections) = (rate.to_string(), options.connections.to_string());
    let mut client = Peer::start(&["client", &port, &rate, &connections])?;
    client.line()?;
    thread::sleep(WARM_UP);
    server.ask("begin")?;
    client.ask("begin")?;
    thread::sleep(lasts);
    let served = server.ask("end")?;
    let sent = client.ask("end")?;
    let (cpu, requests) = (field(&served, 0)?, field(&served, 1)?);
    let late = served.split_whitespace().skip(2);
    Ok(Round {
        armed_in: field(&ready, 1)? / 1e6,
        bytes: field(&ready, 2)? / options.timers as f64,
        cpu_each: cpu / 1e3 / requests.max(1.0),
        load: (cpu + field(&sent, 0)?) / lasts.as_nanos() as f64 / cores() as f64,
        answered: requests / field(&sent, 1)?.max(1.0),
        late: late.filter_map(|late| late.parse().ok()).collect(),
    })
}

fn field(line: &str, place: usize) -> io::Result<f64> {
    let field = line.split_whitespace().nth(place);
    field
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("a process said {line:?}")))
}

/// Another process of this program, which ends when it is dropped.
struct Peer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(arguments: &[&str]) -> io::Result<Peer> {
        let mut process = Command::new(env::current_exe()?)
            .arg("child")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(io::Error::other("a process without pipes"));
        };
        Ok(Peer {
            process,
            input,
            output: BufReader::new(output),
        })
    }

    fn ask(&mut self, question: &str) -> io::Result<String> {
        writeln!(self.input, "{question}")?;
        self.line()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other("a process ended too soon")),
            _ => Ok(line),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Shows where the experiment is, on one line of a terminal, or a line each.
fn progress(text: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    } else if !text.is_empty() {
        eprintln!("{text}");
    }
}
