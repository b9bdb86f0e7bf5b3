//! Figures and sentences in words, which all kinds of output share.

use crate::{
    figures::{Figures, Row, Unit, Verdict},
    server::Part,
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

/// A row's figure with its unit.
pub(crate) fn value(row: &Row, value: f64) -> String {
    let text = figure(value);
    match row.unit {
        Unit::Nanos => format!("{text} ns"),
        Unit::Micros => format!("{text} µs"),
        Unit::Millis => format!("{text} ms"),
        Unit::Bytes => format!("{text} bytes"),
        Unit::PerSecond => format!("{text} per second"),
    }
}

/// By how much the wheel takes less or more than Tokio, or that there is no difference, with the spread over
/// the rounds.
pub(crate) fn ratio(row: &Row) -> String {
    let ratio = row.ratio();
    let (Spread { low, median, high }, word) = match row.verdict() {
        Verdict::NoDifference => {
            return format!("no difference ({} to {})", times(ratio.low), times(ratio.high));
        }
        Verdict::WheelLess => (ratio, "less"),
        Verdict::TokioLess => (ratio.inverse(), "more"),
    };
    format!("{}x {word} ({} to {})", times(median), times(low), times(high))
}

/// With more digits the nearer it is to 1.
fn times(ratio: f64) -> String {
    if !ratio.is_finite() {
        "∞".to_owned()
    } else if ratio >= 9.95 {
        grouped(ratio)
    } else if ratio >= 1.25 {
        format!("{ratio:.1}")
    } else if (0.95..1.05).contains(&ratio) {
        format!("{ratio:.3}")
    } else {
        format!("{ratio:.2}")
    }
}

/// How the ratios are to be read, once for all tables.
pub(crate) const LEGEND: &str = "\"8.2x less\" says that Tokio's figure is 8.2 times the wheel's, \"1.2x more\" that the wheel's is 1.2 \
    times Tokio's. It is the median of the ratios within a round, and in brackets is the range in which the true one lies with a \
    confidence of 93 % or more. Where that range contains 1, the row says \"no difference\".";

/// A share in per cent with its range, unless it may be nothing. It is a difference of two measurements, so a
/// small one may come out below zero.
pub(crate) fn share(share: Spread) -> String {
    if share.low > 0.0 {
        format!("{:.1} % ({:.1} to {:.1})", share.median, share.low, share.high)
    } else {
        "less than this can measure".to_owned()
    }
}

/// The microseconds of a part, as far as they can be told.
pub(crate) fn micros(part: Part) -> String {
    if part.share.low > 0.0 {
        figure(part.micros)
    } else {
        "about 0".to_owned()
    }
}

/// What a server is to expect.
pub(crate) fn expectation(figures: &Figures) -> String {
    let server = &figures.server;
    let (tokio, wheel) = (server.tokio.share, server.wheel.share);
    let shares = format!(
        "Timers take {} of this server's CPU with Tokio's and {} with the wheel",
        bound(tokio),
        bound(wheel)
    );
    let less = tokio.median - wheel.median;
    let effect = match server.section.rows[0].verdict() {
        Verdict::NoDifference => {
            "this run cannot tell the two servers apart, so it will not get faster in a way that you can see"
                .to_owned()
        }
        Verdict::TokioLess => "on this machine it is better off with Tokio's".to_owned(),
        Verdict::WheelLess if less < VISIBLE => "it will not get faster in a way that you can see".to_owned(),
        Verdict::WheelLess => format!("its CPU time falls by {less:.0} %"),
    };
    let gains = gains(figures);
    if gains.is_empty() {
        format!("{shares}: {effect}, and no other row says that you gain anything else.")
    } else {
        format!(
            "{shares}: {effect}. What you gain is in the other rows: {}.",
            gains.join(", ")
        )
    }
}

/// A share, or only what it is less than, if it may be nothing.
fn bound(share: Spread) -> String {
    if share.low > 0.0 {
        format!("{:.1} %", share.median)
    } else {
        format!("less than {:.1} %", share.high.max(0.1))
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
            "10x less (9.0 to 10)"
        );
        assert_eq!(ratio(&row(&[40.0; 3], &[80.0; 3])), "2.0x more (2.0 to 2.0)");
        assert_eq!(
            ratio(&row(&[1.0, 1.0, 1.0], &[1.1, 0.9, 1.0])),
            "no difference (0.91 to 1.11)"
        );
        assert_eq!(ratio(&row(&[300.0], &[0.0])), "∞x less (∞ to ∞)");
    }

    #[test]
    fn a_share_that_may_be_nothing_is_not_told_in_numbers() {
        let spread = |low| Spread {
            low,
            median: 0.5,
            high: 0.9,
        };
        assert_eq!(share(spread(0.1)), "0.5 % (0.1 to 0.9)");
        for low in [0.0, -1.0] {
            assert_eq!(share(spread(low)), "less than this can measure");
            let part = Part {
                micros: -0.015,
                share: spread(low),
            };
            assert_eq!(micros(part), "about 0");
        }
    }

    #[test]
    fn the_expectation_is_honest_about_small_parts() {
        let mut figures = figures();
        assert_eq!(
            expectation(&figures),
            "Timers take 2.8 % of this server's CPU with Tokio's and 1.1 % with the wheel: it will not get faster in a way that you can \
             see. What you gain is in the other rows: timeouts everywhere (10x less)."
        );
        figures.server.wheel.share.low = -0.2;
        assert!(
            expectation(&figures)
                .contains("2.8 % of this server's CPU with Tokio's and less than 1.6 % with the wheel")
        );
        figures.server.tokio.share.median = 12.0;
        assert!(expectation(&figures).contains("its CPU time falls by 11 %"));
        figures.server.section.rows = vec![row(&[1.0, 1.0], &[1.0, 1.1])];
        assert!(expectation(&figures).contains("cannot tell the two servers apart"));
        figures.server.section.rows = vec![row(&[1.0, 1.0], &[1.1, 1.1])];
        figures.sections.clear();
        let text = expectation(&figures);
        assert!(
            text.contains("better off with Tokio's, and no other row says that you gain anything else."),
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
