//! Random scripts under a test's clock, each played by twins in one runtime: on `tokio::time`, on
//! `tickwheel::time` and on a wheel of its own, of any shape. Whatever ends, ends at the same instant for all
//! three, however the clock is paused and moved, and whether it began to wait before or after.
//!
//! `TICKWHEEL_TWINS` is another number of scripts, and `TICKWHEEL_TWINS_SEED` the seed of the first.

use std::{
    env,
    future::{Future, pending},
    pin::pin,
    task::Poll,
};

use tickwheel::Wheel;
use tokio::{
    runtime::Runtime,
    task::{JoinSet, yield_now},
    time::{Duration, Instant, MissedTickBehavior},
};

use crate::support::{DAY, SECOND, ms, paused_runtime, random::Random, real_runtime, register, settle};

/// The scripts of a run, unless `TICKWHEEL_TWINS` says otherwise.
const SCRIPTS: u64 = 400;

/// What happened, and when since the script began.
type Log = Vec<(&'static str, Duration)>;

/// The instant for which a tick comes, and not one at which something came.
const TICK_FOR: &str = "begun: tick for";

/// What a task that began before the pause waited for, and when it came.
type Waited = Vec<(&'static str, Instant)>;

/// A thing that a task does.
#[derive(Clone, Debug)]
enum Step {
    Sleep(Duration),
    SleepUntil(Offset),
    Timeout(Duration, Inner),
    TimeoutAt(Offset, Inner),
    /// A timeout in a timeout, around a sleep.
    Nested(Duration, Duration, Duration),
    /// A sleep that is reset once it has elapsed, and awaited again.
    Again(Duration, Offset),
    /// A sleep that is polled, and dropped.
    Dropped(Duration),
    /// A sleep that is reset some times, polled or not in between, and then awaited.
    Reset {
        duration: Duration,
        polled: bool,
        resets: Vec<(Duration, Offset, bool)>,
    },
    Interval {
        first: Option<Offset>,
        period: Duration,
        behavior: MissedTickBehavior,
        /// What is done between two ticks.
        rounds: Vec<(Between, Duration)>,
    },
    /// Ticks push back a deadline until one of them comes too late for that.
    Select {
        period: Duration,
        idle: Duration,
        push: Duration,
        rounds: u64,
    },
    /// A limit around each tick of an interval.
    Limited {
        period: Duration,
        limit: Duration,
        rounds: u64,
    },
    /// A sleep that is polled here, and then awaited by another task.
    Moved(Duration),
    Join(Vec<Duration>),
    Yield,
}

/// What a timeout is around.
#[derive(Clone, Copy, Debug)]
enum Inner {
    Sleep(Duration),
    Ready,
    Never,
    /// Wakes its task so many times.
    Yields(u64),
}

/// What waits for an instant that was set on the real clock.
#[derive(Clone, Copy, Debug)]
enum Begun {
    Sleep,
    Timeout,
    /// An interval of this period, which starts there.
    Interval(Duration),
}

/// An instant before or after the present one.
#[derive(Clone, Copy, Debug)]
enum Offset {
    Before(Duration),
    After(Duration),
}

impl Offset {
    fn instant(self) -> Instant {
        match self {
            Offset::Before(duration) => Instant::now() - duration,
            Offset::After(duration) => Instant::now() + duration,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    Work,
    Reset,
    ResetImmediately,
    ResetAfter,
    ResetAt(Offset),
    /// The interval is reset while a tick is awaited.
    ResetAwaited,
}

/// How the clock comes to be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    FromTheStart,
    /// From the start, and then moved on into a millisecond.
    WithinAMillisecond,
    /// By hand, somewhere in a millisecond, before the wheels have been used.
    Unused,
    /// The same, with timers pending that were set on the real clock.
    Used,
    /// The same, after some of these have fired.
    Fired,
}

impl Pause {
    fn is_from_the_start(self) -> bool {
        matches!(self, Pause::FromTheStart | Pause::WithinAMillisecond)
    }
}

#[derive(Debug)]
struct Script {
    pause: Pause,
    tasks: Vec<Vec<Step>>,
    /// By how much the clock is moved, and after which time.
    moves: Vec<(Duration, Duration)>,
    /// What waits already when the clock is paused, and until when.
    begun: Vec<(Begun, Duration)>,
    /// The shards, levels and ticks of the own wheel.
    shape: [usize; 3],
}

/// Durations of every size, whole milliseconds and fractions.
fn duration(random: &mut Random) -> Duration {
    let fraction = Duration::from_nanos(random.below(1_000_000));
    match random.below(12) {
        0 => Duration::ZERO,
        1 => Duration::from_nanos(random.below(3)),
        2 => fraction,
        3 => ms(1),
        4..7 => ms(random.below(20)),
        7..9 => ms(random.below(50)) + fraction,
        9 => ms(random.below(2_000)),
        10 => ms(random.below(2_000)) + fraction,
        _ => ms(random.below(300_000)) + fraction,
    }
}

fn offset(random: &mut Random) -> Offset {
    if random.one_in(3) {
        Offset::Before(random.within(ms(3)))
    } else {
        Offset::After(duration(random))
    }
}

fn period(random: &mut Random) -> Duration {
    ms(random.below(20)) + Duration::from_nanos(1 + random.below(1_000_000))
}

fn between(random: &mut Random) -> Between {
    match random.below(9) {
        0..3 => Between::Nothing,
        3 | 4 => Between::Work,
        5 => [Between::Reset, Between::ResetAwaited][random.below(2) as usize],
        6 => Between::ResetImmediately,
        7 => Between::ResetAfter,
        _ => Between::ResetAt(offset(random)),
    }
}

fn inner(random: &mut Random) -> Inner {
    match random.below(6) {
        0 => Inner::Ready,
        1 => Inner::Never,
        2 => Inner::Yields(1 + random.below(4)),
        _ => Inner::Sleep(duration(random)),
    }
}

fn step(random: &mut Random) -> Step {
    match random.below(17) {
        0 | 1 => Step::Sleep(duration(random)),
        2 => Step::SleepUntil(offset(random)),
        3 => Step::Timeout(duration(random), inner(random)),
        4 => Step::TimeoutAt(offset(random), inner(random)),
        5 | 6 => Step::Reset {
            duration: duration(random),
            polled: random.one_in(2),
            resets: (0..=random.below(3))
                .map(|_| (random.within(ms(4)), offset(random), random.one_in(2)))
                .collect(),
        },
        7 | 8 => Step::Interval {
            first: random.one_in(2).then(|| offset(random)),
            period: period(random),
            behavior: [
                MissedTickBehavior::Burst,
                MissedTickBehavior::Delay,
                MissedTickBehavior::Skip,
            ][random.below(3) as usize],
            rounds: (0..random.below(8))
                .map(|_| (between(random), duration(random) / 8))
                .collect(),
        },
        9 => Step::Select {
            period: period(random),
            idle: duration(random),
            push: duration(random) / 8,
            rounds: 1 + random.below(6),
        },
        10 => Step::Join((0..=random.below(5)).map(|_| duration(random)).collect()),
        11 => Step::Limited {
            period: period(random),
            limit: duration(random) / 8,
            rounds: 1 + random.below(6),
        },
        12 => Step::Moved(duration(random)),
        13 => Step::Nested(duration(random), duration(random), duration(random)),
        14 => Step::Again(duration(random), offset(random)),
        15 => Step::Dropped(duration(random)),
        _ => Step::Yield,
    }
}

fn begun(random: &mut Random) -> (Begun, Duration) {
    let begun = match random.below(3) {
        0 => Begun::Sleep,
        1 => Begun::Timeout,
        _ => Begun::Interval(period(random)),
    };
    (begun, duration(random))
}

fn script(random: &mut Random) -> Script {
    Script {
        pause: match random.below(16) {
            0..4 => Pause::FromTheStart,
            4..7 => Pause::WithinAMillisecond,
            7..10 => Pause::Unused,
            10..15 => Pause::Used,
            _ => Pause::Fired,
        },
        tasks: (0..=random.below(3))
            .map(|_| (0..=random.below(5)).map(|_| step(random)).collect())
            .collect(),
        moves: (0..random.below(4))
            .map(|_| (duration(random), duration(random)))
            .collect(),
        begun: (0..random.below(4)).map(|_| begun(random)).collect(),
        shape: [
            1 << random.below(3),
            1 + random.below(6) as usize,
            2 << random.below(9),
        ],
    }
}

/// Tokio's own timers, the first sleep of each task so much longer.
#[derive(Clone, Copy)]
struct Tokios {
    longer: Duration,
}

/// Those of the global wheel.
#[derive(Clone, Copy)]
struct Globals;

macro_rules! timers_of {
    ($timers:ty: $($time:ident)::+) => {
        impl $timers {
            fn sleep(&self, duration: Duration) -> $($time)::+::Sleep {
                $($time)::+::sleep(duration)
            }
            fn sleep_until(&self, deadline: Instant) -> $($time)::+::Sleep {
                $($time)::+::sleep_until(deadline)
            }
            fn timeout<F: Future>(&self, duration: Duration, future: F) -> $($time)::+::Timeout<F> {
                $($time)::+::timeout(duration, future)
            }
            fn timeout_at<F: Future>(&self, deadline: Instant, future: F) -> $($time)::+::Timeout<F> {
                $($time)::+::timeout_at(deadline, future)
            }
            fn interval(&self, period: Duration) -> $($time)::+::Interval {
                $($time)::+::interval(period)
            }
            fn interval_at(&self, start: Instant, period: Duration) -> $($time)::+::Interval {
                $($time)::+::interval_at(start, period)
            }
        }
    };
}
timers_of!(Tokios: tokio::time);
timers_of!(Globals: tickwheel::time);

/// The outcome of a timer that does not fail here, whether or not its type says so.
trait Ended<T> {
    fn ended(self) -> T;
}

impl Ended<Instant> for Instant {
    fn ended(self) -> Instant {
        self
    }
}

impl<E: std::error::Error> Ended<Instant> for Result<Instant, E> {
    fn ended(self) -> Instant {
        self.unwrap()
    }
}

/// Makes what a timeout is around.
macro_rules! limited {
    ($timers:expr, $inner:expr) => {
        async {
            match $inner {
                Inner::Sleep(duration) => drop($timers.sleep(duration).await),
                Inner::Ready => {}
                Inner::Never => pending().await,
                Inner::Yields(times) => {
                    for _ in 0..times {
                        yield_now().await;
                    }
                }
            }
        }
    };
}

/// Plays what a task does, on the timers of one of the twins. They have the same names, but no trait in
/// common.
macro_rules! play {
    ($timers:expr, $steps:expr, $start:expr) => {{
        let (timers, steps, start) = ($timers, $steps, $start);
        async move {
            let mut log = Log::new();
            for step in steps {
                let what = match step {
                    Step::Sleep(duration) => {
                        let _ = timers.sleep(duration).await;
                        "sleep"
                    }
                    Step::SleepUntil(offset) => {
                        let _ = timers.sleep_until(offset.instant()).await;
                        "sleep_until"
                    }
                    Step::Timeout(limit, inner) => {
                        let inner = limited!(timers, inner);
                        if timers.timeout(limit, inner).await.is_ok() {
                            "timeout: in time"
                        } else {
                            "timeout: elapsed"
                        }
                    }
                    Step::TimeoutAt(limit, inner) => {
                        let inner = limited!(timers, inner);
                        if timers.timeout_at(limit.instant(), inner).await.is_ok() {
                            "timeout_at: in time"
                        } else {
                            "timeout_at: elapsed"
                        }
                    }
                    Step::Nested(outer, inner, duration) => {
                        let inner = timers.timeout(inner, timers.sleep(duration));
                        match timers.timeout(outer, inner).await {
                            Ok(Ok(_)) => "nested: in time",
                            Ok(Err(_)) => "nested: the inner one elapsed",
                            Err(_) => "nested: the outer one elapsed",
                        }
                    }
                    Step::Again(duration, to) => {
                        let mut sleep = pin!(timers.sleep(duration));
                        sleep.as_mut().await;
                        log.push(("again: first", start.elapsed()));
                        if sleep.is_elapsed() {
                            log.push(("again: is elapsed", start.elapsed()));
                        }
                        sleep.as_mut().reset(to.instant());
                        log.push((
                            "again: deadline",
                            sleep.deadline().saturating_duration_since(start),
                        ));
                        sleep.as_mut().await;
                        "again"
                    }
                    Step::Dropped(duration) => {
                        if polled_once(timers.sleep(duration)).await {
                            "dropped: done"
                        } else {
                            "dropped"
                        }
                    }
                    Step::Reset {
                        duration,
                        polled,
                        resets,
                    } => {
                        let mut sleep = pin!(timers.sleep(duration));
                        if polled && polled_once(sleep.as_mut()).await {
                            log.push(("polled: done", start.elapsed()));
                        }
                        for (before, to, polled) in resets {
                            tokio::time::sleep(before).await;
                            sleep.as_mut().reset(to.instant());
                            if polled && polled_once(sleep.as_mut()).await {
                                log.push(("polled after a reset: done", start.elapsed()));
                            }
                        }
                        let _ = sleep.as_mut().await;
                        "reset"
                    }
                    Step::Interval {
                        first,
                        period,
                        behavior,
                        rounds,
                    } => {
                        let mut interval = match first {
                            Some(first) => timers.interval_at(first.instant(), period),
                            None => timers.interval(period),
                        };
                        interval.set_missed_tick_behavior(behavior);
                        for (between, span) in rounds {
                            let tick = interval.tick().await.ended();
                            log.push(("tick for", tick.saturating_duration_since(start)));
                            log.push(("tick", start.elapsed()));
                            match between {
                                Between::Nothing => {}
                                Between::Work => drop(timers.sleep(span).await),
                                Between::Reset => interval.reset(),
                                Between::ResetImmediately => interval.reset_immediately(),
                                Between::ResetAfter => interval.reset_after(span),
                                Between::ResetAt(offset) => interval.reset_at(offset.instant()),
                                Between::ResetAwaited => {
                                    if !polled_once(interval.tick()).await {
                                        interval.reset_after(span);
                                    }
                                }
                            }
                        }
                        "interval"
                    }
                    Step::Select {
                        period,
                        idle,
                        push,
                        rounds,
                    } => {
                        let mut interval = timers.interval(period);
                        let mut deadline = pin!(timers.sleep(idle));
                        let mut ticks = 0;
                        loop {
                            tokio::select! {
                                biased;
                                _ = &mut deadline => break,
                                _ = interval.tick() => {
                                    log.push(("select: tick", start.elapsed()));
                                    ticks += 1;
                                    match ticks {
                                        _ if ticks < rounds => deadline.as_mut().reset(Instant::now() + push),
                                        _ if ticks > 3 * rounds => break,
                                        _ => {}
                                    }
                                }
                            }
                        }
                        "select"
                    }
                    Step::Limited {
                        period,
                        limit,
                        rounds,
                    } => {
                        let mut interval = timers.interval(period);
                        for _ in 0..rounds {
                            let what = match timers.timeout(limit, interval.tick()).await {
                                Ok(_) => "limited: tick",
                                Err(_) => "limited: elapsed",
                            };
                            log.push((what, start.elapsed()));
                        }
                        "limited"
                    }
                    Step::Moved(duration) => {
                        let mut sleep = Box::pin(timers.sleep(duration));
                        if !polled_once(sleep.as_mut()).await {
                            let _ = tokio::spawn(sleep).await;
                        }
                        "moved"
                    }
                    Step::Join(durations) => {
                        let sleeps = durations.into_iter().map(|duration| {
                            let sleep = timers.sleep(duration);
                            async move {
                                let _ = sleep.await;
                                start.elapsed()
                            }
                        });
                        for ended in futures::future::join_all(sleeps).await {
                            log.push(("join: one", ended));
                        }
                        "join"
                    }
                    Step::Yield => {
                        yield_now().await;
                        "yield"
                    }
                };
                log.push((what, start.elapsed()));
            }
            log
        }
    }};
}

/// Waits for an instant that was set on the real clock, on the timers of one of the twins.
macro_rules! wait {
    ($timers:expr, $begun:expr, $at:expr) => {{
        let (timers, begun, at) = ($timers, $begun, $at);
        async move {
            let mut log = Vec::new();
            match begun {
                Begun::Sleep => drop(timers.sleep_until(at).await),
                Begun::Timeout => drop(timers.timeout_at(at, pending::<()>()).await),
                Begun::Interval(period) => {
                    let mut interval = timers.interval_at(at, period);
                    for _ in 0..4 {
                        log.push((TICK_FOR, interval.tick().await.ended()));
                        log.push(("begun: tick", Instant::now()));
                    }
                }
            }
            log.push(("begun", Instant::now()));
            log
        }
    }};
}

/// Polls a future once, and returns whether it is ready.
async fn polled_once(future: impl Future) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// The timers that were set before the clock was paused.
async fn pause(pause: Pause, wheel: &Wheel, random: &mut Random) {
    let within = Duration::from_nanos(random.below(1_000_000));
    if pause == Pause::WithinAMillisecond {
        tokio::time::advance(within).await;
    }
    if pause.is_from_the_start() {
        return;
    }
    let begins = Instant::now();
    if matches!(pause, Pause::Used | Pause::Fired) {
        let mut far = (wheel.sleep(DAY), tickwheel::time::sleep(DAY));
        let mut limit = wheel.timeout(SECOND, pending::<()>());
        register(&mut far.0);
        register(&mut far.1);
        register(&mut limit);
        if pause == Pause::Fired {
            let _ = futures::join!(wheel.sleep(ms(1)), tickwheel::time::sleep(ms(1)));
        }
    }
    // A sleep of the thread would be longer, and the same in all scripts.
    while begins.elapsed() < within {
        std::hint::spin_loop();
    }
    tokio::time::pause();
}

/// Plays a script, and returns the logs of Tokio's twin, the global wheel's, the own wheel's, task by task.
fn logs(script: &Script, random: &mut Random, longer: Duration) -> [Vec<Log>; 3] {
    let runtime: Runtime = if script.pause.is_from_the_start() {
        paused_runtime()
    } else {
        real_runtime()
    };
    let [shards, levels, ticks] = script.shape;
    let wheel = Wheel::builder()
        .shards(shards)
        .levels(levels)
        .ticks_per_wheel(ticks);
    let wheel = wheel.build().unwrap();
    runtime.block_on(async {
        let mut begun = JoinSet::new();
        let begins = Instant::now();
        for (number, (what, after)) in script.begun.iter().enumerate() {
            let at = begins + *after;
            let tokios = Tokios { longer };
            let tokios = wait!(tokios, *what, at);
            let globals = wait!(Globals, *what, at);
            let owns = wait!(wheel.clone(), *what, at);
            begun.spawn(async move { (number, 0, tokios.await) });
            begun.spawn(async move { (number, 1, globals.await) });
            begun.spawn(async move { (number, 2, owns.await) });
        }
        if !script.pause.is_from_the_start() {
            settle().await;
        }
        pause(script.pause, &wheel, random).await;
        let paused = Instant::now();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (number, steps) in script.tasks.iter().enumerate() {
            let tokios = Tokios { longer };
            let tokios = play!(tokios, tokios.lengthened(steps.clone()), start);
            let globals = play!(Globals, steps.clone(), start);
            let owns = play!(wheel.clone(), steps.clone(), start);
            tasks.spawn(async move { (number, 0, tokios.await) });
            tasks.spawn(async move { (number, 1, globals.await) });
            tasks.spawn(async move { (number, 2, owns.await) });
        }
        for (after, by) in &script.moves {
            tokio::time::sleep(*after).await;
            settle().await;
            tokio::time::advance(*by).await;
            settle().await;
        }
        let mut logs = [(); 3].map(|()| vec![Log::new(); script.tasks.len() + script.begun.len()]);
        while let Some(task) = tasks.join_next().await {
            let (number, twin, log) = task.unwrap();
            logs[twin][number] = log;
        }
        let mut waited = vec![[(); 3].map(|()| Waited::new()); script.begun.len()];
        while let Some(task) = begun.join_next().await {
            let (number, twin, log) = task.unwrap();
            waited[number][twin] = log;
        }
        for (number, twins) in waited.into_iter().enumerate() {
            // Where the process was preempted for longer than the script waits before the pause, a real clock
            // decided who came first.
            let came = |(what, at): &(_, Instant)| *what != TICK_FOR && *at < paused;
            if twins.iter().flatten().any(came) {
                continue;
            }
            for (twin, log) in twins.into_iter().enumerate() {
                let since = log
                    .into_iter()
                    .map(|(what, at)| (what, at.saturating_duration_since(paused)));
                logs[twin][script.tasks.len() + number] = since.collect();
            }
        }
        logs
    })
}

impl Tokios {
    fn lengthened(&self, mut steps: Vec<Step>) -> Vec<Step> {
        if let Some(Step::Sleep(duration)) = steps.iter_mut().find(|step| matches!(step, Step::Sleep(_))) {
            *duration += self.longer;
        }
        steps
    }
}

fn number_of(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |number| number.parse().unwrap())
}

#[test]
fn twins_end_together() {
    let scripts = number_of("TICKWHEEL_TWINS", SCRIPTS);
    let first = number_of("TICKWHEEL_TWINS_SEED", 0);
    let mut differ = Vec::new();
    for seed in first..first + scripts {
        let mut random = Random::new(seed);
        let script = script(&mut random);
        let [tokios, globals, owns] = logs(&script, &mut random, Duration::ZERO);
        if tokios != globals || tokios != owns {
            if differ.is_empty() {
                println!(
                    "{script:#?}\ntokio::time:     {tokios:?}\ntickwheel::time: {globals:?}\na wheel:         {owns:?}"
                );
            }
            differ.push(seed);
        }
    }
    assert!(
        differ.is_empty(),
        "{} of {scripts} scripts differ, those with these seeds first: {:?}",
        differ.len(),
        &differ[..differ.len().min(20)]
    );
}

/// The tester finds a difference of one millisecond.
#[test]
fn a_twin_that_sleeps_a_millisecond_longer_is_noticed() {
    let script = Script {
        pause: Pause::Unused,
        tasks: vec![vec![Step::Sleep(ms(7)), Step::Yield]],
        moves: Vec::new(),
        begun: Vec::new(),
        shape: [1, 4, 512],
    };
    let mut random = Random::new(1);
    for (longer, equal) in [(Duration::ZERO, true), (ms(1), false)] {
        let [tokios, globals, owns] = logs(&script, &mut random, longer);
        assert_eq!((tokios == globals, tokios == owns), (equal, equal));
    }
}
