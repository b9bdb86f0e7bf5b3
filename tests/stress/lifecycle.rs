//! Races on several threads and the real clock: expiry, cancel, registration and shutdown, each against the
//! others.
//!
//! Whatever the interleaving, a scheduled task is run, cancelled or handed back, and exactly one of these
//! happens exactly once.

use crate::support;

use std::{
    future::{Future, pending},
    hint,
    pin::Pin,
    sync::{
        Arc, Barrier, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    thread,
};

use futures::{future::join_all, poll};
use tickwheel::{Builder, ScheduleError, Scheduled, SleepError, Unprocessed, Wheel};
use tokio::{
    runtime::Runtime,
    time::{Duration, Instant},
};

use support::{assert_at_rest, ms, threaded_runtime, waker_of};

const ROUNDS: usize = 100;
const TASKS: usize = 96;

const MINUTE: Duration = ms(60_000);

fn builder(shards: usize) -> Builder {
    Wheel::builder().tick_duration(ms(1)).shards(shards)
}

fn wheel(shards: usize) -> Wheel {
    builder(shards).build().unwrap()
}

/// Plays rounds until there were enough of them and both sides of the race have won something; `play` says
/// how much each won. On a busy machine one may be done before the other begins.
fn play_until_they_meet(mut play: impl FnMut(usize) -> (usize, usize)) {
    let (mut one, mut other) = (0, 0);
    let mut round = 0;
    while round < ROUNDS || one == 0 || other == 0 {
        let won = play(round);
        (one, other) = (one + won.0, other + won.1);
        round += 1;
    }
}

fn yield_until_at_least(count: &AtomicUsize, least: usize) {
    while count.load(SeqCst) < least {
        thread::yield_now();
    }
}

/// How often each task of a round ran, and whether its future is still there.
struct Round {
    ran: Vec<Arc<AtomicUsize>>,
    total: Arc<AtomicUsize>,
    owned: Vec<Weak<AtomicUsize>>,
}

impl Round {
    fn new(tasks: usize) -> Round {
        let ran: Vec<_> = (0..tasks).map(|_| Arc::<AtomicUsize>::default()).collect();
        Round {
            ran,
            total: Arc::default(),
            owned: Vec::new(),
        }
    }

    /// A round whose tasks have all been scheduled, task n after `delay(n)`.
    fn all_scheduled(wheel: &Wheel, delay: impl Fn(u64) -> Duration) -> (Round, Vec<Scheduled<()>>) {
        let mut round = Round::new(TASKS);
        let handles = (0..TASKS)
            .map(|number| round.schedule(wheel, number, delay(number as u64)))
            .collect();
        (round, handles)
    }

    /// Schedules task `number`.
    fn schedule(&mut self, wheel: &Wheel, number: usize, delay: Duration) -> Scheduled<()> {
        let (task, owned) = self.task(number);
        self.owned.push(owned);
        wheel.schedule(delay, task)
    }

    fn task(&self, number: usize) -> (impl Future<Output = ()> + Send + 'static, Weak<AtomicUsize>) {
        let (ran, total) = (self.ran[number].clone(), self.total.clone());
        let owned = Arc::new(AtomicUsize::new(0));
        let weak = Arc::downgrade(&owned);
        let task = async move {
            ran.fetch_add(1, SeqCst);
            total.fetch_add(1, SeqCst);
            drop(owned);
        };
        (task, weak)
    }

    fn ran(&self, number: usize) -> usize {
        self.ran[number].load(SeqCst)
    }

    fn spin_until_so_many_ran(&self, tasks: usize) {
        while self.total.load(SeqCst) < tasks {
            hint::spin_loop();
            thread::yield_now();
        }
    }

    /// Task `number` has run once, or not at all.
    #[track_caller]
    fn assert_ran(&self, number: usize, once: bool, round: usize) {
        assert_eq!(
            self.ran(number),
            usize::from(once),
            "task {number} of round {round}"
        );
    }

    #[track_caller]
    fn assert_nothing_leaked(&self) {
        let left = self.owned.iter().filter(|owned| owned.strong_count() > 0).count();
        assert_eq!(left, 0, "futures still alive");
    }
}

#[track_caller]
fn assert_at_rest_without_panics(wheel: &Wheel) {
    assert_at_rest(wheel);
    assert_eq!(wheel.metrics().panics, 0);
}

fn wait_for_shutdown(wheel: &Wheel) {
    while !wheel.is_shutdown() {
        thread::yield_now();
    }
}

async fn run_all(unprocessed: Unprocessed) -> usize {
    let handed_back = unprocessed.tasks.len();
    for task in unprocessed.tasks {
        task.await;
    }
    handed_back
}

#[test]
fn shutdown_racing_with_expiry_runs_or_hands_back_each_task_once() {
    let runtime = threaded_runtime(2);
    let _entered = runtime.enter();
    play_until_they_meet(|round| {
        let wheel = wheel(1 + round % 2);
        let (tasks, handles) = Round::all_scheduled(&wheel, |number| ms(2 + 2 * (number % 2)));
        tasks.spin_until_so_many_ran(round % (TASKS / 2));
        let unprocessed = wheel.shutdown();
        let back = runtime.block_on(run_all(unprocessed));
        let outcomes = runtime.block_on(join_all(handles));
        let ok = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let shutdown = outcomes
            .iter()
            .filter(|outcome| **outcome == Err(ScheduleError::Shutdown))
            .count();
        assert_eq!((ok, shutdown), (TASKS - back, back));
        (0..TASKS).for_each(|number| tasks.assert_ran(number, true, round));
        tasks.assert_nothing_leaked();
        assert_at_rest_without_panics(&wheel);
        (ok, back)
    });
}

#[test]
fn shutdown_racing_with_expiry_refuses_each_pending_sleep_or_lets_it_elapse() {
    let runtime = threaded_runtime(2);
    play_until_they_meet(|round| {
        let wheel = wheel(2);
        let [begun, finished] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let sleeps: Vec<_> = (0..TASKS)
            .map(|number| {
                let (wheel, begun, finished) = (wheel.clone(), begun.clone(), finished.clone());
                runtime.spawn(async move {
                    let mut sleep = wheel.try_sleep(ms(5 + 3 * (number as u64 % 2)));
                    // On a busy machine it may be over by then.
                    let first = poll!(&mut sleep);
                    begun.fetch_add(1, SeqCst);
                    let outcome = match first {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => sleep.await,
                    };
                    finished.fetch_add(1, SeqCst);
                    outcome
                })
            })
            .collect();
        yield_until_at_least(&begun, TASKS);
        yield_until_at_least(&finished, round % (TASKS / 2));
        drop(wheel.shutdown());
        let outcomes = runtime.block_on(join_all(sleeps));
        let ok = outcomes
            .iter()
            .filter(|outcome| *outcome.as_ref().unwrap() == Ok(()))
            .count();
        let shutdown = Err(SleepError::Shutdown);
        let shutdown = outcomes
            .iter()
            .filter(|outcome| *outcome.as_ref().unwrap() == shutdown)
            .count();
        assert_eq!(ok + shutdown, TASKS, "round {round}");
        assert_at_rest_without_panics(&wheel);
        (ok, shutdown)
    });
}

#[test]
fn shutdown_racing_with_cancel_cancels_or_hands_back_each_task_once() {
    let runtime = threaded_runtime(2);
    let _entered = runtime.enter();
    play_until_they_meet(|round| {
        let wheel = wheel(1 + round % 2);
        let (tasks, handles) = Round::all_scheduled(&wheel, |_| MINUTE);
        let (barrier, halfway) = (Barrier::new(2), AtomicUsize::new(0));
        let (verdicts, unprocessed) = thread::scope(|scope| {
            let cancels = scope.spawn(|| {
                barrier.wait();
                let cancel = |handle: &Scheduled<()>| {
                    if halfway.fetch_add(1, SeqCst) == TASKS / 2 && round % 10 == 5 {
                        wait_for_shutdown(&wheel);
                    }
                    handle.cancel()
                };
                handles.iter().map(cancel).collect::<Vec<_>>()
            });
            barrier.wait();
            yield_until_at_least(&halfway, round % (TASKS / 2));
            let unprocessed = wheel.shutdown();
            (cancels.join().unwrap(), unprocessed)
        });
        let back = runtime.block_on(run_all(unprocessed));
        for (number, (verdict, handle)) in verdicts.iter().zip(handles).enumerate() {
            assert!(handle.is_cancelled());
            let outcome = runtime.block_on(handle);
            let expected = if *verdict {
                ScheduleError::Cancelled
            } else {
                ScheduleError::Shutdown
            };
            assert_eq!(outcome, Err(expected), "task {number} of round {round}");
            tasks.assert_ran(number, !verdict, round);
        }
        let truths = verdicts.iter().filter(|verdict| **verdict).count();
        assert_eq!(truths + back, TASKS);
        tasks.assert_nothing_leaked();
        assert_at_rest_without_panics(&wheel);
        (truths, back)
    });
}

#[test]
fn shutdown_racing_with_registration_leaves_nobody_hanging_and_loses_no_task() {
    let runtime = threaded_runtime(2);
    play_until_they_meet(|round| {
        let wheel = wheel(2);
        let tasks = Round::new(2 * TASKS);
        let (barrier, made, shutting_down) = (Barrier::new(3), AtomicUsize::new(0), AtomicBool::new(false));
        let register = |half: usize| {
            let _entered = runtime.enter();
            barrier.wait();
            let numbers = half * TASKS..(half + 1) * TASKS;
            let schedule = |number: usize| {
                if number % TASKS == TASKS / 2 && round % 10 == 5 {
                    wait_for_shutdown(&wheel);
                }
                let (task, owned) = tasks.task(number);
                let sleep = runtime.spawn(wheel.try_sleep(MINUTE));
                let handle = wheel.schedule([ms(0), ms(1), MINUTE][number % 3], task);
                made.fetch_add(1, SeqCst);
                (number, handle, owned, sleep, !shutting_down.load(SeqCst))
            };
            numbers.map(schedule).collect::<Vec<_>>()
        };
        let (registered, unprocessed) = thread::scope(|scope| {
            let halves = [0, 1].map(|half| scope.spawn(move || register(half)));
            barrier.wait();
            yield_until_at_least(&made, round % (TASKS / 2));
            shutting_down.store(true, SeqCst);
            let unprocessed = wheel.shutdown();
            let registered = halves.map(|half| half.join().unwrap());
            (registered.into_iter().flatten().collect::<Vec<_>>(), unprocessed)
        });
        let handed_back = runtime.block_on(run_all(unprocessed));
        let (mut resolved, mut refused) = (0, 0);
        for (number, handle, owned, sleep, before) in registered {
            let outcome = runtime.block_on(handle);
            assert!(
                matches!(outcome, Ok(()) | Err(ScheduleError::Shutdown)),
                "{outcome:?}"
            );
            assert_eq!(runtime.block_on(sleep).unwrap(), Err(SleepError::Shutdown));
            let ran = tasks.ran(number);
            if before || outcome.is_ok() {
                assert_eq!(ran, 1, "task {number} of round {round}, {outcome:?}");
            }
            assert!(ran <= 1, "task {number} of round {round}");
            assert_eq!(
                owned.strong_count(),
                0,
                "task {number} of round {round} is still alive"
            );
            resolved += usize::from(outcome.is_ok());
            refused += usize::from(ran == 0);
        }
        let ran = tasks.total.load(SeqCst);
        assert_eq!(resolved + handed_back, ran, "round {round}");
        assert_at_rest_without_panics(&wheel);
        (ran, refused)
    });
}

#[test]
fn shutdowns_racing_with_each_other_share_out_what_there_is() {
    let runtime = threaded_runtime(2);
    let _entered = runtime.enter();
    for round in 0..ROUNDS {
        let wheel = wheel(2);
        let (tasks, handles) = Round::all_scheduled(&wheel, |_| MINUTE);
        let barrier = Barrier::new(3);
        let unprocessed = thread::scope(|scope| {
            let calls = [(); 3].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    wheel.shutdown()
                })
            });
            calls.map(|call| call.join().unwrap())
        });
        for unprocessed in unprocessed {
            runtime.block_on(run_all(unprocessed));
        }
        (0..TASKS).for_each(|number| tasks.assert_ran(number, true, round));
        for handle in handles {
            assert_eq!(runtime.block_on(handle), Err(ScheduleError::Shutdown));
        }
        tasks.assert_nothing_leaked();
        assert_at_rest_without_panics(&wheel);
    }
}

