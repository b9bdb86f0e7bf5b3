//! The figures, as tables for people, Markdown, JSON and a picture.

use std::{fs, io};

use crate::{
    figures::Figures,
    options::{Options, Output},
};

mod json;
mod markdown;
mod svg;
mod terminal;
pub(crate) mod text;
mod workers;

pub(crate) fn write(options: &Options, figures: &Figures) -> io::Result<()> {
    match options.output {
        Output::Terminal => print!("{}", terminal::page(figures)),
        Output::Markdown => print!("{}", markdown::page(figures)),
        Output::Json => println!("{}", json::page(figures)),
    }
    if let Some(file) = &options.svg {
        fs::write(file, svg::picture(figures))?;
    }
    if let Some(file) = &options.workers_svg {
        fs::write(file, workers::picture(figures))?;
    }
    for file in &options.into {
        let text = fs::read_to_string(file)?;
        let text = markdown::replace_blocks(&text, figures).map_err(io::Error::other)?;
        fs::write(file, text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{
        figures::{Figures, Row, Section, Unit},
        server::{Part, Server},
        statistics::Spread,
    };

    /// A section of each kind, with a row for each verdict.
    pub(super) fn figures() -> Figures {
        let rounds = |values: [f64; 3]| values.to_vec();
        let section = |key, title: &str, rows| Section {
            key,
            title: title.to_owned(),
            about: "It is done like this.".to_owned(),
            rows,
            others: Some(0.01),
        };
        let timeouts = Row::new(
            "all workers",
            Unit::Nanos,
            [rounds([500.0, 520.0, 540.0]), rounds([50.0, 52.0, 60.0])],
        );
        let dropping = Row::new(
            "dropping <all>",
            Unit::Millis,
            [rounds([40.0, 40.0, 40.0]), rounds([80.0, 80.0, 80.0])],
        );
        let late = Row::new(
            "half",
            Unit::Millis,
            [rounds([1.1, 1.2, 1.1]), rounds([1.2, 1.1, 1.1])],
        );
        let request = Row::new(
            "CPU of a request",
            Unit::Micros,
            [rounds([10.3, 10.4, 10.2]), rounds([10.1, 10.2, 10.0])],
        );
        let part = |micros, median| Part {
            micros,
            share: Spread {
                low: median - 0.5,
                median,
                high: median + 0.5,
            },
        };
        let first = section(
            "timeouts",
            "Timeouts",
            vec![timeouts.gain("timeouts everywhere"), dropping],
        );
        let mut second = section("lateness", "Lateness", vec![late]);
        second.others = Some(0.4);
        Figures {
            machine: "2 cores of a test".to_owned(),
            sections: vec![first, second],
            server: Server {
                section: section("server", "A server", vec![request]),
                kernel: 8.0,
                program: 2.0,
                tokio: part(0.28, 2.8),
                wheel: part(0.11, 1.1),
                requests_per_second: 100_000.0,
            },
        }
    }
}
