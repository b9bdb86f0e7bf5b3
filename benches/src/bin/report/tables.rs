//! The content of each table and each chart.

use tickwheel_benches::children::Line;

use crate::{
    chart::{Bar, Chart, Group},
    measured::Measured,
};

const PEERS: [&str; 9] = [
    "tickwheel",
    "labelled",
    "tokio",
    "tokio-alt",
    "pingora-timeout",
    "DelayQueue",
    "kestrel-timer",
    "futures-timer",
    "async-io",
];
const PENDING: [(&str, &str); 4] = [
    ("1000", "1 thousand"),
    ("100000", "100 thousand"),
    ("1000000", "1 million"),
    ("10000000", "10 million"),
];
const STRUCTURES: [&str; 6] = [
    "levels(4)",
    "levels(1)",
    "nexus-timer",
    "bitwheel",
    "hierarchical_hash_wheel_timer",
    "DelayQueue",
];

/// The programs that are run without timers and with, by their names in `program`.
const PROGRAMS: [(&str, &str); 5] = [
    ("server-busy", "in memory, 50 connections in turn, busy"),
    ("server-quiet", "the same, 50 requests in a tick"),
    ("http", "HTTP/1 by hyper, 64 connections"),
    ("lines", "lines over TCP, 10,000 connections, 100 busy"),
    ("acceptor", "an acceptor that makes the timers"),
];

/// The scenes of a bad day, by their names in `bad-day`.
const SCENES: [(&str, &str); 14] = [
    (
        "storm",
        "sleeps while 20,000 timeouts of one thread elapse over and over",
    ),
    ("storm-two", "the same on two workers"),
    ("storm-timeouts", "those timeouts themselves, on one thread"),
    ("storm-two-timeouts", "the same on two workers"),
    (
        "ready-tasks",
        "20,000 tasks of one thread are always ready, most in the global queue",
    ),
    (
        "ready-tasks-two",
        "20,000 tasks of two workers yield over and over",
    ),
    ("schedule", "a worker that schedules a task and blocks"),
    ("timeout", "a worker that starts a timeout and blocks"),
    ("reset", "a worker that brings a sleep forward and blocks"),
    ("mass-wake", "5,000 tasks woken, three of which block"),
    (
        "cascade",
        "300,000 timers that cascade from level 1 beside busy tasks",
    ),
    ("cascade-two", "the same from level 2"),
    ("busy", "both cores busy, 25,000 sleeps a second"),
    ("stall", "a runtime that stands still for 600 ms"),
];

/// What `count` counts by each name.
const OPERATIONS: [(&str, &str); 19] = [
    ("ready", "a timeout around a ready future"),
    (
        "timeout",
        "a timeout around a future that is pending once, in a shard that ticks",
    ),
    (
        "unequal",
        "the same with two durations in turn, which takes the lock",
    ),
    (
        "quiet",
        "the same as `timeout` in a shard that dozes, which reads the clock",
    ),
    ("labelled", "`timeout`, counted under a label"),
    ("labelled-quiet", "`quiet`, counted under a label"),
    ("sleep", "a sleep that is polled once and dropped"),
    (
        "select",
        "a round of `select!` that polls a sleep twice and drops it",
    ),
    ("reset", "a pending sleep reset to a later instant"),
    (
        "reset-back",
        "reset to a later instant, and then to one in between",
    ),
    ("repoll", "a pending sleep polled again by the same task"),
    ("current-ready", "`ready` on the current wheel"),
    ("current-timeout", "`timeout` on the current wheel"),
    ("current-sleep", "`sleep` on the current wheel"),
    ("current-select", "`select` on the current wheel"),
    (
        "server-busy",
        "a request to a busy server, current-thread runtime",
    ),
    (
        "server-busy-threads",
        "the same on a worker of a multi-thread runtime",
    ),
    (
        "server-quiet",
        "a request to a quiet server, current-thread runtime",
    ),
    (
        "server-quiet-threads",
        "the same on a worker of a multi-thread runtime",
    ),
];

/// The short sleeps of `short`, in milliseconds.
const SHORT: [&str; 6] = ["1", "2", "5", "7", "20", "50"];

/// Peers, and how many times cheaper than each.
type Goals = &'static [(&'static str, f64)];