#[test]
fn cancel_racing_with_expiry_is_true_exactly_when_the_task_never_runs() {
    let runtime = threaded_runtime(2);
    let _entered = runtime.enter();
    play_until_they_meet(|round| {
        let wheel = wheel(1 + round % 2);
        let (tasks, handles) = Round::all_scheduled(&wheel, |number| ms(2 + number % 3));
        tasks.spin_until_so_many_ran(round % (TASKS / 3));
        // From the end: the driver comes from the beginning, and they meet.
        let mut verdicts: Vec<_> = handles.iter().rev().map(Scheduled::cancel).collect();
        verdicts.reverse();
        let mut cancelled = 0;
        for (number, (verdict, handle)) in verdicts.into_iter().zip(handles).enumerate() {
            let outcome = runtime.block_on(handle);
            let expected = if verdict {
                Err(ScheduleError::Cancelled)
            } else {
                Ok(())
            };
            assert_eq!(outcome, expected, "task {number} of round {round}");
            tasks.assert_ran(number, !verdict, round);
            cancelled += usize::from(verdict);
        }
        tasks.assert_nothing_leaked();
        assert_at_rest_without_panics(&wheel);
        (cancelled, TASKS - cancelled)
    });
}

#[test]
fn of_two_cancels_at_once_exactly_one_is_true() {
    let runtime = threaded_runtime(2);
    let _entered = runtime.enter();
    for round in 0..ROUNDS {
        let wheel = wheel(2);
        let (tasks, handles) = Round::all_scheduled(&wheel, |_| MINUTE);
        let barrier = Barrier::new(2);
        let cancel_all = || {
            barrier.wait();
            handles.iter().map(Scheduled::cancel).collect::<Vec<_>>()
        };
        let [ours, theirs] = thread::scope(|scope| {
            [(); 2]
                .map(|()| scope.spawn(cancel_all))
                .map(|cancels| cancels.join().unwrap())
        });
        for (number, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
            assert!(ours != theirs, "task {number} of round {round}: {ours}, {theirs}");
        }
        tasks.assert_nothing_leaked();
        assert_at_rest_without_panics(&wheel);
    }
}

