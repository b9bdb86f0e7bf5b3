//! For people at a terminal: each row as two bars.

use std::fmt::Write;

use super::text::{LEGEND, expectation, figure, grouped, micros, ratio, share, trust, value};
use crate::{
    figures::{Figures, Row, Section},
    server::Server,
};

const WIDTH: usize = 100;
const BAR: usize = 30;

pub(super) fn page(figures: &Figures) -> String {
    let mut page = format!("{}\n", figures.machine);
    for section in figures.all_sections() {
        page += &format!("\n{}{}\n", section.title, mark(section));
        page += &wrapped(&section.about, "  ");
        for row in &section.rows {
            page += &bars(row);
        }
    }
    page += &split(&figures.server);
    page + "\n"
        + &wrapped(LEGEND, "")
        + "\n"
        + &wrapped(&trust(figures), "")
        + "\n"
        + &wrapped(&expectation(figures), "")
}

fn mark(section: &Section) -> &str {
    if section.is_disturbed() {
        " (disturbed)"
    } else {
        ""
    }
}

fn bars(row: &Row) -> String {
    let bars = [
        ("tokio", Some(row.tokio())),
        ("  alt", row.by_alternative()),
        ("wheel", Some(row.wheel())),
    ];
    let most = bars.iter().filter_map(|(_, figure)| *figure).fold(0.0, f64::max);
    let mut text = format!("\n  {:<60}  {}\n", row.name, ratio(row));
    for (name, figure) in bars {
        if let Some(figure) = figure {
            let bar = bar(figure / most);
            // It cannot fail: the text is a string.
            _ = writeln!(text, "    {name} {bar:<BAR$} {}", value(row, figure));
        }
    }
    text
}

/// In eighths of a character.
fn bar(part: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if !part.is_finite() {
        return String::new();
    }
    let eighths = ((part * BAR as f64 * 8.0).round() as usize).max(1);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

fn split(server: &Server) -> String {
    let [kernel, program] = [server.kernel, server.program].map(figure);
    let mut text = format!(
        "\n  Where the CPU time of a request goes, at {} requests per second:\n",
        grouped(server.requests_per_second)
    );
    text += &format!(
        "    {kernel} µs in the kernel, mostly TCP; {program} µs in the program and Tokio without its timers;\n"
    );
    for (name, part) in [("Tokio's timers", server.tokio), ("the wheel", server.wheel)] {
        text += &format!(
            "    {} µs in timers with {name}: {}\n",
            micros(part),
            share(part.share)
        );
    }
    text
}

fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one from the start");
        if line.trim().is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};

    #[test]
    fn each_row_has_two_bars_on_one_scale() {
        let figures = figures();
        assert_eq!(
            bars(&figures.sections[0].rows[1]),
            format!(
                "\n  {:<60}  2.0x more (2.0 to 2.0)\n    tokio {:<30} 40.0 ms\n    wheel {} 80.0 ms\n",
                "dropping <all>",
                "█".repeat(15),
                "█".repeat(30)
            )
        );
    }

    #[test]
    fn a_bar_is_never_nothing() {
        assert_eq!(bar(0.0), "▏");
        assert_eq!(bar(0.05), "█▌");
        assert_eq!(bar(1.0), "█".repeat(30));
        assert_eq!(bar(f64::NAN), "");
    }

    #[test]
    fn the_page_has_everything_and_fits() {
        let page = page(&figures());
        for part in [
            "2 cores of a test",
            "Timeouts\n",
            "Lateness (disturbed)\n",
            "no difference",
            "A server\n",
            "in timers with the wheel: 1.1 % (0.6 to 1.6)",
            "Distrust",
            "Timers take 2.8 %",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
        let longest = page.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(WIDTH), "{page}");
    }
}