/// The figures of docs/performance.md that are ratios: the name of the work, what it is, and how many times cheaper than
/// each peer it is to be.
const FIGURES: [(&str, &str, Goals); 12] = [
    (
        "ready",
        "timeout around a ready future",
        &[("tokio", 5.0), ("pingora-timeout", 5.0)],
    ),
    (
        "one",
        "register and cancel, one thread",
        &[("tokio", 3.5), ("pingora-timeout", 6.0), ("DelayQueue", 4.5)],
    ),
    (
        "two",
        "the same on two workers at once",
        &[("tokio", 12.0), ("pingora-timeout", 4.0)],
    ),
    (
        "million",
        "the same with 1,000,000 pending, random durations",
        &[("tokio", 3.5)],
    ),
    ("reset-hot", "reset to a later instant, hot", &[("tokio", 4.0)]),
    (
        "reset-random",
        "reset to a later instant, one of a million at random",
        &[("tokio", 2.0)],
    ),
    (
        "reset-earlier",
        "reset to an earlier instant, one of a million at random",
        &[("tokio", 1.4)],
    ),
    (
        "quiet-one",
        "register and cancel in a quiet wheel, one thread",
        &[("tokio", 2.0)],
    ),
    ("quiet-two", "the same on two workers at once", &[("tokio", 10.0)]),
    (
        "current-ready",
        "timeout around a ready future, on the current wheel",
        &[("tokio", 2.5)],
    ),
    (
        "current-one",
        "register and cancel on the current wheel, one thread",
        &[("tokio", 2.5)],
    ),
    (
        "current-two",
        "the same on two workers at once",
        &[("tokio", 8.0)],
    ),
];

/// A table of a page, by its name there.
pub fn table(name: &str, measured: &Measured) -> Option<String> {
    Some(match name {
        "machine" => machine(measured),
        "figures" => figures(measured),
        "flat" => flat(measured),
        "sleep" => sleep(measured),
        "timeout" => timeout(measured),
        "contention" => contention(measured),
        "scale" => scale(measured),
        "reset" => reset(measured),
        "expire" => expire(measured),
        "timing_wheel" => structure(measured),
        "delay_queue" => delay_queue(measured),
        "instructions" => instructions(measured),
        "bad-day" => bad_day(measured),
        "gains" => gains(measured),
        "short" => short(measured),
        "reach" => reach(measured),
        "alt" => alternative(measured),
        "delay" => delay(measured),
        "programs" => real_programs(measured),
        "tail" => tail(measured),
        "memory" => programs(
            measured,
            "memory",
            &[("timers", "timers"), ("bytes", "resident bytes per timer")],
        ),
        "idle" => programs(
            measured,
            "idle",
            &[
                ("timers", "timers pending"),
                ("seconds", "seconds"),
                ("cpu_ms", "CPU ms"),
                ("switches", "context switches"),
                ("wakeups", "wake-ups of the driver"),
            ],
        ),
        "trickle" => programs(
            measured,
            "trickle",
            &[
                ("requests", "requests"),
                ("cpu_ms", "CPU ms"),
                ("switches", "context switches"),
                ("wakeups", "wake-ups of the driver"),
            ],
        ),
        "lateness" => programs(
            measured,
            "lateness",
            &[
                ("tasks", "tasks"),
                ("spread_ms", "spread over, ms"),
                ("cpu_s", "CPU s"),
                ("cpu_expire_s", "of which to expire"),
                ("p50_ms", "late p50, ms"),
                ("p99_ms", "p99"),
                ("p999_ms", "p99.9"),
                ("max_ms", "max"),
                ("early", "early"),
            ],
        ),
        _ => return None,
    })
}