#[test]
fn max_pending_is_never_passed_and_all_room_is_freed() {
    const LIMIT: usize = 16;
    let runtime = threaded_runtime(2);
    for shards in [1, 4] {
        let wheel = builder(shards).max_pending(LIMIT).build().unwrap();
        // Counted in after a timer was admitted and out before it is dropped: never more than are pending.
        let (surely_pending, most, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let watching = AtomicBool::new(true);
        let work = |worker: u64| {
            let _entered = runtime.enter();
            let mut kept = std::collections::VecDeque::new();
            for step in 0..3_000_u64 {
                let handle = wheel.schedule(MINUTE, async {});
                if handle.is_cancelled() {
                    refused.fetch_add(1, SeqCst);
                } else {
                    most.fetch_max(surely_pending.fetch_add(1, SeqCst) + 1, SeqCst);
                    kept.push_back(handle);
                }
                // More than the limit at times: each worker meets it, also when it has the machine to itself.
                if kept.len() as u64 > (step * (worker + 3)) % 31 {
                    if let Some(handle) = kept.pop_front() {
                        surely_pending.fetch_sub(1, SeqCst);
                        assert!(handle.cancel());
                    }
                }
            }
            for handle in kept {
                surely_pending.fetch_sub(1, SeqCst);
                assert!(handle.cancel());
            }
        };
        thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while watching.load(SeqCst) {
                    most = most.max(wheel.pending());
                    thread::yield_now();
                }
                most
            });
            let workers = [0, 1, 2, 3].map(|worker| scope.spawn(move || work(worker)));
            for worker in workers {
                worker.join().unwrap();
            }
            watching.store(false, SeqCst);
            let seen = watcher.join().unwrap();
            // Several shards are not looked at all in one moment.
            assert!(shards > 1 || seen <= LIMIT, "{seen} were pending");
        });
        assert!(most.load(SeqCst) <= LIMIT, "{most:?} were pending");
        assert!(refused.load(SeqCst) > 0, "never full");
        assert_eq!(wheel.metrics().rejected, refused.load(SeqCst) as u64);
        assert_at_rest_without_panics(&wheel);
        assert_limit_is(&runtime, &wheel, LIMIT);
    }
}

