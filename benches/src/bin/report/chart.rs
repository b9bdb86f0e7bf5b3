//! Bar charts as SVG.

use std::fmt::Write;

/// Bars in groups, from top to bottom.
pub struct Chart<'a> {
    pub title: &'a str,
    /// What the numbers are.
    pub axis: &'a str,
    pub groups: Vec<Group>,
}

/// Bars that are compared: with the first of them, which is ours.
pub struct Group {
    pub head: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    name: String,
    value: f64,
    /// How many times ours it is, where that was measured round by round.
    ratio: Option<f64>,
}

impl Bar {
    pub fn new(name: &str, value: f64) -> Bar {
        Bar {
            name: name.to_owned(),
            value,
            ratio: None,
        }
    }

    pub fn with_ratio(self, ratio: Option<f64>) -> Bar {
        Bar { ratio, ..self }
    }
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
/// Where the longest bar ends; its label follows.
const RIGHT: f64 = 620.0;
const TOP: f64 = 62.0;
const BAR: f64 = 18.0;
const PITCH: f64 = 23.0;
const HEAD: f64 = 24.0;
const GAP: f64 = 12.0;
const FOOT: f64 = 46.0;

const PAPER: &str = "#ffffff";
const INK: &str = "#1c2430";
const FAINT: &str = "#667085";
const GRID: &str = "#e4e7ec";
const OURS: &str = "#0f766e";
const TOKIO: &str = "#d97706";
const OTHERS: &str = "#98a2b3";

impl Chart<'_> {
    pub fn draw(&self) -> String {
        let end = self.end();
        let (step, decimals) = step(end);
        let body: f64 = self.groups.iter().map(height).sum();
        let (bottom, height_of_all) = (TOP + body, TOP + body + FOOT);
        let x = |value: f64| LEFT + (RIGHT - LEFT) * value / end;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height_of_all}\" width=\"{WIDTH}\" \
             height=\"{height_of_all}\" role=\"img\" font-family=\"system-ui, -apple-system, Segoe UI, Helvetica, \
             Arial, sans-serif\" font-size=\"13\" fill=\"{INK}\">\n<title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height_of_all}\" rx=\"6\" fill=\"{PAPER}\"/>\n\
             <text x=\"20\" y=\"32\" font-size=\"17\" font-weight=\"600\">{title}</text>\n",
            title = escape(self.title)
        );
        let mut line = |text: String| writeln!(svg, "{text}").expect("a string takes all");

        let mut tick = 0.0;
        while tick <= end * 1.0001 {
            let at = x(tick);
            line(format!(
                "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"{GRID}\"/>"
            ));
            line(format!(
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{FAINT}\">\
                 {tick:.decimals$}</text>",
                bottom + 16.0
            ));
            tick += step;
        }
        line(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\" fill=\"{FAINT}\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            bottom + 35.0,
            escape(self.axis)
        ));

        let mut y = TOP;
        for group in &self.groups {
            if !group.head.is_empty() && !group.bars.is_empty() {
                let head = escape(&group.head);
                line(format!(
                    "<text x=\"20\" y=\"{:.1}\" font-weight=\"600\">{head}</text>",
                    y + 16.0
                ));
                y += HEAD;
            }
            for bar in &group.bars {
                self.draw_bar(
                    &mut line,
                    y,
                    bar,
                    group,
                    x(bar.value.min(end * 1.04)),
                    bar.value > end,
                );
                y += PITCH;
            }
            if !group.bars.is_empty() {
                y += GAP;
            }
        }
        svg + "</svg>\n"
    }

    fn draw_bar(&self, line: &mut impl FnMut(String), y: f64, bar: &Bar, group: &Group, end: f64, cut: bool) {
        let colour = match bar.name.as_str() {
            "tickwheel" | "labelled" => OURS,
            "tokio" => TOKIO,
            _ => OTHERS,
        };
        let middle = y + BAR / 2.0 + 4.5;
        line(format!(
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            escape(&bar.name)
        ));
        line(format!(
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\"/>",
            (end - LEFT).max(1.0)
        ));
        if cut {
            // It goes on past the edge: a slash through it says so.
            line(format!(
                "<path d=\"M{:.1} {:.1} l-8 {:.1}\" stroke=\"{PAPER}\" stroke-width=\"4\"/>",
                end - 12.0,
                y - 2.0,
                BAR + 4.0
            ));
        }
        let ours = group.bars.iter().find(|bar| bar.name == "tickwheel");
        let times = match ours {
            Some(ours) if ours.name != bar.name && ours.value > 0.0 => {
                format!(" · {}×", number(bar.ratio.unwrap_or(bar.value / ours.value)))
            }
            _ => String::new(),
        };
        line(format!(
            "<text x=\"{:.1}\" y=\"{middle:.1}\" font-size=\"12\">{}{times}</text>",
            end + 7.0,
            number(bar.value)
        ));
    }

    /// Where the axis ends: at the longest bar, unless that would leave the others no room.
    fn end(&self) -> f64 {
        let mut values: Vec<f64> = self
            .groups
            .iter()
            .flat_map(|group| &group.bars)
            .map(|bar| bar.value)
            .collect();
        values.sort_by(f64::total_cmp);
        while let [.., next, longest] = values[..] {
            if longest <= 3.0 * next || values.len() < 4 {
                break;
            }
            values.pop();
        }
        values.last().copied().filter(|end| *end > 0.0).unwrap_or(1.0)
    }
}

fn height(group: &Group) -> f64 {
    if group.bars.is_empty() {
        return 0.0;
    }
    let head = if group.head.is_empty() { 0.0 } else { HEAD };
    head + PITCH * group.bars.len() as f64 + GAP
}

/// A round step that gives four to nine lines, and the decimals it takes to write it.
fn step(end: f64) -> (f64, usize) {
    let power = 10_f64.powf((end / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| end / step >= 4.0);
    let step = step.unwrap_or(power);
    (step, (-step.log10().floor()).max(0.0) as usize)
}

fn number(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => usize::from(v.fract() >= 0.05),
        _ => 1,
    };
    format!("{value:.decimals$}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
