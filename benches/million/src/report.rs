//! The table and the JSON.

use crate::{
    experiment::{Figures, Round, Version},
    machine::{cores, grouped},
    options::Options,
    spread::Spread,
};

/// Below this, pages and what else the process does outweigh the timers.
const ENOUGH_TO_WEIGH: usize = 100_000;

/// The figures of a version with timers.
struct Timers {
    cpu: Spread,
    part: Spread,
    late: [u64; 3],
    bytes: Spread,
    armed_in: Spread,
}

impl Timers {
    fn of(figures: &Figures, version: Version) -> Timers {
        let (rounds, bare) = (
            &figures.rounds[version as usize],
            &figures.rounds[Version::None as usize],
        );
        let over = |rounds: &[Round], figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure));
        let mut late: Vec<_> = rounds.iter().flat_map(|round| &round.late).copied().collect();
        late.sort_unstable();
        let quantile = |part: f64| {
            let place = (late.len() as f64 * part) as usize;
            late.get(place.min(late.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0)
        };
        Timers {
            cpu: over(rounds, |round| round.cpu_each),
            part: Spread::of(
                rounds
                    .iter()
                    .zip(bare)
                    .map(|(timers, bare)| timers.cpu_each - bare.cpu_each),
            ),
            late: [quantile(0.5), quantile(0.99), quantile(1.0)],
            bytes: over(rounds, |round| round.bytes),
            armed_in: over(rounds, |round| round.armed_in),
        }
    }

    fn late(&self) -> String {
        let [p50, p99, max] = self.late.map(|micros| micros as f64 / 1e3);
        format!("{p50:.2} / {p99:.2} / {max:.2}")
    }

    fn json(&self, options: &Options) -> String {
        let spread = |spread: &Spread| {
            let Spread { median, least, most } = spread;
            format!(r#"{{"median":{median:.3},"min":{least:.3},"max":{most:.3}}}"#)
        };
        let [p50, p99, max] = self.late;
        let bytes = if options.timers < ENOUGH_TO_WEIGH {
            "null".to_owned()
        } else {
            spread(&self.bytes)
        };
        format!(
            r#"{{"cpu_us_per_request":{},"timers_us_per_request":{},"late_us":{{"p50":{p50},"p99":{p99},"max":{max}}},"bytes_per_timer":{bytes},"armed_ms":{}}}"#,
            spread(&self.cpu),
            spread(&self.part),
            spread(&self.armed_in),
        )
    }
}

pub(crate) fn print(options: &Options, figures: &Figures) {
    let rounds = &figures.rounds;
    let bare = Spread::of(rounds[0].iter().map(|round| round.cpu_each));
    let load = Spread::of(rounds.iter().flatten().map(|round| round.load * 100.0));
    let answered = Spread::of(rounds.iter().flatten().map(|round| round.answered * 100.0));
    let (wheel, tokio) = (
        Timers::of(figures, Version::Wheel),
        Timers::of(figures, Version::Tokio),
    );
    if options.json {
        println!(
            r#"{{"cores":{},"connections":{},"timers":{},"seconds":{},"tick_ms":{},"requests_per_second":{},"load_percent":{:.1},"answered_percent":{:.2},"no_timers_us_per_request":{:.3},"tickwheel":{},"tokio":{}}}"#,
            cores(),
            options.connections,
            options.timers,
            options.seconds,
            options.tick,
            figures.rate,
            load.median,
            answered.median,
            bare.median,
            wheel.json(options),
            tokio.json(options),
        );
        return;
    }
    println!(
        "{} requests/s on {} connections, {} held deadlines, {} cores {:.0} % busy, {:.1} % answered; median (min .. max) of {} rounds\n",
        grouped(figures.rate),
        grouped(options.connections as u64),
        grouped(options.timers as u64),
        cores(),
        load.median,
        answered.least,
        rounds[0].len(),
    );
    let row = |name: &str, [none, wheel, tokio]: [String; 3]| {
        println!("{name:<38}{none:>22}{wheel:>24}{tokio:>24}");
    };
    row("", Version::ALL.map(|version| version.name().to_owned()));
    let both = |name: &str, none: String, figure: &dyn Fn(&Timers) -> String| {
        row(name, [none, figure(&wheel), figure(&tokio)]);
    };
    both("server CPU, µs a request", bare.shown(2), &|timers| {
        timers.cpu.shown(2)
    });
    both("  of it the timers", String::new(), &|timers| {
        timers.part.shown(2)
    });
    both("lateness, ms: p50 / p99 / max", String::new(), &Timers::late);
    both("resident bytes a timer", String::new(), &|timers| {
        if options.timers < ENOUGH_TO_WEIGH {
            "too few to tell".to_owned()
        } else {
            timers.bytes.shown(0)
        }
    });
    both("held deadlines armed in, ms", String::new(), &|timers| {
        timers.armed_in.shown(0)
    });
    if wheel.part.overlaps(&tokio.part) {
        println!(
            "\nThe ranges of the timers' parts overlap, so this run does not tell which of the two takes less."
        );
    }
    if answered.least < 98.0 {
        println!(
            "\nThe server fell behind its load in a round: the machine is busy with something else, and the figures say little."
        );
    }
}
