//! The picture at the top of README: what a timeout costs by the number of workers that set timeouts at once,
//! on this machine and on a larger one.

use super::svg;
use super::text::figure;
use crate::figures::Figures;

const WIDTH: usize = 960;
const MARGIN: usize = 24;
const BARS: usize = 150;
/// How long a bar is that is ten times as long as another one.
const DECADE: f64 = 165.0;
/// The least of the scale, in nanoseconds.
const LEAST: f64 = 10.0;
const DECADES: i32 = 4;

const TITLE: &str = "What a timeout costs that ends in time, by workers that set timeouts at once";

/// `contention 1 2 4 8 16` on a larger machine, as docs/performance.md has it: workers, and the nanoseconds
/// with Tokio's timer and with the wheel.
const LARGER: &str =
    "16 cores of an Intel Xeon, Linux 6.18, on 2026-11-26 (the alternative timer was not measured)";
const ON_LARGER: [(usize, f64, f64); 5] = [
    (1, 227.0, 97.0),
    (2, 1_422.0, 113.0),
    (4, 4_351.0, 130.0),
    (8, 15_817.0, 148.0),
    (16, 42_461.0, 198.0),
];

pub(super) fn picture(figures: &Figures) -> String {
    let mut below = 34;
    let mut content = svg::text(MARGIN, below, "head", TITLE);
    below += 24;
    let mut x = MARGIN;
    for (name, class, alternative) in [
        ("tokio::time", "tokio", false),
        ("its alternative timer (tokio_unstable)", "alternative", true),
        ("tickwheel", "wheel", false),
    ] {
        if !alternative || figures.have_alternative() {
            content += &svg::bar(class, x, below - 11, 13.0);
            content += &svg::text(x + 20, below, "", name);
            x += 50 + 7 * name.len();
        }
    }
    content += &svg::text(WIDTH - MARGIN, below, "soft end", "logarithmic scale");

    let measured = figures.sections.iter().flat_map(|section| &section.rows);
    let measured = measured.filter_map(|row| {
        let bars = [Some(row.tokio()), row.by_alternative(), Some(row.wheel())];
        Some((row.workers?, bars))
    });
    let is_disturbed = figures
        .sections
        .iter()
        .any(|section| section.is_disturbed() && section.rows.iter().any(|row| row.workers.is_some()));
    let mark = if is_disturbed { " (disturbed)" } else { "" };
    let here = format!("{}{mark}", figures.machine);
    let groups = [
        (here.as_str(), measured.collect::<Vec<_>>()),
        (
            LARGER,
            ON_LARGER
                .map(|(workers, tokio, wheel)| (workers, [Some(tokio), None, Some(wheel)]))
                .to_vec(),
        ),
    ];
    for (machine, rows) in groups {
        below += 36;
        content += &svg::text(MARGIN, below, "title", machine);
        below += 10;
        for (workers, bars) in rows {
            let name = if workers == 1 {
                "1 worker".to_owned()
            } else {
                format!("{workers} workers")
            };
            let bars: Vec<_> = ["tokio", "alternative", "wheel"]
                .into_iter()
                .zip(bars)
                .filter_map(|(class, nanos)| Some((class, nanos?)))
                .collect();
            content += &svg::text(MARGIN, below + 7 * bars.len() + 4, "", &name);
            for (class, nanos) in bars {
                let long = length(nanos);
                content += &svg::bar(class, BARS, below, long);
                content += &svg::text(
                    BARS + long as usize + 8,
                    below + 11,
                    "soft",
                    &format!("{} ns", figure(nanos)),
                );
                below += 15;
            }
            below += 8;
        }
    }
    svg::document(TITLE, WIDTH, below + MARGIN, &content)
}

fn length(nanos: f64) -> f64 {
    DECADE * (nanos / LEAST).log10().clamp(0.02, f64::from(DECADES))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};

    #[test]
    fn each_number_of_workers_has_a_bar_for_each_timer() {
        let mut figures = figures();
        figures.sections[0].rows[0].workers = Some(2);
        let before = picture(&figures);
        assert!(
            before.contains(">2 workers<") && before.contains(">520 ns<") && before.contains(">42,461 ns<")
        );
        assert!(!before.contains("class=\"alternative\""));

        figures.sections[0].rows[0].alternative = Some(vec![300.0]);
        let after = picture(&figures);
        assert_eq!(
            after.matches("<rect class=\"alternative\"").count(),
            2,
            "the bar and its key"
        );
    }

    #[test]
    fn ten_times_as_much_is_a_decade_longer() {
        assert!((length(1_000.0) - length(100.0) - DECADE).abs() < 1e-9);
        assert!(length(1.0) > 0.0, "what is less than the scale is still drawn");
        assert!(BARS as f64 + length(1e9) < (WIDTH - 100) as f64);
    }
}
