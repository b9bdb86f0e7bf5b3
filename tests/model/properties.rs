//! Random programs of sleeps, timeouts, resets, drops and advances in paused time, on wheels of every shape.
//! Beside `tokio::time` they are run in `twins`.

use crate::support;

use std::{
    collections::VecDeque,
    future::Future,
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

enum Timer {
    Sleep(Sleep),
    Timeout(Timeout<Inner>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Elapsed,
    Completed,
}

impl Timer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Timer::Sleep(sleep) => Pin::new(sleep).poll(cx).map(|()| Outcome::Elapsed),
            Timer::Timeout(timeout) => Pin::new(timeout).poll(cx).map(|outcome| match outcome {
                Ok(()) => Outcome::Completed,
                Err(_) => Outcome::Elapsed,
            }),
        }
    }

    fn reset(&mut self, deadline: Instant) -> bool {
        match self {
            Timer::Sleep(sleep) => sleep.reset_at(deadline),
            Timer::Timeout(_) => return false,
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
    finished: bool,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    At(Instant),
    After(Duration),
}

type Woken = Arc<Mutex<VecDeque<usize>>>;

struct Execution<'a> {
    wheel: &'a Wheel,
    /// How late a timer may be.
    tick: Duration,
    /// Timers are polled only when they are woken; or all of them after each advance, and without a yield in
    /// between.
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
            finished: false,
        });
        if polled {
            self.poll(self.accounts.len() - 1);
        }
    }

    /// Polls one timer, with a waker of its own for each poll, and compares what comes of it with what was
    /// promised.
    fn poll(&mut self, at: usize) -> bool {
        let account = &mut self.accounts[at];
        if account.finished {
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
        account.finished = true;
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
            let waits = account.polled && !account.finished && account.timer.is_some();
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
                let timer = Timer::Sleep(self.wheel.sleep(ms(after)));
                self.start(timer, inner, Due::At(now + ms(after)), polled);
            }
            Step::SleepUntil { after, polled } => {
                let deadline = from_now(now, after);
                self.start(
                    Timer::Sleep(self.wheel.sleep_until(deadline)),
                    inner,
                    Due::At(deadline),
                    polled,
                );
            }
            Step::Timeout { after, polled } => {
                let timer = Timer::Timeout(self.wheel.timeout(ms(after), inner.clone()));
                self.start(timer, inner, Due::After(ms(after)), polled);
            }
            Step::TimeoutAt { after, polled } => {
                let deadline = from_now(now, after);
                let timer = Timer::Timeout(self.wheel.timeout_at(deadline, inner.clone()));
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
                    account.polled &= !std::mem::take(&mut account.finished);
                }
            }
            Step::Complete(timer) if timers > 0 => {
                let account = &self.accounts[timer % timers];
                if let Some(Timer::Timeout(_)) = &account.timer {
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
}

/// Runs a future in paused time, without the cooperative budget, in which a program's polls do not belong.
fn in_paused_time<T>(future: impl Future<Output = T>) -> T {
    paused_runtime().block_on(tokio::task::unconstrained(future))
}

async fn execute(
    wheel: &Wheel,
    tick: Duration,
    by_wakes: bool,
    program: &[Step],
    mut at_each_step: impl FnMut(),
) {
    let mut execution = Execution {
        wheel,
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
}

/// Grows the arena of this thread's shard far beyond what an empty one keeps, and lets all of it go again:
/// the memory goes back only if no cell is held by anybody else.
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
                        ours.reset_at(deadline);
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