/// Every chart, with its file's name.
pub fn charts(measured: &Measured) -> Vec<(&'static str, String)> {
    let per_operation = "ns for one operation, less is better";
    let by_peer = |group: &str, suffix: &str| -> Vec<Bar> {
        let bar = |peer: &&str| {
            Some(Bar::new(
                peer,
                measured.criterion(group, &format!("{peer}{suffix}"))?,
            ))
        };
        PEERS.iter().filter_map(bar).collect()
    };
    let program = |name: &str, key: &str, head: &str| Group {
        head: head.to_owned(),
        bars: measured
            .lines(name)
            .filter_map(|line| Some(Bar::new(line.get("peer")?, line.number(key)?)))
            .collect(),
    };
    let figures = FIGURES.iter().map(|(work, head, _)| Group {
        head: (*head).to_owned(),
        bars: measured
            .lines("figures")
            .filter(|line| line.get("work") == Some(work))
            .filter_map(|line| {
                let bar = Bar::new(line.get("peer")?, line.number("ns")?);
                Some(bar.with_ratio(line.number("ratio")))
            })
            .collect(),
    });
    let contention = workers(measured, "contention").into_iter().map(|workers| Group {
        head: format!("{workers} at once"),
        bars: measured
            .lines("contention")
            .filter(|line| line.get("workers") == Some(&workers))
            .filter_map(|line| Some(Bar::new(line.get("peer")?, line.number("ns")?)))
            .collect(),
    });
    let scale = PENDING.iter().map(|(pending, head)| Group {
        head: format!("{head} pending"),
        bars: by_peer("scale-random", &format!("/{pending}")),
    });
    let group = |head: &str, bars| Group {
        head: head.to_owned(),
        bars,
    };
    let expire = vec![
        group("100,000 at once", by_peer("expire-equal", "")),
        group("100,000 within 200 ms", by_peer("expire-random", "")),
    ];
    let reset = vec![
        group("one timer, over and over", by_peer("reset-hot", "")),
        group("one of a million, at random", by_peer("reset-random", "")),
    ];
    let lateness = vec![
        program("lateness", "p50_ms", "half are later than"),
        program("lateness", "p99_ms", "1 in 100 is later than"),
        program("lateness", "max_ms", "the latest"),
    ];
    let scenes = SCENES.into_iter().map(|(scene, what)| {
        let bar = |line: &Line| Some(Bar::new(line.get("peer")?, line.number("p99_ms")?));
        let lines = measured
            .lines("bad-day")
            .filter(|line| line.get("scene") == Some(scene));
        group(what, lines.filter_map(bar).collect())
    });
    let real = PROGRAMS.into_iter().map(|(program, what)| {
        let bar = |line: &Line| Some(Bar::new(line.get("peer")?, line.number("cpu_us")?));
        let lines = measured
            .lines("program")
            .filter(|line| line.get("program") == Some(program));
        group(what, lines.filter_map(bar).collect())
    });
    let all = [
        (
            "bad-day",
            "How late timers come on a bad day",
            "ms, 1 in 100 is later, less is better",
            scenes.collect(),
        ),
        (
            "figures",
            "Timers registered, cancelled and reset",
            per_operation,
            figures.collect(),
        ),
        (
            "contention",
            "Register and cancel, by the number of workers",
            "ns for one operation of one worker, less is better",
            contention.collect(),
        ),
        (
            "scale",
            "Register and cancel beside others, random durations",
            per_operation,
            scale.collect(),
        ),
        ("reset", "Reset to a later instant", per_operation, reset),
        (
            "expire",
            "A timer that expires",
            "CPU ns for one timer, less is better",
            expire,
        ),
        (
            "memory",
            "A million pending boxed sleeps",
            "resident bytes for one timer, less is better",
            vec![program("memory", "bytes", "")],
        ),
        (
            "lateness",
            "How late 300,000 sleeping tasks wake",
            "ms, less is better",
            lateness,
        ),
        (
            "programs",
            "Real programs, without timers and with",
            "CPU µs for one request or task, less is better",
            real.collect(),
        ),
    ];
    all.into_iter()
        .map(|(name, title, axis, groups): (_, &str, &str, Vec<Group>)| (name, Chart { title, axis, groups }))
        .filter(|(_, chart)| chart.groups.iter().any(|group| !group.bars.is_empty()))
        .map(|(name, chart)| (name, chart.draw()))
        .collect()
}

/// Rows and columns as Markdown; the first column holds names, the others numbers.
fn markdown(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}|\n", head.join(" | "), align(head.len()));
    let mut measured = false;
    for row in rows {
        measured = true;
        text += &format!("| {} |\n", row.join(" | "));
    }
    if !measured {
        return "Not measured in the last run.\n".to_owned();
    }
    text
}

fn align(columns: usize) -> String {
    let columns: Vec<_> = (0..columns)
        .map(|column| if column == 0 { " --- " } else { " ---: " })
        .collect();
    columns.join("|")
}

