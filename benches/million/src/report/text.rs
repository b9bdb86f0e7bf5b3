//! Figures and sentences in words, which all kinds of output share.

use crate::{
    figures::{Figures, Row, Section, Unit, Verdict},
    server::Server,
    statistics::Spread,
};

/// Below this, a change of a server's CPU time is nothing that anybody sees.
const VISIBLE: f64 = 3.0;

/// Three digits, in groups: `0.534`, `12.3`, `1,040`.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        "∞".to_owned()
    } else if value.abs() >= 99.95 {
        grouped(value)
    } else if value.abs() >= 9.995 {
        format!("{value:.1}")
    } else if value.abs() >= 0.9995 || value == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// Whole, with a comma after each thousand.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    if value < 0.0 {
        grouped.push('-');
    }
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A row's figure with its unit, and in clock readings where its section tells them.
pub(crate) fn value(section: &Section, row: &Row, value: f64) -> String {
    let text = figure(value);
    match (row.unit, section.clock_reading) {
        (Unit::Nanos, Some(reading)) => format!("{text} ns = {} readings", figure(value / reading)),
        (Unit::Nanos, None) => format!("{text} ns"),
        (Unit::Micros, _) => format!("{text} µs"),
        (Unit::Millis, _) => format!("{text} ms"),
        (Unit::Bytes, _) => format!("{text} bytes"),
        (Unit::PerSecond, _) => format!("{text} per second"),
    }
}

/// Tokio's figure relative to the wheel's, or that there is no difference, with the spread over the rounds.
pub(crate) fn ratio(row: &Row) -> String {
    let Spread { low, median, high } = row.ratio();
    let spread = format!("({} to {})", times(low), times(high));
    match row.verdict() {
        Verdict::NoDifference => format!("no difference {spread}"),
        Verdict::WheelLess | Verdict::TokioLess => format!("{}x {spread}", times(median)),
    }
}

/// With more digits the nearer it is to 1.
fn times(ratio: f64) -> String {
    if !ratio.is_finite() {
        "∞".to_owned()
    } else if ratio >= 99.5 {
        grouped(ratio)
    } else if ratio >= 9.95 {
        format!("{ratio:.0}")
    } else if ratio >= 1.25 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.2}")
    }
}

/// What the columns are, once for all tables.
pub(crate) const LEGEND: &str = "The ratio is Tokio's figure relative to the wheel's: above 1, the wheel takes less. It is the median of the \
    ratios within a round, and in brackets is the range in which it lies with a confidence of 93 % or more. Where that range contains 1, \
    the row says \"no difference\".";

/// A share in per cent with its range.
pub(crate) fn share(share: Spread) -> String {
    format!("{:.1} % ({:.1} to {:.1})", share.median, share.low, share.high)
}

/// What a server is to expect.
pub(crate) fn expectation(figures: &Figures) -> String {
    let Server {
        tokio,
        wheel,
        section,
        ..
    } = &figures.server;
    let (tokio, wheel) = (tokio.share, wheel.share);
    let shares = format!(
        "Timers take {:.1} % of this server's CPU with Tokio's and {:.1} % with the wheel",
        tokio.median.max(0.0),
        wheel.median.max(0.0)
    );
    let effect = match section.rows[0].verdict() {
        Verdict::NoDifference => {
            "this run cannot tell the two apart, so it will not get faster in a way that you can see"
        }
        Verdict::TokioLess => "on this machine it is better off with Tokio's",
        Verdict::WheelLess if tokio.median - wheel.median < VISIBLE => {
            "it will not get faster in a way that you can see"
        }
        Verdict::WheelLess => "that is what its CPU time falls by",
    };
    let gains = gains(figures);
    if gains.is_empty() {
        format!("{shares}: {effect}, and no row above says that you gain anything else.")
    } else {
        format!(
            "{shares}: {effect}. What you gain is in the rows above: {}.",
            gains.join(", ")
        )
    }
}