#[test]
fn max_pending_refuses_nobody_while_there_is_room() {
    const LIMIT: usize = 16;
    let runtime = threaded_runtime(2);
    let wheel = builder(2).max_pending(LIMIT).build().unwrap();
    // Four threads with four each at most: never full.
    let work = || {
        let _entered = runtime.enter();
        for _ in 0..1_000 {
            let handles: Vec<_> = (0..LIMIT / 4).map(|_| wheel.schedule(MINUTE, async {})).collect();
            assert!(
                handles.iter().all(Scheduled::cancel),
                "refused with room to spare"
            );
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(work);
        }
    });
    assert_eq!(wheel.metrics().rejected, 0);
    assert_limit_is(&runtime, &wheel, LIMIT);
}

#[test]
fn max_pending_keeps_count_while_timers_expire_under_those_who_cancel_them() {
    const LIMIT: usize = 64;
    let runtime = threaded_runtime(2);
    let wheel = builder(2).max_pending(LIMIT).build().unwrap();
    let tasks: Vec<_> = (0..8_u64)
        .map(|worker| {
            let wheel = wheel.clone();
            runtime.spawn(async move {
                for step in 0..300_u64 {
                    // Long and short by turns: some expire, some are dropped in the very tick they are due.
                    let (short, long) = (1 + step % 2, 1 + (step + worker) % 3);
                    tokio::select! {
                        _ = wheel.try_sleep(ms(short)) => {}
                        _ = wheel.try_sleep(ms(long)) => {}
                        _ = wheel.schedule(ms(long), async {}) => {}
                        _ = wheel.try_timeout(ms(short), std::future::pending::<()>()) => {}
                    }
                }
            })
        })
        .collect();
    for outcome in runtime.block_on(join_all(tasks)) {
        outcome.unwrap();
    }
    // The last of the detached tasks have yet to run.
    while wheel.pending() > 0 {
        thread::yield_now();
    }
    let metrics = wheel.metrics();
    assert!(metrics.expired > 0 && metrics.cancelled > 0, "{metrics:?}");
    assert_at_rest_without_panics(&wheel);
    assert_limit_is(&runtime, &wheel, LIMIT);
}

