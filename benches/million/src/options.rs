//! The command line.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use crate::machine::{cores, room_for_connections};

#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) timers: usize,
    pub(crate) connections: usize,
    seconds: u64,
    pub(crate) output: Output,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) workers_svg: Option<PathBuf>,
    pub(crate) into: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Output {
    Terminal,
    Markdown,
    Json,
}

impl Options {
    pub(crate) const HELP: &str = "\
Measures what timers cost, on tokio::time and on tickwheel in turns, in about 40 seconds.

  --timers N        pending at once where the number matters (1000000); a tenth of them are keepalives
  --seconds N       how long to measure in all, about; fewer give wider spreads (40)
  --connections N   TCP connections of the server, on loopback (50 a core)
  --svg FILE        also draw the rows as a picture
  --workers-svg FILE    also draw what a timeout costs by number of workers, beside a larger machine
  --into FILE       also put the tables into a Markdown file, between the comments that name them; may be repeated
  --markdown        print Markdown tables
  --json            print all figures, those of each round included";
    const DEFAULT_SECONDS: u64 = 40;
    pub(crate) const DEFAULT_TOTAL: Duration = Duration::from_secs(Options::DEFAULT_SECONDS);
    const TIMERS: RangeInclusive<u64> = 100..=20_000_000;
    const SECONDS: RangeInclusive<u64> = 1..=3600;

    /// `None` when help is asked for.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let room = room_for_connections();
        let mut options = Options {
            timers: 1_000_000,
            connections: (50 * cores()).min(room as usize),
            seconds: Options::DEFAULT_SECONDS,
            output: Output::Terminal,
            svg: None,
            workers_svg: None,
            into: Vec::new(),
        };
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--timers" => options.timers = number(&name, arguments.next(), Options::TIMERS)? as usize,
                "--seconds" => options.seconds = number(&name, arguments.next(), Options::SECONDS)?,
                "--connections" => {
                    let why = format!("; the file limit leaves room for {room}: see `ulimit -n`");
                    let connections = number(&name, arguments.next(), 1..=room);
                    options.connections = connections.map_err(|mistake| mistake + &why)? as usize;
                }
                "--svg" => options.svg = Some(file(&name, arguments.next())?),
                "--workers-svg" => options.workers_svg = Some(file(&name, arguments.next())?),
                "--into" => options.into.push(file(&name, arguments.next())?),
                "--markdown" => options.output = Output::Markdown,
                "--json" => options.output = Output::Json,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("{name}: no such option\n\n{}", Options::HELP)),
            }
        }
        Ok(Some(options))
    }

    /// Scales a time that is meant for the default of `--seconds`.
    pub(crate) fn lasting(&self, by_default: Duration) -> Duration {
        by_default.mul_f64(self.seconds as f64 / Options::DEFAULT_SECONDS as f64)
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    pub(crate) fn keepalives(&self) -> usize {
        self.timers / 10
    }
}

fn number(name: &str, value: Option<String>, allowed: RangeInclusive<u64>) -> Result<u64, String> {
    let value = value.unwrap_or_default();
    match value.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => {
            let (least, most) = (allowed.start(), allowed.end());
            Err(format!(
                "{name} {value}: allowed is a whole number from {least} to {most}"
            ))
        }
    }
}

fn file(name: &str, value: Option<String>) -> Result<PathBuf, String> {
    value
        .map(PathBuf::from)
        .ok_or_else(|| format!("{name}: no file given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_option_is_read() {
        let line = "--timers 5000 --seconds 20 --connections 7 --svg a.svg --workers-svg d.svg --into b.md --into c.md --json";
        let options = parse(line).unwrap().unwrap();
        assert_eq!(
            (options.timers, options.keepalives(), options.connections),
            (5000, 500, 7)
        );
        assert_eq!(options.lasting(Duration::from_secs(8)), Duration::from_secs(4));
        assert_eq!(options.output, Output::Json);
        assert_eq!(options.svg, Some("a.svg".into()));
        assert_eq!(options.workers_svg, Some("d.svg".into()));
        assert_eq!(options.into, [PathBuf::from("b.md"), PathBuf::from("c.md")]);
    }

    #[test]
    fn a_mistake_says_what_is_allowed() {
        let mistake = parse("--seconds none").unwrap_err();
        assert_eq!(
            mistake,
            "--seconds none: allowed is a whole number from 1 to 3600"
        );
        assert!(parse("--timers").unwrap_err().contains("from 100 to 20000000"));
        assert!(parse("--svg").unwrap_err().contains("no file given"));
        assert!(parse("--tick 5").unwrap_err().contains("no such option"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
