//! A picture of the rows, for light and dark pages.

use super::text::{ratio, share, value};
use crate::figures::{Figures, Row, Verdict};

const WIDTH: usize = 960;
const MARGIN: usize = 24;
/// Where bars begin, right of the names of the rows, and how long the longer one of a row is.
const BARS: usize = 370;
const BAR: usize = 212;
const ROW: usize = 38;

const TITLE: &str = "What timers cost";

const STYLE: &str = "\
.head { font-size: 17px; font-weight: 600; } .title { font-size: 14px; font-weight: 600; } .less, .more, .same, .end { text-anchor: end; }
.ground { fill: #fff; } text { fill: #1c2430; } .soft { fill: #586174; font-size: 12px; } .tokio { fill: #9aa5b8; } .alternative { fill: #d6a04a; } .wheel { fill: #2563eb; }
.less { fill: #0f766e; font-weight: 600; } .more { fill: #c2331f; font-weight: 600; } .same { fill: #586174; }
@media (prefers-color-scheme: dark) {
.ground { fill: #151b24; } text { fill: #e8ecf3; } .soft { fill: #a0aabd; } .tokio { fill: #5f6b82; } .alternative { fill: #b98532; } .wheel { fill: #60a5fa; }
.less { fill: #2dd4bf; } .more { fill: #ff7b66; } .same { fill: #a0aabd; }
}";

pub(super) fn picture(figures: &Figures) -> String {
    let mut below = 34;
    let mut content = text(MARGIN, below, "head", TITLE);
    for (name, class, x) in [("tokio::time", "tokio", 700), ("tickwheel", "wheel", 820)] {
        content += &bar(class, x, below - 11, 13.0);
        content += &text(x + 20, below, "", name);
    }
    below += 20;
    content += &text(MARGIN, below, "soft", &figures.machine);
    for section in figures.all_sections() {
        below += 34;
        let mark = if section.is_disturbed() {
            " (disturbed)"
        } else {
            ""
        };
        content += &text(MARGIN, below, "title", &format!("{}{mark}", section.title));
        below += 8;
        for row in &section.rows {
            content += &bars(row, below);
            below += ROW;
        }
    }
    let server = &figures.server;
    for (name, part) in [("tokio::time", server.tokio), ("tickwheel", server.wheel)] {
        below += 18;
        let line = format!("of that, in timers, with {name}: {}", share(part.share));
        content += &text(MARGIN, below, "soft", &line);
    }
    document(TITLE, WIDTH, below + MARGIN, &content)
}

/// A picture of a title and of that height, with the styles of all pictures.
pub(super) fn document(title: &str, width: usize, height: usize, content: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         font-family=\"system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n{content}</svg>\n"
    )
}

fn bars(row: &Row, top: usize) -> String {
    let class = match row.verdict() {
        Verdict::WheelLess => "less",
        Verdict::TokioLess => "more",
        Verdict::NoDifference => "same",
    };
    let mut drawn = text(MARGIN, top + 20, "", &row.name);
    drawn += &text(WIDTH - MARGIN, top + 20, class, &ratio(row));
    let most = row.tokio().max(row.wheel());
    for (class, figure, top) in [("tokio", row.tokio(), top + 2), ("wheel", row.wheel(), top + 17)] {
        let long = if most > 0.0 {
            figure / most * BAR as f64
        } else {
            0.0
        };
        drawn += &bar(class, BARS, top, long.max(1.0));
        drawn += &text(BARS + long as usize + 8, top + 11, "soft", &value(row, figure));
    }
    drawn
}

pub(super) fn bar(class: &str, x: usize, y: usize, long: f64) -> String {
    format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{long:.1}\" height=\"13\" rx=\"2\"/>\n")
}

pub(super) fn text(x: usize, y: usize, class: &str, words: &str) -> String {
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
        assert_eq!(picture.matches("<rect class=\"tokio\"").count(), 1 + 4);
        assert_eq!(picture.matches("<rect class=\"wheel\"").count(), 1 + 4);
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
        let drawn = bars(&figures.sections[0].rows[1], 0);
        assert!(
            drawn.contains("width=\"106.0\"") && drawn.contains("width=\"212.0\""),
            "{drawn}"
        );
    }
}