/// Another thread drops the handle as the driver spawns the task, a little later from round to round.
#[test]
fn a_handle_that_aborts_its_task_as_that_is_spawned_ends_it() {
    let runtime = threaded_runtime(2);
    let wheel = wheel(1);
    let _entered = runtime.enter();
    let owned: Vec<_> = (0..600)
        .map(|round| {
            let owned = Arc::new(());
            let seen = Arc::downgrade(&owned);
            let due = Instant::now() + ms(2);
            let is_next = Arc::new(AtomicBool::new(false));
            let raised = is_next.clone();
            // Woken just before the task.
            let waker = waker_of(move || raised.store(true, SeqCst));
            let mut before = wheel.sleep_until(due);
            let polled = Pin::new(&mut before).poll(&mut Context::from_waker(&waker));
            let task = wheel.schedule_at(due, async move {
                let _owned = owned;
                pending::<()>().await;
            });
            let task = task.abort_on_drop();
            while polled.is_pending() && !is_next.load(SeqCst) {
                hint::spin_loop();
            }
            for _ in 0..round % 100 * 10 {
                hint::spin_loop();
            }
            drop(task);
            seen
        })
        .collect();
    let given_up = Instant::now() + MINUTE;
    while owned.iter().any(|owned| owned.strong_count() > 0) {
        assert!(Instant::now() < given_up, "a task outlives its handle");
        thread::yield_now();
    }
}

/// Threads outside all runtimes reset a task at once, one to a past instant and one to a later one. Whichever
/// comes first, the task starts at once.
#[test]
fn a_task_that_is_reset_to_a_past_instant_starts_whoever_else_resets_it() {
    let (runtime, wheel) = (threaded_runtime(1), wheel(1));
    let (past, mut was_first) = (Instant::now(), [0, 0]);
    thread::sleep(ms(2));
    for round in 0..500 {
        let entered = runtime.enter();
        let task = wheel.schedule(MINUTE, async {});
        drop(entered);
        let arrived = AtomicUsize::new(0);
        let meet = |spins| {
            arrived.fetch_add(1, SeqCst);
            while arrived.load(SeqCst) < 2 {
                hint::spin_loop();
            }
            (0..spins).for_each(|_| hint::spin_loop());
        };
        let put_off = thread::scope(|scope| {
            let other = scope.spawn(|| {
                meet(round % 100);
                task.reset(Instant::now() + MINUTE)
            });
            meet(0);
            assert!(task.reset(past), "nothing else starts it");
            other.join().unwrap()
        });
        was_first[usize::from(put_off)] += 1;
        assert!(task.is_started(), "round {round}: put off: {put_off}");
        runtime.block_on(task).unwrap();
    }
    assert!(was_first.iter().all(|times| *times > 0), "they never met");
    assert_at_rest(&wheel);
}

/// The wheel, empty now, admits `limit` timers and not one more.
#[track_caller]
fn assert_limit_is(runtime: &Runtime, wheel: &Wheel, limit: usize) {
    let _entered = runtime.enter();
    let mut handles: Vec<_> = (0..limit + 3).map(|_| wheel.schedule(MINUTE, async {})).collect();
    let refused = handles.split_off(limit);
    assert!(
        handles.iter().all(|handle| !handle.is_cancelled()),
        "room was lost"
    );
    assert!(refused.iter().all(Scheduled::is_cancelled), "room was won");
    assert!(handles.iter().all(Scheduled::cancel));
}