/// The rows that matter to a server, of those in which the wheel takes less.
fn gains(figures: &Figures) -> Vec<String> {
    let rows = figures.sections.iter().flat_map(|section| &section.rows);
    rows.filter(|row| row.verdict() == Verdict::WheelLess)
        .filter_map(|row| Some(format!("{} ({}x less)", row.gain?, times(row.ratio().median))))
        .collect()
}

/// Whether the machine was idle enough, and if not, which rows to distrust.
pub(crate) fn trust(figures: &Figures) -> String {
    let disturbed: Vec<_> = figures
        .all_sections()
        .filter(|section| section.is_disturbed())
        .map(|section| {
            let others = 100.0 * section.others.unwrap_or(0.0);
            format!("\"{}\" ({others:.0} %)", section.title)
        })
        .collect();
    if !disturbed.is_empty() {
        format!(
            "Distrust the rows of {}: other programs used that much of the machine meanwhile. Run this again when it is idle.",
            disturbed.join(", ")
        )
    } else if figures.all_sections().any(|section| section.others.is_none()) {
        "This system does not say whether other programs disturbed the measurement.".to_owned()
    } else {
        "The machine was idle enough.".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};
    use crate::figures::tests::row;

    #[test]
    fn figures_have_three_digits() {
        let cases = [
            (0.0, "0.00"),
            (0.1234, "0.123"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (57.34, "57.3"),
            (99.96, "100"),
            (1_234.5, "1,234"),
            (-1_000_000.0, "-1,000,000"),
            (f64::INFINITY, "∞"),
        ];
        for (value, expected) in cases {
            assert_eq!(figure(value), expected);
        }
    }

    #[test]
    fn a_ratio_says_who_takes_less_or_that_nobody_does() {
        assert_eq!(
            ratio(&row(&[500.0, 520.0, 540.0], &[50.0, 52.0, 60.0])),
            "10x (9.0 to 10)"
        );
        assert_eq!(ratio(&row(&[40.0; 3], &[80.0; 3])), "0.50x (0.50 to 0.50)");
        assert_eq!(
            ratio(&row(&[1.0, 1.0, 1.0], &[1.1, 0.9, 1.0])),
            "no difference (0.91 to 1.11)"
        );
        assert_eq!(ratio(&row(&[300.0], &[0.0])), "∞x (∞ to ∞)");
    }

    #[test]
    fn nanoseconds_are_told_in_clock_readings_too() {
        let figures = figures();
        let section = &figures.sections[0];
        assert_eq!(value(section, &section.rows[0], 52.0), "52.0 ns = 2.00 readings");
        assert_eq!(value(section, &section.rows[1], 40.0), "40.0 ms");
    }

    #[test]
    fn the_expectation_is_honest_about_small_parts() {
        let mut figures = figures();
        assert_eq!(
            expectation(&figures),
            "Timers take 2.8 % of this server's CPU with Tokio's and 1.1 % with the wheel: it will not get faster in a way that you can \
             see. What you gain is in the rows above: timeouts everywhere (10x less)."
        );
        figures.server.tokio.share.median = 12.0;
        assert!(expectation(&figures).contains("that is what its CPU time falls by"));
        figures.server.section.rows = vec![row(&[1.0, 1.0], &[1.0, 1.1])];
        assert!(expectation(&figures).contains("cannot tell the two apart"));
        figures.server.section.rows = vec![row(&[1.0, 1.0], &[1.1, 1.1])];
        figures.sections.clear();
        let text = expectation(&figures);
        assert!(
            text.contains("better off with Tokio's, and no row above says that you gain anything else."),
            "{text}"
        );
    }

    #[test]
    fn disturbed_sections_are_named() {
        let mut figures = figures();
        assert!(trust(&figures).starts_with("Distrust the rows of \"Lateness\" (40 %): "));
        figures.sections.pop();
        assert_eq!(trust(&figures), "The machine was idle enough.");
        figures.server.section.others = None;
        assert!(trust(&figures).starts_with("This system does not say"));
    }
}
