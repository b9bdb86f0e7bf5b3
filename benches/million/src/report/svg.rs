//! A picture of the rows, for light and dark pages.

use super::text::{ratio, share, value};
use crate::figures::{Figures, Row, Section, Verdict};

const WIDTH: usize = 860;
const MARGIN: usize = 24;
/// Where bars begin, and how long the longer one of a row is.
const BARS: usize = 92;
const BAR: usize = 340;
const ROW: usize = 62;

const STYLE: &str = "\
.ground { fill: #fff; } text { fill: #1c2430; } .soft { fill: #586174; font-size: 12px; } .tokio { fill: #9aa5b8; } .wheel { fill: #2563eb; }
.less { fill: #0f766e; font-weight: 600; } .more { fill: #c2331f; font-weight: 600; } .same { fill: #586174; }
@media (prefers-color-scheme: dark) {
.ground { fill: #151b24; } text { fill: #e8ecf3; } .soft { fill: #a0aabd; } .tokio { fill: #5f6b82; } .wheel { fill: #60a5fa; }
.less { fill: #2dd4bf; } .more { fill: #ff7b66; } .same { fill: #a0aabd; }
}";

pub(super) fn picture(figures: &Figures) -> String {
    let mut below = 34;
    let mut content = text(MARGIN, below, "", "What timers cost: tokio::time and tickwheel");
    content = content.replace("<text ", "<text font-size=\"17\" font-weight=\"600\" ");
    below += 20;
    content += &text(MARGIN, below, "soft", &figures.machine);
    for section in figures.all_sections() {
        below += 36;
        let mark = if section.is_disturbed() {
            " (disturbed)"
        } else {
            ""
        };
        content += &text(MARGIN, below, "title", &format!("{}{mark}", section.title));
        below += 6;
        for row in &section.rows {
            content += &bars(section, row, below);
            below += ROW;
        }
    }
    let server = &figures.server;
    for (name, part) in [("Tokio's timers", server.tokio), ("the wheel", server.wheel)] {
        below += 18;
        let line = format!("of that, in timers with {name}: {}", share(part.share));
        content += &text(MARGIN, below, "soft", &line);
    }
    let height = below + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         font-family=\"system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <title>What timers cost: tokio::time and tickwheel</title>\n<style>\n{STYLE}\n.title {{ font-weight: 600; font-size: 14px; }}\n</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n{content}</svg>\n"
    )
}

fn bars(section: &Section, row: &Row, top: usize) -> String {
    let class = match row.verdict() {
        Verdict::WheelLess => "less",
        Verdict::TokioLess => "more",
        Verdict::NoDifference => "same",
    };
    let mut drawn = text(MARGIN, top + 16, "", &row.name);
    drawn +=
        &text(WIDTH - MARGIN, top + 16, class, &ratio(row)).replace("<text ", "<text text-anchor=\"end\" ");
    let most = row.tokio().max(row.wheel());
    for (name, figure, top) in [("tokio", row.tokio(), top + 24), ("wheel", row.wheel(), top + 40)] {
        let long = if most > 0.0 {
            figure / most * BAR as f64
        } else {
            0.0
        };
        drawn += &text(MARGIN, top + 11, "soft", name);
        drawn += &format!(
            "<rect class=\"{name}\" x=\"{BARS}\" y=\"{top}\" width=\"{:.1}\" height=\"13\" rx=\"2\"/>\n",
            long.max(1.0)
        );
        drawn += &text(
            BARS + long as usize + 8,
            top + 11,
            "soft",
            &value(section, row, figure),
        );
    }
    drawn
}

fn text(x: usize, y: usize, class: &str, words: &str) -> String {
    let words = words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{words}</text>\n")
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};

    #[test]
    fn the_picture_has_two_bars_a_row_and_both_palettes() {
        let picture = picture(&figures());
        assert_eq!(picture.matches("<rect class=\"tokio\"").count(), 4);
        assert_eq!(picture.matches("<rect class=\"wheel\"").count(), 4);
        assert!(picture.contains("@media (prefers-color-scheme: dark)"));
        for class in ["less", "more", "same"] {
            assert!(picture.contains(&format!("class=\"{class}\"")), "{class}");
        }
        assert!(picture.contains("Lateness (disturbed)"));
    }

    #[test]
    fn words_are_escaped() {
        let picture = picture(&figures());
        assert!(picture.contains("dropping &lt;all&gt;") && !picture.contains("<all>"));
    }

    #[test]
    fn the_longer_bar_has_the_full_length() {
        let figures = figures();
        let drawn = bars(&figures.sections[0], &figures.sections[0].rows[1], 0);
        assert!(
            drawn.contains("width=\"170.0\"") && drawn.contains("width=\"340.0\""),
            "{drawn}"
        );
    }
}