/// To three figures, and with commas.
fn figure(number: f64) -> String {
    if number >= 1000.0 {
        let digits = format!("{number:.0}");
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    let decimals = match number {
        n if n >= 100.0 || n == n.trunc() => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}

fn cell(number: Option<f64>) -> String {
    number.map_or_else(|| "–".to_owned(), figure)
}

/// A number, and how many times that of the first row it is.
fn beside(number: Option<f64>, first: Option<f64>) -> String {
    match (number, first) {
        (Some(number), Some(first)) if number != first && first > 0.0 => {
            format!("{} ({}x)", figure(number), figure(number / first))
        }
        (number, _) => cell(number),
    }
}

/// A row for each name, a column for each of criterion's groups and suffixes.
fn by_criterion(measured: &Measured, what: &str, names: &[&str], columns: &[(&str, String, &str)]) -> String {
    let heads = columns.iter().map(|(_, _, head)| *head);
    let head: Vec<_> = [what].into_iter().chain(heads).collect();
    let get = |name: &str, group: &str, suffix: &str| measured.criterion(group, &format!("{name}{suffix}"));
    let rows = names.iter().filter_map(|name| {
        let numbers: Vec<_> = columns
            .iter()
            .map(|(group, suffix, _)| get(name, group, suffix))
            .collect();
        let cells = numbers.iter().zip(columns).map(|(number, (group, suffix, _))| {
            let first = get(names[0], group, suffix);
            beside(*number, first)
        });
        let row = [(*name).to_owned()].into_iter().chain(cells).collect();
        numbers.iter().any(Option::is_some).then_some(row)
    });
    markdown(&head, rows)
}

fn sleep(measured: &Measured) -> String {
    let lines = || {
        measured
            .lines("figures")
            .filter(|line| line.get("work") == Some("sleep"))
    };
    let first = lines().next().and_then(|line| line.number("ns"));
    let rows = lines().filter_map(|line| {
        Some(vec![
            line.get("peer")?.to_owned(),
            beside(line.number("ns"), first),
        ])
    });
    markdown(&["", "ns"], rows)
}

fn timeout(measured: &Measured) -> String {
    let mut columns = vec![("timeout-ready", String::new(), "ready at once")];
    for (workers, head) in [
        ("/1", "1 worker"),
        ("/2", "2 workers"),
        ("/4", "4 workers"),
        ("/8", "8 workers"),
    ] {
        columns.push(("timeout-once", workers.to_owned(), head));
    }
    by_criterion(measured, "ns", &PEERS, &columns)
}

fn scale(measured: &Measured) -> String {
    let table = |group| {
        let columns: Vec<_> = PENDING
            .map(|(pending, head)| (group, format!("/{pending}"), head))
            .into();
        by_criterion(measured, "ns", &PEERS, &columns)
    };
    format!(
        "All timers for ten minutes:\n\n{}\nTimers for three to fourteen minutes, at random:\n\n{}",
        table("scale-equal"),
        table("scale-random")
    )
}

fn delay_queue(measured: &Measured) -> String {
    const QUEUES: [&str; 2] = ["tickwheel", "tokio-util"];
    let works = [
        ("insert and remove one more", "queue-insert-remove"),
        ("remove one at random, insert another", "queue-replace"),
        ("reset one at random", "queue-reset"),
        ("insert to expiry", "queue-insert-to-expiry"),
    ];
    let tables = works.map(|(work, group)| {
        let columns = [
            ("1000", "1 thousand"),
            ("30000", "30 thousand"),
            ("1000000", "1 million"),
        ];
        let columns: Vec<_> = columns
            .map(|(values, head)| (group, format!("/{values}"), head))
            .into();
        by_criterion(measured, work, &QUEUES, &columns)
    });
    tables.join("\n")
}

fn reset(measured: &Measured) -> String {
    let columns = [
        ("reset-hot", String::new(), "hot"),
        ("reset-random", String::new(), "one of a million at random"),
    ];
    by_criterion(measured, "ns", &PEERS, &columns)
}

fn expire(measured: &Measured) -> String {
    let columns = [
        ("expire-equal", String::new(), "100,000 at once"),
        ("expire-random", String::new(), "100,000 within 200 ms"),
    ];
    by_criterion(measured, "CPU ns for one timer", &PEERS, &columns)
}

fn structure(measured: &Measured) -> String {
    let columns = [
        ("wheel-churn", String::new(), "insert and remove beside 100,000"),
        ("wheel-insert", String::new(), "insert"),
        ("wheel-remove", String::new(), "remove at random"),
        ("wheel-reset-earlier", String::new(), "reset earlier"),
        ("wheel-reset-later", String::new(), "reset later"),
        (
            "wheel-advance-near",
            String::new(),
            "advance to the end, within 255 ticks",
        ),
        ("wheel-advance-far", String::new(), "within 240,000 ticks"),
    ];
    let table = by_criterion(measured, "ns for one timer", &STRUCTURES, &columns);
    let jump = |ticks| measured.criterion("wheel-jump", &format!("levels(4)/{ticks}"));
    match (jump("1"), jump("1000000")) {
        (Some(one), Some(million)) => format!(
            "{table}\nA jump over one empty tick: {} ns; over a million: {} ns.\n",
            figure(one),
            figure(million)
        ),
        _ => table,
    }
}

fn machine(measured: &Measured) -> String {
    let line = |name: &str| measured.lines(name).next().cloned().unwrap_or_default();
    let machine = line("machine");
    let get = |key: &str| machine.get(key).unwrap_or("?").replace('_', " ");
    let versions: Vec<_> = line("versions")
        .values
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let warning = match machine.get("mode") {
        Some("full") => "",
        Some("brief") => "Taken by `benches/run brief`: short samples, ten of each.\n\n",
        _ => "**A quick run, to see that everything works: the numbers are noise.**\n\n",
    };
    format!(
        "{warning}{} cores of {}, {} GiB; Linux {}; {}. Measured on {} at commit {}.\n\nVersions: {}.\n",
        get("cores"),
        get("cpu"),
        get("memory_gib"),
        get("kernel"),
        get("rustc"),
        get("date"),
        get("commit"),
        versions.join(", ")
    )
}

fn figures(measured: &Measured) -> String {
    let get = |work: &str, peer: &str, key: &str| {
        measured.number("figures", &[("work", work), ("peer", peer)], key)
    };
    let mut rows = Vec::new();
    for (work, what, peers) in FIGURES {
        for (peer, reach) in peers {
            let (Some(ours), Some(theirs)) = (get(work, "tickwheel", "ns"), get(work, peer, "ns")) else {
                continue;
            };
            let ratio = get(work, peer, "ratio").unwrap_or_default();
            rows.push(vec![
                what.to_owned(),
                (*peer).to_owned(),
                figure(ours),
                figure(theirs),
                format!("**{ratio:.1}x**"),
                format!("{reach}x"),
                verdict(ratio >= *reach),
            ]);
        }
    }
    let of_tokio = |name: &str, key: &str| {
        let get = |peer| measured.number(name, &[("peer", peer)], key);
        Some((get("tickwheel")?, get("tokio")?))
    };
    let mut share = |what: &str, found: Option<(f64, f64)>, most: f64| {
        if let Some((ours, theirs)) = found {
            let ratio = ours / theirs;
            rows.push(vec![
                what.to_owned(),
                "tokio".to_owned(),
                figure(ours),
                figure(theirs),
                format!("**{ratio:.2} of Tokio's**"),
                format!("at most {most}"),
                verdict(ratio <= most),
            ]);
        }
    };
    share(
        "resident bytes for a pending boxed sleep",
        of_tokio("memory", "bytes"),
        0.75,
    );
    share(
        "CPU seconds of 300,000 sleeping tasks that expire",
        of_tokio("lateness", "cpu_s"),
        1.03,
    );
    let flat = measured
        .lines("figures")
        .filter(|line| line.get("work") == Some("flat"));
    let steepest = flat.filter_map(|line| line.number("ratio")).fold(0.0, f64::max);
    if steepest > 0.0 {
        let what = "register and cancel, one thousand to 10 million pending: the highest cost, relative to one thousand";
        let row = [what, "itself", "", ""].map(str::to_owned).into_iter();
        let rest = [
            format!("**{steepest:.2}x**"),
            "at most 1.3x".to_owned(),
            verdict(steepest <= 1.3),
        ];
        rows.push(row.chain(rest).collect());
    }
    markdown(
        &[
            "work, ns",
            "against",
            "tickwheel",
            "peer",
            "ratio",
            "goal",
            "reached",
        ],
        rows,
    )
}

/// How late a timer of each peer comes, in milliseconds.
fn late(measured: &Measured, name: &str, with: &[(&str, &str)], key: &str) -> Option<(f64, f64)> {
    let of = |peer| {
        let with: Vec<_> = with.iter().copied().chain([("peer", peer)]).collect();
        measured.number(name, &with, key)
    };
    Some((of("tickwheel")?, of("tokio")?))
}

/// Short sleeps, one after another: a row for each duration, two columns for each scene.
fn short(measured: &Measured) -> String {
    let scenes = ["idle", "busy", "ticking"];
    let rows = SHORT.into_iter().map(|millis| {
        let cells = scenes.into_iter().flat_map(|scene| {
            ["tickwheel", "tokio"].map(|peer| {
                let get = |key| {
                    let with = [("scene", scene), ("ms", millis), ("peer", peer)];
                    measured.number("short", &with, key)
                };
                format!("{} / {}", cell(get("p50_ms")), cell(get("p99_ms")))
            })
        });
        [format!("{millis} ms")].into_iter().chain(cells).collect()
    });
    let head = [
        "late by, ms: p50 / p99",
        "idle: tickwheel",
        "tokio",
        "busy: tickwheel",
        "tokio",
        "50,000 timeouts/s: tickwheel",
        "tokio",
    ];
    markdown(&head, rows)
}

/// By how much more than Tokio's the wheel's timers are late, and by how much they may be.
fn reach(measured: &Measured) -> String {
    let mut rows = Vec::new();
    let mut row = |what: &str, found: Vec<(f64, f64)>, most: f64| {
        // The one that comes nearest to what it may not exceed.
        let worst = found
            .into_iter()
            .max_by(|one, other| (one.0 - one.1).total_cmp(&(other.0 - other.1)));
        if let Some((ours, theirs)) = worst {
            rows.push(vec![
                what.to_owned(),
                figure(ours),
                figure(theirs),
                format!("+{most}"),
                verdict(ours <= theirs + most),
            ]);
        }
    };
    for (scene, what) in [
        ("idle", "sleeps of 1 to 50 ms, idle"),
        ("busy", "the same beside busy tasks"),
        ("ticking", "the same beside 50,000 timeouts a second"),
    ] {
        for (key, of, most) in [("p50_ms", "median", 0.7), ("p99_ms", "p99", 2.0)] {
            let found = SHORT
                .iter()
                .filter_map(|millis| late(measured, "short", &[("scene", scene), ("ms", millis)], key));
            row(&format!("{what}: {of}"), found.collect(), most);
        }
    }
    let timeouts = late(measured, "short", &[("scene", "timeouts")], "p99_ms");
    row(
        "timeouts that elapse under that load: p99",
        timeouts.into_iter().collect(),
        12.0,
    );
    for (key, of, most) in [("p50_ms", "median", 0.7), ("p99_ms", "p99", 2.0)] {
        let found = late(measured, "lateness", &[], key);
        row(
            &format!("300,000 sleeps: {of}"),
            found.into_iter().collect(),
            most,
        );
    }
    let (timeouts, sleeps): (Vec<_>, Vec<_>) =
        SCENES.iter().partition(|(scene, _)| scene.ends_with("-timeouts"));
    for (what, scenes, most) in [
        ("sleeps on a bad day: maximum", sleeps, 5.0),
        ("timeouts on a bad day: maximum", timeouts, 15.0),
    ] {
        let found = scenes
            .into_iter()
            .filter_map(|(scene, _)| late(measured, "bad-day", &[("scene", scene)], "max_ms"));
        row(what, found.collect(), most);
    }
    let early: f64 = ["short", "lateness"]
        .into_iter()
        .flat_map(|name| measured.lines(name))
        .filter_map(|line| line.number("early"))
        .sum();
    let head = [
        "late by, ms: the worst result relative to Tokio's",
        "tickwheel",
        "tokio",
        "goal",
        "reached",
    ];
    format!("{}\nTimers that were early: {early}.\n", markdown(&head, rows))
}

/// The shim of futures-timer beside the original.
fn delay(measured: &Measured) -> String {
    let places = [("inside", "in a Tokio runtime"), ("outside", "outside")];
    let rows = places.into_iter().filter_map(|(place, what)| {
        let get = |peer, key| measured.number("delay", &[("place", place), ("peer", peer)], key);
        let ours = get("tickwheel", "ns")?;
        let cpu = ["tickwheel", "futures-timer"].map(|peer| cell(get(peer, "cpu_ns")));
        let cells = [figure(ours), beside(get("futures-timer", "ns"), Some(ours))];
        Some([what.to_owned()].into_iter().chain(cells).chain(cpu).collect())
    });
    let head = [
        "ns per `Delay`",
        "contrib/futures-timer",
        "futures-timer",
        "CPU ns, contrib",
        "CPU ns, original",
    ];
    markdown(&head, rows)
}

/// Tokio's alternative timer beside the one that is the default: in contention, in a quiet wheel, and in real programs.
fn alternative(measured: &Measured) -> String {
    let figures = FIGURES.iter().filter_map(|(work, what, _)| {
        let get = |peer| measured.number("alt-figures", &[("work", work), ("peer", peer)], "ns");
        let ours = get("tickwheel")?;
        let others = ["tokio", "tokio-alt"].map(|peer| beside(get(peer), Some(ours)));
        Some(
            [(*what).to_owned(), figure(ours)]
                .into_iter()
                .chain(others)
                .collect(),
        )
    });
    let figures = markdown(&["ns per operation", "tickwheel", "tokio", "tokio-alt"], figures);
    let programs = PROGRAMS.iter().filter_map(|(program, what)| {
        let get = |peer| measured.number("alt-program", &[("program", program), ("peer", peer)], "cpu_us");
        get("tokio-alt")?;
        let cells = ["none", "tickwheel", "tokio", "tokio-alt"].map(|peer| cell(get(peer)));
        Some([(*what).to_owned()].into_iter().chain(cells).collect())
    });
    let head = [
        "CPU µs per request or task",
        "without timers",
        "tickwheel",
        "tokio",
        "tokio-alt",
    ];
    let programs = markdown(&head, programs);
    format!(
        "{}\n{figures}\n{programs}",
        contention_of(measured, "alt-contention")
    )
}

fn verdict(reached: bool) -> String {
    if reached { "yes" } else { "no" }.to_owned()
}

fn flat(measured: &Measured) -> String {
    let lines = measured
        .lines("figures")
        .filter(|line| line.get("work") == Some("flat"));
    let rows = lines.map(|line| {
        let head = PENDING
            .iter()
            .find(|(pending, _)| line.get("peer") == Some(pending));
        let head = head.map_or("?", |(_, head)| head);
        vec![
            head.to_owned(),
            cell(line.number("ns")),
            format!("{:.2}x", line.number("ratio").unwrap_or_default()),
        ]
    });
    markdown(&["timers pending", "ns", "relative to 1 thousand"], rows)
}

fn workers(measured: &Measured, name: &str) -> Vec<String> {
    let mut all: Vec<_> = measured
        .lines(name)
        .filter_map(|line| line.get("workers").map(str::to_owned))
        .collect();
    all.dedup();
    all
}

fn contention(measured: &Measured) -> String {
    contention_of(measured, "contention")
}

fn contention_of(measured: &Measured, name: &str) -> String {
    let peers: Vec<_> = PEERS
        .into_iter()
        .filter(|peer| measured.lines(name).any(|line| line.get("peer") == Some(peer)))
        .collect();
    let head: Vec<_> = ["workers"].into_iter().chain(peers.iter().copied()).collect();
    let rows = workers(measured, name).into_iter().map(|workers| {
        let get = |peer: &str, key| measured.number(name, &[("workers", &workers), ("peer", peer)], key);
        let cells = peers.iter().map(|peer| {
            let wall = beside(get(peer, "ns"), get(peers[0], "ns"));
            let had = get(peer, "cores_had").unwrap_or_default();
            format!("{wall}; CPU {}, {had:.1} cores", cell(get(peer, "cpu_ns")))
        });
        [workers.clone()].into_iter().chain(cells).collect()
    });
    let table = markdown(&head, rows);
    let cores = measured
        .lines(name)
        .next()
        .and_then(|line| line.get("cores"))
        .unwrap_or("?");
    let labelled = match peers.contains(&"labelled") {
        true => "; `labelled` is tickwheel with all workers counting under one label",
        false => "",
    };
    format!("ns per operation of one worker, on {cores} cores{labelled}:\n\n{table}")
}

fn instructions(measured: &Measured) -> String {
    let works: Vec<&Line> = measured
        .lines("instructions")
        .filter(|line| line.get("peer") == Some("tickwheel"))
        .collect();
    let rows = works.into_iter().map(|line| {
        let work = line.get("work").unwrap_or("?");
        let theirs = measured.number("instructions", &[("work", work), ("peer", "tokio")], "each");
        let what = OPERATIONS.iter().find(|(name, _)| *name == work);
        vec![
            what.map_or_else(|| work.to_owned(), |(_, what)| format!("`{work}`: {what}")),
            cell(line.number("each")),
            beside(theirs, line.number("each")),
        ]
    });
    markdown(&["work", "tickwheel", "tokio"], rows)
}

fn bad_day(measured: &Measured) -> String {
    let get = |scene: &str, peer: &str, key: &str| {
        measured.number("bad-day", &[("scene", scene), ("peer", peer)], key)
    };
    let rows = SCENES.into_iter().filter_map(|(scene, what)| {
        get(scene, "tickwheel", "max_ms")?;
        let late = |peer: &str| {
            let figures = ["p50_ms", "p99_ms", "max_ms"].map(|key| cell(get(scene, peer, key)));
            figures.join(" / ")
        };
        let lag = cell(get(scene, "tickwheel", "lag_ms"));
        Some(vec![what.to_owned(), late("tickwheel"), late("tokio"), lag])
    });
    let head = [
        "late by, ms: p50 / p99 / max",
        "tickwheel",
        "tokio",
        "`max_lag` reports",
    ];
    markdown(&head, rows)
}

/// CPU milliseconds in a second, by how many timeouts a second there are: on one thread, and on two at once.
fn gains(measured: &Measured) -> String {
    let rates = [
        ("100 timeouts a second", 100.0, "quiet-one"),
        ("10,000", 10_000.0, "quiet-one"),
        ("1,000,000", 1e6, "one"),
        ("10,000 on each of two threads", 10_000.0, "quiet-two"),
        ("1,000,000 on each of two threads", 1e6, "two"),
    ];
    let rows = rates.into_iter().filter_map(|(head, rate, work)| {
        let cpu = |peer: &str| {
            let ns = measured.number("figures", &[("work", work), ("peer", peer)], "ns")?;
            Some(ns * rate / 1e6)
        };
        let (ours, theirs) = (cpu("tickwheel")?, cpu("tokio")?);
        Some(vec![
            head.to_owned(),
            figure(ours),
            figure(theirs),
            format!("{:.1}x", theirs / ours),
        ])
    });
    markdown(
        &["CPU ms per second, on each thread", "tickwheel", "tokio", "ratio"],
        rows,
    )
}

/// CPU time of each program, what of it is the timers', and what else it told.
fn real_programs(measured: &Measured) -> String {
    let get = |program: &str, peer: &str, key: &str| {
        measured.number("program", &[("program", program), ("peer", peer)], key)
    };
    let peers = ["none", "tickwheel", "tokio"];
    let rows = PROGRAMS.into_iter().filter_map(|(program, what)| {
        let [none, ours, theirs] = peers.map(|peer| get(program, peer, "cpu_us"));
        let (none, ours, theirs) = (none?, ours?, theirs?);
        let part = match theirs > none {
            true => format!("**{:.2}**", (ours - none) / (theirs - none)),
            false => "–".to_owned(),
        };
        let of_all = |key: &str| {
            let cells = peers.map(|peer| cell(get(program, peer, key)));
            cells.join(" / ")
        };
        let cells = [none, ours, theirs].map(figure);
        let rest = [part, of_all("requests_per_s"), of_all("bytes")];
        Some([what.to_owned()].into_iter().chain(cells).chain(rest).collect())
    });
    let head = [
        "CPU µs per request",
        "without timers",
        "tickwheel",
        "tokio",
        "cost of timers, relative to Tokio's",
        "requests/s, in that order",
        "bytes per connection, in that order",
    ];
    markdown(&head, rows)
}

fn tail(measured: &Measured) -> String {
    let table = |scene: &str| {
        let lines = measured
            .lines("tail")
            .filter(|line| line.get("scene") == Some(scene));
        let rows = lines.map(|line| {
            let cells = ["visits", "p50_us", "p999_us", "max_us", "all_ms"].map(|key| cell(line.number(key)));
            let peer = line.get("peer").unwrap_or("?").to_owned();
            [peer].into_iter().chain(cells).collect()
        });
        let head = ["", "visits", "µs, p50", "p99.9", "maximum", "total, ms"];
        markdown(&head, rows.collect::<Vec<_>>())
    };
    format!(
        "100,000 timers that expire at one tick:\n\n{}\nA million that cascade, and then expire at one tick:\n\n{}",
        table("burst"),
        table("cascade")
    )
}

/// A row for each line that a program printed.
fn programs(measured: &Measured, name: &str, columns: &[(&str, &str)]) -> String {
    let head: Vec<_> = [""]
        .into_iter()
        .chain(columns.iter().map(|(_, head)| *head))
        .collect();
    let rows = measured.lines(name).map(|line| {
        let cells = columns.iter().map(|(key, _)| cell(line.number(key)));
        let peer = line.get("peer").unwrap_or("?").to_owned();
        [peer].into_iter().chain(cells).collect()
    });
    markdown(&head, rows)
}
