//! What the program finds out: sections of rows, and the server.

use std::{io, thread, time::Duration};

use crate::{
    machine,
    machine::Watch,
    options::Options,
    progress::Progress,
    rows::{self, keepalives::Keepalives},
    server::{self, Server},
    statistics::{Spread, median},
};

/// From this share of the machine on, other programs disturb a measurement.
const DISTURBING: f64 = 0.1;

pub(crate) struct Figures {
    pub(crate) machine: String,
    pub(crate) sections: Vec<Section>,
    pub(crate) server: Server,
}

/// The rows that one experiment gives.
pub(crate) struct Section {
    /// The name of its table in a Markdown file.
    pub(crate) key: &'static str,
    pub(crate) title: String,
    /// What is done, in plain words.
    pub(crate) about: String,
    pub(crate) rows: Vec<Row>,
    /// The share of the machine that other programs used meanwhile.
    pub(crate) others: Option<f64>,
}

/// One comparison. Less is better in all of them.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// The figure of each round.
    pub(crate) tokio: Vec<f64>,
    pub(crate) wheel: Vec<f64>,
    /// Tokio's alternative timer, where that was measured: see [`turns`](crate::turns).
    pub(crate) alternative: Option<Vec<f64>>,
    /// On how many workers at once, in the rows that differ by that alone.
    pub(crate) workers: Option<usize>,
    /// How a sentence names what there is less of, in the rows that matter to a server.
    pub(crate) gain: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    Nanos,
    Micros,
    Millis,
    Bytes,
    PerSecond,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    WheelLess,
    TokioLess,
    NoDifference,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>, unit: Unit, [tokio, wheel]: [Vec<f64>; 2]) -> Row {
        Row {
            name: name.into(),
            unit,
            tokio,
            wheel,
            alternative: None,
            workers: None,
            gain: None,
        }
    }

    pub(crate) fn alternative(mut self, figures: Option<Vec<f64>>) -> Row {
        self.alternative = figures;
        self
    }

    pub(crate) fn on(mut self, workers: usize) -> Row {
        self.workers = Some(workers);
        self
    }

    pub(crate) fn gain(mut self, gain: &'static str) -> Row {
        self.gain = Some(gain);
        self
    }

    pub(crate) fn tokio(&self) -> f64 {
        median(&self.tokio)
    }

    pub(crate) fn wheel(&self) -> f64 {
        median(&self.wheel)
    }

    /// The median of the alternative timer, where that was measured.
    pub(crate) fn by_alternative(&self) -> Option<f64> {
        self.alternative.as_deref().map(median)
    }

    /// Tokio's figure relative to the wheel's, compared round by round: above 1, the wheel takes less.
    pub(crate) fn ratio(&self) -> Spread {
        let rounds = self.tokio.iter().zip(&self.wheel);
        Spread::of(rounds.map(|(tokio, wheel)| if tokio == wheel { 1.0 } else { tokio / wheel }))
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let ratio = self.ratio();
        if ratio.contains(1.0) {
            Verdict::NoDifference
        } else if ratio.median > 1.0 {
            Verdict::WheelLess
        } else {
            Verdict::TokioLess
        }
    }
}

impl Section {
    pub(crate) fn is_disturbed(&self) -> bool {
        self.others.is_some_and(|others| others >= DISTURBING)
    }
}

impl Figures {
    pub(crate) fn have_alternative(&self) -> bool {
        let mut rows = self.all_sections().flat_map(|section| &section.rows);
        rows.any(|row| row.alternative.is_some())
    }

    /// The sections, that of the server last.
    pub(crate) fn all_sections(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().chain([&self.server.section])
    }
}

/// Before anything is measured, so that nobody waits in vain. Whatever disturbs a row later is told with it.
fn warn_if_busy() -> io::Result<()> {
    let watch = Watch::start()?;
    thread::sleep(Duration::from_millis(300));
    if let Some(others) = watch
        .others(Duration::ZERO)?
        .filter(|others| *others >= DISTURBING)
    {
        let others = 100.0 * others;
        eprintln!(
            "Other programs use {others:.0} % of this machine. The report will say which rows they have disturbed."
        );
    }
    Ok(())
}

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Figures> {
    warn_if_busy()?;
    // They wait until they are due while the others are measured, if these do not take too long for that.
    let keepalives = if options.total() <= Options::DEFAULT_TOTAL {
        Some(Keepalives::start(options)?)
    } else {
        None
    };
    let experiments = [
        rows::timeouts::measure,
        rows::push_back::measure,
        rows::memory::measure,
        rows::blocked_worker::measure,
        rows::thread_per_core::measure,
        #[cfg(all(feature = "precise", target_os = "linux"))]
        rows::precise::measure,
    ];
    let mut sections = Vec::new();
    for experiment in experiments {
        let watch = Watch::start()?;
        let mut section = experiment(options, progress)?;
        section.others = watch.others(Duration::ZERO)?;
        sections.push(section);
    }
    let keepalives = keepalives.map_or_else(|| Keepalives::start(options), Ok)?;
    sections.push(rows::keepalives::measure(options, progress, keepalives)?);
    let watch = Watch::start()?;
    let mut server = server::measure(options, progress)?;
    server.section.others = watch.others(Duration::ZERO)?;
    Ok(Figures {
        machine: machine::description(),
        sections,
        server,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(tokio: &[f64], wheel: &[f64]) -> Row {
        Row::new("a row", Unit::Nanos, [tokio.to_vec(), wheel.to_vec()])
    }

    #[test]
    fn the_ratio_is_that_within_a_round() {
        // The machine slows down from round to round: the figures differ by four times, the ratio does not.
        let row = row(
            &[100.0, 200.0, 400.0, 300.0, 150.0],
            &[50.0, 100.0, 200.0, 150.0, 75.0],
        );
        assert_eq!(
            row.ratio(),
            Spread {
                low: 2.0,
                median: 2.0,
                high: 2.0
            }
        );
        assert_eq!((row.tokio(), row.wheel()), (200.0, 100.0));
        assert_eq!(row.verdict(), Verdict::WheelLess);
    }

    #[test]
    fn a_spread_that_crosses_one_is_no_difference() {
        let verdict = |tokio: &[f64], wheel: &[f64]| row(tokio, wheel).verdict();
        assert_eq!(verdict(&[2.0, 2.0, 2.0], &[1.0, 1.0, 2.1]), Verdict::NoDifference);
        assert_eq!(verdict(&[2.0, 2.0, 2.0], &[3.0, 2.1, 9.0]), Verdict::TokioLess);
        assert_eq!(verdict(&[2.0, 2.0, 2.0], &[1.0, 1.9, 1.5]), Verdict::WheelLess);
        assert_eq!(verdict(&[2.0], &[2.0]), Verdict::NoDifference);
        assert_eq!(verdict(&[0.0], &[0.0]), Verdict::NoDifference);
        assert_eq!(verdict(&[2.0], &[0.0]), Verdict::WheelLess);
    }

    #[test]
    fn a_tenth_of_the_machine_disturbs() {
        let mut section = Section {
            key: "",
            title: String::new(),
            about: String::new(),
            rows: Vec::new(),
            others: None,
        };
        assert!(!section.is_disturbed());
        section.others = Some(0.05);
        assert!(!section.is_disturbed());
        section.others = Some(0.1);
        assert!(section.is_disturbed());
    }
}
