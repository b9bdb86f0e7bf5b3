//! The command line.

use std::{ops::RangeInclusive, time::Duration};

use crate::machine::room_for_connections;

#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) connections: usize,
    pub(crate) timers: usize,
    pub(crate) seconds: u64,
    pub(crate) tick: u64,
    pub(crate) json: bool,
}

impl Options {
    pub(crate) const HELP: &str = "\
Measures what a server's timers cost: without timers, on tickwheel, and on tokio::time, in turn.

  --connections N   TCP connections on loopback (2000, or what the file limit allows)
  --timers N        further idle deadlines that the server holds (1000000)
  --seconds N       how long each of the 15 rounds is measured (2)
  --tick N          the wheel's tick, in milliseconds (1)
  --json            print the figures as JSON";
    const TIMERS: RangeInclusive<u64> = 1..=20_000_000;
    const SECONDS: RangeInclusive<u64> = 1..=600;
    const TICK: RangeInclusive<u64> = 1..=1000;

    /// `None` when help is asked for.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let room = room_for_connections();
        let mut options = Options {
            connections: room.min(2000) as usize,
            timers: 1_000_000,
            seconds: 2,
            tick: 1,
            json: false,
        };
        while let Some(name) = arguments.next() {
            let mut number = |allowed| number(&name, arguments.next(), allowed);
            match name.as_str() {
                "--connections" => {
                    let why = format!("; the file limit leaves room for {room}: see `ulimit -n`");
                    options.connections = number(1..=room).map_err(|mistake| mistake + &why)? as usize;
                }
                "--timers" => options.timers = number(Options::TIMERS)? as usize,
                "--seconds" => options.seconds = number(Options::SECONDS)?,
                "--tick" => options.tick = number(Options::TICK)?,
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(None),
                _ => {
                    return Err(format!(
                        "{name}: no such option; allowed are --connections, --timers, --seconds, --tick and --json"
                    ));
                }
            }
        }
        Ok(Some(options))
    }

    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn number(name: &str, value: Option<String>, allowed: RangeInclusive<u64>) -> Result<u64, String> {
    let (least, most) = (allowed.start(), allowed.end());
    let Some(value) = value else {
        return Err(format!(
            "{name}: no value given; allowed is a whole number from {least} to {most}"
        ));
    };
    match value.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => Err(format!(
            "{name} {value}: allowed is a whole number from {least} to {most}"
        )),
    }
}
