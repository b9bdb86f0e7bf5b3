//! Draws the two pictures in the section "Monitor a wheel" of docs/guide.md, from the reports of wheels under simulated loads: `pictures`.
//!
//! - `docs/charts/headroom.svg`: `LabelStats` of four labels, whose answers come too late, far too soon, sometimes never, and in time.
//! - `docs/charts/lag.svg`: the lag of three runtimes with one worker: with little to do, blocked once, and with more work than it can do.

use std::{
    fmt::Write,
    fs,
    future::pending,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tickwheel::{LabelStats, Labelled, Wheel};
use tokio::runtime::{Builder, Runtime};

/// Answers for each label, and how long they may take.
const ANSWERS: usize = 1_000;
const TOTAL: Duration = Duration::from_secs(1);

/// Points of a line, and how far apart they are.
const POINTS: usize = 60;
const APART: Duration = Duration::from_millis(200);

/// Shown from 0.1 ms to a second, by powers of ten.
const LEAST_MS: f64 = 0.1;
const DECADES: f64 = 4.0;

const STYLE: &str = "\
<style>
text { fill: #1c2430; } .soft { fill: #586174; font-size: 12px; } .track { fill: #eceef2; } .ground { fill: #fff; }
.grid { stroke: #e1e4ea; } .bad { fill: #c2331f; } .badline { stroke: #c2331f; } .warn { fill: #b45309; } .plain { fill: #7d8aa3; }
.good { fill: #0f766e; } .line { fill: none; stroke: #2563eb; stroke-width: 1.6; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
text { fill: #e8ecf3; } .soft { fill: #a0aabd; } .track { fill: #1f2733; } .ground { fill: #151b24; } .grid { stroke: #2c3543; }
.bad { fill: #ff7b66; } .badline { stroke: #ff7b66; } .warn { fill: #fbbf24; } .plain { fill: #7f8ca6; } .good { fill: #2dd4bf; } .line { stroke: #60a5fa; }
}
</style>";

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a repository");
    let write = |name: &str, svg: String| {
        let path = root.join(format!("docs/charts/{name}.svg"));
        fs::write(path, svg).expect("docs can be written");
    };
    write("headroom", draw_headroom(&answers()));
    write(
        "lag",
        draw_lag(&[Load::Little, Load::Stall, Load::TooMuch].map(lag)),
    );
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).enable_time();
    builder.build().expect("the runtime starts")
}

/// What four kinds of answers make of the same timeout.
fn answers() -> Vec<LabelStats> {
    let mut random = Rng::with_seed(7);
    // In thousandths of the time: around `middle`, no further away than `spread`.
    let mut around = |middle: u64, spread: u64| {
        let three: u64 = (0..3).map(|_| random.u64(..2 * spread)).sum();
        Some((middle + three / 3).saturating_sub(spread))
    };
    let kinds = ["too tight", "too lax", "hangs", "right"];
    let times = (0..ANSWERS).flat_map(|n| {
        [
            around(870, 600),
            around(if n % 20 == 0 { 150 } else { 40 }, 40),
            if n % 8 == 0 { None } else { around(200, 240) },
            around(430, 520),
        ]
    });
    let times: Vec<Option<u64>> = times.collect();
    runtime().block_on(async {
        let builder = Wheel::builder().tick_duration(Duration::from_millis(1));
        let wheel = builder.build().expect("such a tick is allowed");
        let asking: Vec<_> = times
            .into_iter()
            .zip(kinds.into_iter().cycle())
            .map(|(time, kind)| tokio::spawn(ask(wheel.labelled(kind), time)))
            .collect();
        for asked in asking {
            asked.await.expect("no panic");
        }
        wheel.snapshot().labels
    })
}

async fn ask(labelled: Labelled, thousandths: Option<u64>) {
    let answer = async {
        match thousandths {
            Some(thousandths) => tokio::time::sleep(TOTAL * thousandths as u32 / 1_000).await,
            None => pending().await,
        }
    };
    // What comes of it is counted.
    let _ = labelled.timeout(TOTAL, answer).await;
}

/// What the one worker of a runtime has to do.
#[derive(Clone, Copy)]
enum Load {
    Little,
    Stall,
    TooMuch,
}

/// The latest that the driver came, point by point, in milliseconds; nothing where it did not come.
fn lag(load: Load) -> Vec<Option<f64>> {
    let runtime = runtime();
    let wheel = Wheel::new();
    // Somebody waits at every tick.
    for _ in 0..50 {
        let wheel = wheel.clone();
        runtime.spawn(async move {
            loop {
                wheel.sleep(Duration::from_millis(10)).await
            }
        });
    }
    thread::sleep(APART);
    let mut before = wheel.snapshot().lag;
    let mut points = Vec::new();
    for point in 0..POINTS {
        match load {
            Load::Stall if point == POINTS * 3 / 5 => {
                runtime.spawn(async { thread::sleep(Duration::from_millis(250)) });
            }
            Load::TooMuch if (POINTS / 4..POINTS / 2).contains(&point) => {
                runtime.spawn(compute());
            }
            _ => {}
        }
        thread::sleep(APART);
        let snapshot = wheel.snapshot();
        let lag = snapshot.lag.since(&before);
        points.push((lag.count() > 0).then(|| lag.quantile(1.0).as_secs_f64() * 1e3));
        before = snapshot.lag;
    }
    runtime.shutdown_background();
    points
}

/// A request that takes all the time it can get, in pieces of five milliseconds.
async fn compute() {
    loop {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        tokio::task::yield_now().await;
    }
}

fn line(svg: &mut String, text: std::fmt::Arguments) {
    svg.write_fmt(text)
        .and_then(|()| svg.write_char('\n'))
        .expect("a string takes all");
}

fn begin(title: &str, heading: &str, height: u32) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" width=\"760\" height=\"{height}\" role=\"img\" \
         font-family=\"system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n{STYLE}\n<rect class=\"ground\" width=\"760\" height=\"{height}\" rx=\"8\"/>\n\
         <text x=\"24\" y=\"34\" font-size=\"17\" font-weight=\"600\">{heading}</text>\n"
    )
}

fn draw_headroom(labels: &[LabelStats]) -> String {
    let words = [
        (
            "bad",
            &[
                "Answers come just before",
                "the end, and as many",
                "just after it.",
            ][..],
            &["Give it more time."][..],
        ),
        (
            "warn",
            &[
                "Nine tenths of the time",
                "are never used: a peer",
                "that hangs is found ten",
                "times too late.",
            ],
            &["Give it less."],
        ),
        (
            "bad",
            &[
                "Most come soon, some",
                "never. More time would",
                "not help those.",
            ],
            &["Look at the peer, not", "at the timeout."],
        ),
        (
            "good",
            &[
                "The slowest answers have",
                "some time left, the",
                "quick ones about half of",
                "it.",
            ],
            &["Leave it."],
        ),
    ];
    let mut svg = begin(
        "Headroom: how much of its time a timeout had left when the answer came",
        "Headroom: how much of its time a timeout had left",
        330,
    );
    for (n, (label, (class, tells, advice))) in labels.iter().zip(words).enumerate() {
        let (x, y) = (24 + 368 * (n % 2), 80 + 134 * (n / 2));
        line(
            &mut svg,
            format_args!(
                "<text x=\"{x}\" y=\"{}\" class=\"{class}\" font-weight=\"600\">{}</text>",
                y - 10,
                label.name
            ),
        );
        let most = label
            .headroom
            .iter()
            .copied()
            .chain([label.elapsed])
            .max()
            .unwrap_or(1);
        let mut bar = |x: usize, class: &str, count: u64| {
            line(
                &mut svg,
                format_args!(
                    "<rect class=\"track\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"70\" rx=\"2\"/>"
                ),
            );
            if count > 0 {
                let height = (70.0 * count as f64 / most as f64).max(2.0);
                let top = y as f64 + 70.0 - height;
                line(
                    &mut svg,
                    format_args!(
                        "<rect class=\"{class}\" x=\"{x}\" y=\"{top:.1}\" width=\"14\" height=\"{height:.1}\" rx=\"2\"/>"
                    ),
                );
            }
        };
        bar(x, "bad", label.elapsed);
        for (tenth, count) in label.headroom.into_iter().enumerate() {
            let class = match tenth {
                0 => "bad",
                9 => "warn",
                _ => "plain",
            };
            bar(x + 24 + 16 * tenth, class, count);
        }
        let foot = y + 85;
        line(
            &mut svg,
            format_args!(
                "<text class=\"soft\" x=\"{x}\" y=\"{foot}\" font-size=\"11\">late</text>\
                 <text class=\"soft\" x=\"{}\" y=\"{foot}\" font-size=\"11\">0 %</text>\
                 <text class=\"soft\" x=\"{}\" y=\"{foot}\" text-anchor=\"end\" font-size=\"11\">time left 100 %</text>",
                x + 28,
                x + 182
            ),
        );
        for (n, text) in tells.iter().enumerate() {
            line(
                &mut svg,
                format_args!(
                    "<text class=\"soft\" x=\"{}\" y=\"{}\">{text}</text>",
                    x + 198,
                    y + 10 + 15 * n
                ),
            );
        }
        for (n, text) in advice.iter().enumerate() {
            let below = y + 15 + 15 * (tells.len() + n);
            line(
                &mut svg,
                format_args!(
                    "<text x=\"{}\" y=\"{below}\" font-size=\"12\" font-weight=\"600\">{text}</text>",
                    x + 198
                ),
            );
        }
    }
    svg + "</svg>\n"
}

fn draw_lag(servers: &[Vec<Option<f64>>]) -> String {
    const TOP: f64 = 54.0;
    const BOTTOM: f64 = 216.0;
    let y = |ms: f64| BOTTOM - (BOTTOM - TOP) * (ms.max(LEAST_MS) / LEAST_MS).log10().min(DECADES) / DECADES;
    let words = [
        (
            "good",
            "fine",
            ["A millisecond or two is", "the rounding of Tokio's timer."],
        ),
        (
            "bad",
            "a stall",
            ["All workers were blocked, and", "the timers of that moment late."],
        ),
        (
            "bad",
            "no CPU left",
            ["It stays at 20 ms and more:", "too much for the cores."],
        ),
    ];
    let mut svg = begin(
        "Lag: how late the driver came, in three servers",
        "Lag: how late the driver came",
        290,
    );
    line(
        &mut svg,
        format_args!(
            "<text class=\"soft\" x=\"736\" y=\"34\" text-anchor=\"end\">ticks of 1 ms, the latest of each {} ms, logarithmic</text>",
            APART.as_millis()
        ),
    );
    let grid = [
        (0.1, "100 µs"),
        (1.0, "1 ms"),
        (10.0, "10 ms"),
        (100.0, "100 ms"),
        (1_000.0, "1 s"),
    ];
    for (ms, text) in grid {
        line(
            &mut svg,
            format_args!(
                "<text class=\"soft\" x=\"60\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\">{text}</text>",
                y(ms) + 4.0
            ),
        );
    }
    let two = y(20.0);
    for (n, (points, (class, name, tells))) in servers.iter().zip(words).enumerate() {
        let (left, right) = (70 + 230 * n, 276 + 230 * n);
        line(
            &mut svg,
            format_args!(
                "<rect x=\"{left}\" y=\"{TOP}\" width=\"206\" height=\"{:.1}\" class=\"bad\" opacity=\".08\"/>",
                two - TOP
            ),
        );
        for (ms, _) in grid {
            let y = y(ms);
            line(
                &mut svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
                ),
            );
        }
        line(
            &mut svg,
            format_args!(
                "<line class=\"badline\" x1=\"{left}\" x2=\"{right}\" y1=\"{two:.1}\" y2=\"{two:.1}\" stroke-dasharray=\"4 4\"/>"
            ),
        );
        if n == 0 {
            line(
                &mut svg,
                format_args!(
                    "<text class=\"bad\" x=\"76\" y=\"{:.1}\" font-size=\"11\">20 ms</text>",
                    two - 5.0
                ),
            );
        }
        let mut path = String::new();
        for (n, ms) in points.iter().enumerate() {
            let Some(ms) = ms else { continue };
            let x = left as f64 + 206.0 * n as f64 / (points.len() - 1) as f64;
            let step = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{step}{x:.1} {:.1}", y(*ms)).expect("a string takes all");
        }
        line(&mut svg, format_args!("<path class=\"line\" d=\"{path}\"/>"));
        line(
            &mut svg,
            format_args!("<text x=\"{left}\" y=\"240\" class=\"{class}\" font-weight=\"600\">{name}</text>"),
        );
        for (tell, y) in tells.iter().zip([257, 272]) {
            line(
                &mut svg,
                format_args!("<text class=\"soft\" x=\"{left}\" y=\"{y}\">{tell}</text>"),
            );
        }
    }
    svg + "</svg>\n"
}
