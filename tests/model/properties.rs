//! Random programs of sleeps, timeouts, resets, drops and advances in paused time, on wheels of every shape, and the same programs on
//! `tokio::time`.

use crate::support;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest},
};
use tickwheel::{Sleep, Timeout, Wheel};
use tokio::time::Instant;

use support::{
    assert_adds_up, assert_arena_given_back, assert_at_rest, ms, paused_runtime, settle, waker_of,
};

/// One step of a program. Times are in milliseconds, timers in order of their making.
#[derive(Clone, Debug)]
enum Step {
    Sleep {
        after: u64,
        polled: bool,
    },
    SleepUntil {
        after: i64,
        polled: bool,
    },
    Timeout {
        after: u64,
        polled: bool,
    },
    TimeoutAt {
        after: i64,
        polled: bool,
    },
    /// Polls a timer for the first time, or once more, with another waker.
    Poll(usize),
    /// Moves a sleep to so long from now.
    Reset(usize, i64),
    /// Completes the future inside a timeout.
    Complete(usize),
    Drop(usize),
    Advance(u64),
}

/// A few ticks, many ticks, and across every level of a small wheel.
fn span() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 0..20_u64, 4 => 0..500_u64, 2 => 0..20_000_u64, 1 => 0..1_000_000_u64]
}

fn offset() -> impl Strategy<Value = i64> {
    prop_oneof![1 => -500..=0_i64, 6 => span().prop_map(|span| span as i64)]
}

fn step() -> impl Strategy<Value = Step> {
    let any_timer = any::<u16>().prop_map(usize::from);
    let polled = || prop_oneof![5 => Just(true), 1 => Just(false)];
    prop_oneof![
        6 => (span(), polled()).prop_map(|(after, polled)| Step::Sleep { after, polled }),
        3 => (offset(), polled()).prop_map(|(after, polled)| Step::SleepUntil { after, polled }),
        5 => (span(), polled()).prop_map(|(after, polled)| Step::Timeout { after, polled }),
        2 => (offset(), polled()).prop_map(|(after, polled)| Step::TimeoutAt { after, polled }),
        2 => any_timer.clone().prop_map(Step::Poll),
        5 => (any_timer.clone(), offset()).prop_map(|(timer, after)| Step::Reset(timer, after)),
        2 => any_timer.clone().prop_map(Step::Complete),
        2 => any_timer.prop_map(Step::Drop),
        8 => span().prop_map(Step::Advance),
    ]
}

#[derive(Clone, Debug)]
struct Shape {
    tick: u64,
    ticks_per_wheel: usize,
    levels: usize,
    shards: usize,
}

impl Shape {
    fn build(&self) -> Wheel {
        Wheel::builder()
            .tick_duration(ms(self.tick))
            .ticks_per_wheel(self.ticks_per_wheel)
            .levels(self.levels)
            .shards(self.shards)
            .build()
            .unwrap()
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let tick = prop_oneof![Just(1), Just(10), 1..100_u64];
    let ticks_per_wheel = prop_oneof![1..=16_usize, Just(512)];
    (tick, ticks_per_wheel, 1..=4_usize, 1..=4_usize).prop_map(|(tick, ticks_per_wheel, levels, shards)| {
        Shape {
            tick,
            ticks_per_wheel,
            levels,
            shards,
        }
    })
}

/// The future inside a timeout: pending until told otherwise.
#[derive(Clone, Default)]
struct Inner {
    complete: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Inner {
    fn complete(&self) {
        self.complete.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().unwrap().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Future for Inner {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.complete.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        *self.waker.lock().unwrap() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// What programs are run on.
trait Clockwork {
    fn sleep(&self, duration: Duration) -> Timer;
    fn sleep_until(&self, deadline: Instant) -> Timer;
    fn timeout(&self, duration: Duration, inner: Inner) -> Timer;
    fn timeout_at(&self, deadline: Instant, inner: Inner) -> Timer;
}

enum Timer {
    WheelSleep(Sleep),
    WheelTimeout(Timeout<Inner>),
    TokioSleep(Pin<Box<tokio::time::Sleep>>),
    TokioTimeout(Pin<Box<tokio::time::Timeout<Inner>>>),
}

impl Clockwork for Wheel {
    fn sleep(&self, duration: Duration) -> Timer {
        Timer::WheelSleep(self.sleep(duration))
    }
    fn sleep_until(&self, deadline: Instant) -> Timer {
        Timer::WheelSleep(self.sleep_until(deadline))
    }
    fn timeout(&self, duration: Duration, inner: Inner) -> Timer {
        Timer::WheelTimeout(self.timeout(duration, inner))
    }
    fn timeout_at(&self, deadline: Instant, inner: Inner) -> Timer {
        Timer::WheelTimeout(self.timeout_at(deadline, inner))
    }
}

struct Tokio;

impl Clockwork for Tokio {
    fn sleep(&self, duration: Duration) -> Timer {
        Timer::TokioSleep(Box::pin(tokio::time::sleep(duration)))
    }
    fn sleep_until(&self, deadline: Instant) -> Timer {
        Timer::TokioSleep(Box::pin(tokio::time::sleep_until(deadline)))
    }
    fn timeout(&self, duration: Duration, inner: Inner) -> Timer {
        Timer::TokioTimeout(Box::pin(tokio::time::timeout(duration, inner)))
    }
    fn timeout_at(&self, deadline: Instant, inner: Inner) -> Timer {
        Timer::TokioTimeout(Box::pin(tokio::time::timeout_at(deadline, inner)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Elapsed,
    Completed,
}

impl Timer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Timer::WheelSleep(sleep) => Pin::new(sleep).poll(cx).map(|()| Outcome::Elapsed),
            Timer::WheelTimeout(timeout) => Pin::new(timeout).poll(cx).map(|outcome| match outcome {
                Ok(()) => Outcome::Completed,
                Err(_) => Outcome::Elapsed,
            }),
            Timer::TokioSleep(sleep) => sleep.as_mut().poll(cx).map(|()| Outcome::Elapsed),
            Timer::TokioTimeout(timeout) => timeout
                .as_mut()
                .poll(cx)
                .map(|outcome| outcome.map_or(Outcome::Elapsed, |()| Outcome::Completed)),
        }
    }

    fn reset(&mut self, deadline: Instant) -> bool {
        match self {
            Timer::WheelSleep(sleep) => sleep.reset(deadline),
            Timer::TokioSleep(sleep) => sleep.as_mut().reset(deadline),
            Timer::WheelTimeout(_) | Timer::TokioTimeout(_) => return false,
        }
        true
    }
}

/// What is known of one timer of a running program.
struct Account {
    timer: Option<Timer>,
    inner: Inner,
    /// When it is due; of a `timeout` that has not been polled, for how long it will wait.
    due: Due,
    polled: bool,
    was_reset: bool,
    finished: Option<(Outcome, Instant)>,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    At(Instant),
    After(Duration),
}

type Woken = Arc<Mutex<VecDeque<usize>>>;

struct Execution<'a> {
    clockwork: &'a dyn Clockwork,
    /// How late a timer may be.
    tick: Duration,
    /// Timers are polled only when they are woken; or all of them after each advance, and without a yield in between.
    by_wakes: bool,
    accounts: Vec<Account>,
    woken: Woken,
    /// What elapsed in the step under way by being woken, in that order.
    elapsed: Vec<usize>,
}

fn from_now(now: Instant, after: i64) -> Instant {
    let span = ms(after.unsigned_abs());
    if after < 0 { now - span } else { now + span }
}

impl Execution<'_> {
    fn start(&mut self, timer: Timer, inner: Inner, due: Due, polled: bool) {
        self.accounts.push(Account {
            timer: Some(timer),
            inner,
            due,
            polled: false,
            was_reset: false,
            finished: None,
        });
        if polled {
            self.poll(self.accounts.len() - 1);
        }
    }

    /// Polls one timer, with a waker of its own for each poll, and compares what comes of it with what was promised.
    fn poll(&mut self, at: usize) -> bool {
        let account = &mut self.accounts[at];
        if account.finished.is_some() {
            return false;
        }
        let Some(timer) = &mut account.timer else {
            return false;
        };
        let now = Instant::now();
        account.polled = true;
        if let Due::After(duration) = account.due {
            account.due = Due::At(now + duration);
        }
        let Due::At(deadline) = account.due else {
            unreachable!()
        };
        let woken = self.woken.clone();
        let waker = waker_of(move || woken.lock().unwrap().push_back(at));
        let Poll::Ready(outcome) = timer.poll(&mut Context::from_waker(&waker)) else {
            assert!(
                !account.inner.complete.load(Ordering::SeqCst),
                "timer {at} kept what was complete"
            );
            return false;
        };
        if outcome == Outcome::Elapsed {
            assert!(now >= deadline, "timer {at} was {:?} early", deadline - now);
        } else {
            assert!(account.inner.complete.load(Ordering::SeqCst));
        }
        account.finished = Some((outcome, now));
        outcome == Outcome::Elapsed
    }

    /// Polls whatever was woken, as an executor would.
    fn poll_woken(&mut self) {
        loop {
            let next = self.woken.lock().unwrap().pop_front();
            let Some(at) = next else { return };
            // Tokio's keeps its waker over a reset after completion; this crate's has to be polled again.
            if self.accounts[at].polled && self.poll(at) {
                self.elapsed.push(at);
            }
        }
    }

    /// After time has passed, nothing may still be pending that was due a tick ago.
    fn assert_in_time(&self, now: Instant) {
        for (at, account) in self.accounts.iter().enumerate() {
            let waits = account.polled && account.finished.is_none() && account.timer.is_some();
            if let (true, Due::At(deadline)) = (waits, account.due) {
                assert!(
                    now < deadline + self.tick,
                    "timer {at} is {:?} late",
                    now - deadline
                );
            }
        }
    }

    /// What a single jump woke came in order of deadline, to the tick.
    fn assert_in_order(&mut self) {
        let mut latest: Option<Instant> = None;
        for at in self.elapsed.drain(..) {
            let Account {
                due: Due::At(deadline),
                was_reset: false,
                ..
            } = self.accounts[at]
            else {
                continue;
            };
            if let Some(latest) = latest {
                assert!(
                    deadline + self.tick > latest,
                    "timer {at} came {:?} too late",
                    latest - deadline
                );
            }
            latest = latest.max(Some(deadline));
        }
    }

    async fn step(&mut self, step: &Step) {
        let now = Instant::now();
        let timers = self.accounts.len();
        let inner = Inner::default();
        self.elapsed.clear();
        match *step {
            Step::Sleep { after, polled } => {
                let timer = self.clockwork.sleep(ms(after));
                self.start(timer, inner, Due::At(now + ms(after)), polled);
            }
            Step::SleepUntil { after, polled } => {
                let deadline = from_now(now, after);
                self.start(
                    self.clockwork.sleep_until(deadline),
                    inner,
                    Due::At(deadline),
                    polled,
                );
            }
            Step::Timeout { after, polled } => {
                let timer = self.clockwork.timeout(ms(after), inner.clone());
                self.start(timer, inner, Due::After(ms(after)), polled);
            }
            Step::TimeoutAt { after, polled } => {
                let deadline = from_now(now, after);
                let timer = self.clockwork.timeout_at(deadline, inner.clone());
                self.start(timer, inner, Due::At(deadline), polled);
            }
            Step::Poll(timer) if timers > 0 => {
                self.poll(timer % timers);
            }
            Step::Reset(timer, after) if timers > 0 => {
                let account = &mut self.accounts[timer % timers];
                let deadline = from_now(now, after);
                let Some(timer) = &mut account.timer else { return };
                if timer.reset(deadline) {
                    account.due = Due::At(deadline);
                    account.was_reset = true;
                    // One that had finished has to be polled again.
                    account.polled &= account.finished.take().is_none();
                }
            }
            Step::Complete(timer) if timers > 0 => {
                let account = &self.accounts[timer % timers];
                if let Some(Timer::WheelTimeout(_) | Timer::TokioTimeout(_)) = &account.timer {
                    account.inner.complete();
                }
                settle().await;
                self.poll_woken();
            }
            Step::Drop(timer) if timers > 0 => {
                self.accounts[timer % timers].timer = None;
            }
            Step::Advance(span) => {
                tokio::time::advance(ms(span)).await;
                if self.by_wakes {
                    settle().await;
                    self.poll_woken();
                    self.assert_in_order();
                } else {
                    let polled: Vec<_> = (0..timers).filter(|&at| self.accounts[at].polled).collect();
                    for at in polled {
                        self.poll(at);
                    }
                }
                self.assert_in_time(Instant::now());
            }
            _ => {}
        }
    }

    fn outcomes(&self, start: Instant) -> Vec<Option<(Outcome, Duration)>> {
        let outcome = |account: &Account| account.finished.map(|(outcome, at)| (outcome, at - start));
        self.accounts.iter().map(outcome).collect()
    }
}

/// Runs a future in paused time, without the cooperative budget, in which a program's polls do not belong.
fn in_paused_time<T>(future: impl Future<Output = T>) -> T {
    paused_runtime().block_on(tokio::task::unconstrained(future))
}

async fn execute(
    clockwork: &dyn Clockwork,
    tick: Duration,
    by_wakes: bool,
    program: &[Step],
    mut at_each_step: impl FnMut(),
) -> Vec<Option<(Outcome, Duration)>> {
    let start = Instant::now();
    let mut execution = Execution {
        clockwork,
        tick,
        by_wakes,
        accounts: Vec::new(),
        woken: Woken::default(),
        elapsed: Vec::new(),
    };
    for step in program.iter().chain([&Step::Advance(0)]) {
        execution.step(step).await;
        at_each_step();
    }
    execution.outcomes(start)
}

/// Grows the arena of this thread's shard far beyond what an empty one keeps, and lets all of it go again: the memory goes
/// back only if no cell is held by anybody else.
async fn assert_arena_empty(wheel: &Wheel) {
    let mut burst: Vec<_> = (0..2_000).map(|_| wheel.sleep(ms(100_000))).collect();
    for sleep in &mut burst {
        assert!(futures::poll!(sleep).is_pending());
    }
    drop(burst);
    assert_at_rest(wheel);
    assert_arena_given_back(wheel);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_timer_is_early_or_a_tick_late_or_out_of_order_or_left_behind(
        shape in shape(),
        by_wakes in any::<bool>(),
        program in vec(step(), 1..80),
    ) {
        in_paused_time(async {
            let wheel = shape.build();
            execute(&wheel, ms(shape.tick), by_wakes, &program, || assert_adds_up(&wheel)).await;
            assert_at_rest(&wheel);
            assert_arena_empty(&wheel).await;
        });
    }

    #[test]
    fn programs_on_the_grid_of_ticks_end_as_they_do_on_tokio(
        shape in shape(),
        program in vec(step(), 1..80),
    ) {
        // With all times on multiples of a tick, nothing is left to rounding, and outcomes are the same to the instant.
        let tick = shape.tick;
        let signed = tick as i64;
        let on_grid = |span: u64| span / 10 * tick;
        let program: Vec<_> = program
            .into_iter()
            .map(|step| match step {
                Step::Sleep { after, polled } => Step::Sleep { after: on_grid(after), polled },
                Step::SleepUntil { after, polled } => Step::SleepUntil { after: after / 10 * signed, polled },
                // Tokio's counts from the call, this crate's from the first poll that finds its future pending.
                Step::Timeout { after, .. } => Step::Timeout {
                    after: on_grid(after),
                    polled: true,
                },
                Step::TimeoutAt { after, polled } => Step::TimeoutAt { after: after / 10 * signed, polled },
                Step::Reset(timer, after) => Step::Reset(timer, after / 10 * signed),
                Step::Advance(span) => Step::Advance(on_grid(span)),
                other => other,
            })
            .collect();
        let on_wheel = in_paused_time(execute(&shape.build(), ms(tick), true, &program, || {}));
        let on_tokio = in_paused_time(execute(&Tokio, ms(2), true, &program, || {}));
        assert_eq!(on_wheel, on_tokio);
    }

    #[test]
    fn tasks_that_sleep_reset_and_give_up_finish_within_a_tick_of_those_on_tokio(
        shape in shape(),
        tasks in vec((span(), vec((1..2_000_u64, span()), 0..4), any::<bool>()), 1..20),
    ) {
        let run = |clockwork: &dyn Clockwork| {
            in_paused_time(async {
                let start = Instant::now();
                let running = tasks.iter().map(|task| task_of(clockwork, start, task));
                futures::future::join_all(running).await
            })
        };
        let wheel = shape.build();
        let (on_wheel, on_tokio) = (run(&wheel), run(&Tokio));
        assert_at_rest(&wheel);
        for (at, (wheel, tokio)) in on_wheel.into_iter().zip(on_tokio).enumerate() {
            // A reset or an end between a deadline and the next tick finds one of the two elapsed: either is right.
            let Some((wheel, tokio)) = wheel.zip(tokio) else { continue };
            let (wheel, tokio) = (wheel.as_millis(), tokio.as_millis());
            let tick = u128::from(shape.tick);
            assert!(wheel + 1 >= tokio, "task {at} ended at {wheel} ms, on Tokio at {tokio}");
            assert!(wheel < tokio + tick, "task {at} ended at {wheel} ms, on Tokio at {tokio}");
        }
    }
}

/// What is done to one sleep, in milliseconds from now.
#[derive(Clone, Copy, Debug)]
enum Move {
    Poll,
    Reset(u64),
    Advance(u64),
}

fn one_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        Just(Move::Poll),
        (0..40_u64).prop_map(Move::Reset),
        (0..30_u64).prop_map(Move::Advance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_sleep_has_elapsed_whenever_tokios_has(moves in vec(one_move(), 1..30)) {
        in_paused_time(async {
            let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
            // From here on the grids of the two are one.
            wheel.sleep(ms(1)).await;
            let deadline = Instant::now() + ms(20);
            let mut ours = wheel.sleep_until(deadline);
            let mut tokios = Box::pin(tokio::time::sleep_until(deadline));
            let cx = &mut Context::from_waker(Waker::noop());
            for (at, step) in moves.iter().enumerate() {
                match *step {
                    Move::Poll => {
                        let (ours, tokios) = (Pin::new(&mut ours).poll(cx), tokios.as_mut().poll(cx));
                        assert_eq!(ours, tokios, "polled as step {at} of {moves:?}");
                    }
                    Move::Reset(after) => {
                        let deadline = Instant::now() + ms(after);
                        ours.reset(deadline);
                        tokios.as_mut().reset(deadline);
                    }
                    Move::Advance(span) => {
                        tokio::time::advance(ms(span)).await;
                        settle().await;
                    }
                }
                let (ours, tokios) = (ours.is_elapsed(), tokios.is_elapsed());
                assert_eq!(ours, tokios, "after step {at} of {moves:?}");
            }
        });
    }
}

/// Sleeps, is reset at its appointed times, and is given up at the last of them or waits to the end. Tells when it elapsed;
/// `None` where it was given up, or where a reset fell so close behind a deadline that a tick decides what came first.
async fn task_of(
    clockwork: &dyn Clockwork,
    start: Instant,
    (first, resets, gives_up): &(u64, Vec<(u64, u64)>, bool),
) -> Option<Duration> {
    const CLOSE: Duration = ms(101);
    let mut deadline = start + ms(*first);
    let mut timer = clockwork.sleep(ms(*first));
    let mut reset_at = start;
    for &(pause, after) in resets {
        reset_at += ms(pause);
        let mut alarm = Box::pin(tokio::time::sleep_until(reset_at));
        let elapsed = poll_fn(|cx| {
            if timer.poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            alarm.as_mut().poll(cx).map(|()| false)
        })
        .await;
        if reset_at + ms(1) >= deadline && reset_at <= deadline + CLOSE {
            return None;
        }
        if elapsed {
            return Some(start.elapsed());
        }
        deadline = reset_at + ms(after);
        timer.reset(deadline);
    }
    if *gives_up && !resets.is_empty() {
        return None;
    }
    poll_fn(|cx| timer.poll(cx)).await;
    Some(start.elapsed())
}
