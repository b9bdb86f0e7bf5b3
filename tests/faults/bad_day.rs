//! The wheel stays punctual on a server in trouble, while its tasks storm, block and stall.
//!
//! Each scene counts events while a due timer waits, or asks which of two events came first. Where only a
//! clock can tell, the allowed time is far above what a healthy wheel takes and far below what a starved one
//! takes.

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    mem,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tickwheel::{Sleep, Wheel};
use tokio::{runtime::Handle, time::Instant};

use support::{
    DAY, SECOND, alive_tasks, ms, paused_runtime,
    ready_tasks::{ReadyTasks, work_for},
    real_runtime, register, register_for, settle, threaded_runtime, waiting, waker_of, wheel_on, within,
};

/// Raised by a timer that has come; who blocks a worker looks at it.
#[derive(Clone, Default)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Blocks the worker until the flag is raised, for two seconds at most; tells whether it was raised by
    /// then.
    fn block_until_raised(&self) -> bool {
        let start = std::time::Instant::now();
        while !self.is_raised() && start.elapsed() < 2 * SECOND {
            thread::sleep(ms(1));
        }
        self.is_raised()
    }
}

impl ReadyTasks {
    fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    /// Waits until the queues are long. Of the global queue one task is taken after every 31 others.
    fn gather(&self, from_outside: bool) {
        let polls = if from_outside { 16 * self.tasks } else { self.tasks };
        while self.polls() < polls {
            thread::sleep(ms(1));
        }
    }

    /// Registers a sleep, with any thread, and tells how many polls go by until it is woken.
    fn polls_while_it_waits(&self, sleep: impl Fn() -> Sleep) -> usize {
        let (sender, woken) = mpsc::channel();
        let polls = self.polls.clone();
        // Noted by whoever wakes: it may take long until this thread runs again.
        let waker = waker_of(move || sender.send(polls.load(Ordering::SeqCst)).unwrap());
        let _sleep = waiting(&waker, sleep);
        let registered = self.polls();
        let woken = woken.recv_timeout(20 * SECOND).expect("the sleep comes");
        woken.saturating_sub(registered)
    }
}

/// Sleeps of another thread, while ready tasks fill the runtime that drives the wheel: how many polls of
/// those each lets pass. Before each, that thread spawns so many empty tasks.
fn polls_while_sleeps_wait(
    runtime: tokio::runtime::Runtime,
    ready_tasks: ReadyTasks,
    from_outside: bool,
    spawned: usize,
) -> Vec<usize> {
    const SLEEPS: usize = 20;

    let wheel = wheel_on(&runtime);
    runtime.block_on(async { wheel.sleep(ms(1)).await });
    let _tasks = if from_outside {
        let _entered = runtime.enter();
        ready_tasks.spawn()
    } else {
        runtime.block_on(async { ready_tasks.spawn() })
    };
    let sleeper = {
        let (ready_tasks, runtime) = (ready_tasks.clone(), runtime.handle().clone());
        thread::spawn(move || {
            ready_tasks.gather(from_outside);
            let waited = (0..SLEEPS).map(|_| {
                for _ in 0..spawned {
                    runtime.spawn(async {});
                }
                ready_tasks.polls_while_it_waits(|| wheel.sleep(ms(1)))
            });
            let waited = waited.collect();
            ready_tasks.stop();
            waited
        })
    };
    // The tasks of a current-thread runtime run meanwhile.
    runtime.block_on(join(sleeper))
}

/// However many tasks are ready, and in whichever queue they stand: a timer comes where Tokio's would, and
/// not behind all of them.
#[track_caller]
fn assert_no_sleep_waits_for_all_ready_tasks(
    runtime: tokio::runtime::Runtime,
    yields: bool,
    from_outside: bool,
    most: usize,
) {
    let ready_tasks = ReadyTasks::new(20_000, Duration::from_micros(5), yields);
    let waited = within(60 * SECOND, move || {
        polls_while_sleeps_wait(runtime, ready_tasks, from_outside, 0)
    });
    assert!(
        waited.iter().all(|waited| *waited < most),
        "sleeps waited through {waited:?} polls of other tasks"
    );
}

/// A tick is 2,000 polls of one thread. There are 20,000 tasks.
const OF_ONE_THREAD: usize = 8_000;

#[test]
fn a_queue_of_ready_tasks_keeps_no_timer_waiting_for_all_of_it() {
    assert_no_sleep_waits_for_all_ready_tasks(real_runtime(), false, false, OF_ONE_THREAD);
}

#[test]
fn a_queue_of_tasks_that_yield_keeps_no_timer_waiting_for_all_of_it() {
    assert_no_sleep_waits_for_all_ready_tasks(real_runtime(), true, false, OF_ONE_THREAD);
}

/// Tasks that another thread spawns stand in the runtime's global queue, of which one is taken after every 31
/// others.
#[test]
fn a_global_queue_of_ready_tasks_keeps_no_timer_waiting_for_all_of_it() {
    assert_no_sleep_waits_for_all_ready_tasks(real_runtime(), false, true, OF_ONE_THREAD);
}

#[test]
fn a_runtime_that_hardly_looks_at_its_global_queue_keeps_no_timer_waiting() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().global_queue_interval(100_000).build();
    assert_no_sleep_waits_for_all_ready_tasks(runtime.unwrap(), false, false, OF_ONE_THREAD);
}

/// Each of two workers has a queue of its own, and one that is preempted lets the other go on.
#[test]
fn two_workers_queues_of_tasks_that_yield_keep_no_timer_waiting_for_all_of_them() {
    assert_no_sleep_waits_for_all_ready_tasks(threaded_runtime(2), true, false, 10 * OF_ONE_THREAD);
}

/// A hundred such tasks, and five hundred that another thread spawns before each sleep.
#[test]
fn tasks_of_another_thread_keep_no_timer_waiting_for_all_of_them() {
    let ready_tasks = ReadyTasks::new(100, Duration::from_micros(200), false);
    let waited = within(60 * SECOND, || {
        polls_while_sleeps_wait(real_runtime(), ready_tasks, false, 500)
    });
    assert!(
        waited.iter().all(|waited| *waited < 500),
        "sleeps waited through {waited:?} polls of other tasks"
    );
}

/// The first sleep of all starts the driver, and its task stands behind all others.
#[test]
fn a_driver_that_is_started_in_a_storm_keeps_no_timer_waiting() {
    let waited = within(60 * SECOND, || {
        let runtime = real_runtime();
        let ready_tasks = ReadyTasks::new(20_000, Duration::from_micros(5), false);
        runtime.block_on(async {
            ready_tasks.spawn();
            tokio::task::yield_now().await;
            let (registering, ready_tasks) = (Wheel::new(), ready_tasks.clone());
            let (sender, woken) = tokio::sync::oneshot::channel();
            let (polls, sender) = (ready_tasks.polls.clone(), Mutex::new(Some(sender)));
            let waker = waker_of(move || {
                let polls = polls.load(Ordering::SeqCst);
                let _ = sender.lock().unwrap().take().map(|sender| sender.send(polls));
            });
            let (sleep, registered) = tokio::spawn(async move {
                let sleep = waiting(&waker, || registering.sleep(ms(1)));
                (sleep, ready_tasks.polls())
            })
            .await
            .unwrap();
            let woken = woken.await.unwrap();
            drop(sleep);
            woken.saturating_sub(registered)
        })
    });
    assert!(
        waited < OF_ONE_THREAD,
        "the first sleep waited through {waited} polls of other tasks"
    );
}

/// Many tasks have just been woken, a timer is due, and a test pauses the clock: the timer comes though the
/// clock stands.
#[test]
fn a_timer_that_is_due_when_a_test_pauses_the_clock_is_not_left_waiting() {
    for _ in 0..5 {
        real_runtime().block_on(async {
            let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
            let due = Instant::now() + ms(30);
            let woken: Vec<_> = (0..400)
                .map(|_| {
                    let wheel = wheel.clone();
                    tokio::spawn(async move { wheel.sleep_until(due).await })
                })
                .collect();
            for task in woken {
                task.await.unwrap();
            }
            settle().await;
            let came = Flag::default();
            let (sleep, raised) = (wheel.sleep(ms(3)), came.clone());
            tokio::spawn(async move {
                sleep.await;
                raised.raise();
            });
            settle().await;
            thread::sleep(ms(8));
            tokio::task::yield_now().await;
            tokio::time::pause();
            tokio::time::sleep(SECOND).await;
            assert!(came.is_raised(), "the sleep did not come");
        });
    }
}

/// Two thousand tasks that the driver itself has woken, on one thread: it does not stand behind all of them.
#[test]
fn tasks_that_the_driver_has_woken_do_not_keep_it_waiting() {
    const WOKEN: usize = 2_000;

    let runtime = real_runtime();
    let wheel = wheel_on(&runtime);
    let waited = (0..3).map(|_| {
        let ran = Arc::new(AtomicUsize::new(0));
        let sleeper = {
            let (wheel, ran) = (wheel.clone(), ran.clone());
            thread::spawn(move || {
                while ran.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                futures::executor::block_on(wheel.sleep(ms(1)));
                ran.load(Ordering::SeqCst)
            })
        };
        runtime.block_on(async {
            let due = Instant::now() + ms(200);
            let woken: Vec<_> = (0..WOKEN)
                .map(|_| {
                    let (wheel, ran) = (wheel.clone(), ran.clone());
                    tokio::spawn(async move {
                        wheel.sleep_until(due).await;
                        ran.fetch_add(1, Ordering::SeqCst);
                        work_for(Duration::from_micros(100));
                    })
                })
                .collect();
            for task in woken {
                task.await.unwrap();
            }
        });
        sleeper.join().unwrap()
    });
    // Other programs may keep a thread waiting, but hardly three times.
    let waited: Vec<_> = waited.collect();
    assert!(
        waited.iter().any(|waited| *waited < WOKEN / 2),
        "a sleep waited through {waited:?} polls of other tasks"
    );
}

/// Ten thousand timers that come due as fast as they are dealt with keep nobody else's from coming.
#[test]
fn a_stormed_shard_silences_no_other() {
    const STORMING: usize = 10_000;
    /// Timeouts that end while the others' sleeps, of two rounds of the storm, are waited for.
    const ALLOWED: usize = 8 * STORMING;
    /// Where the storm ends by itself.
    const MOST: usize = 16 * STORMING;

    let runtime = real_runtime();
    let wheel = Wheel::builder().handle(runtime.handle().clone()).shards(2);
    let wheel = wheel.build().unwrap();
    let (ended, over) = (Arc::new(AtomicUsize::new(0)), Flag::default());
    let (raging, stormed) = (Flag::default(), wheel.clone());
    let others = {
        let (wheel, raging, ended, over) = (wheel.clone(), raging.clone(), ended.clone(), over.clone());
        thread::spawn(move || {
            while !raging.is_raised() {
                thread::sleep(ms(1));
            }
            let before = (ended.load(Ordering::SeqCst), wheel.metrics().turns);
            // Enough threads for both shards.
            let sleepers: Vec<_> = (0..4)
                .map(|_| {
                    let (wheel, ended) = (wheel.clone(), ended.clone());
                    thread::spawn(move || {
                        futures::executor::block_on(wheel.sleep(ms(100)));
                        ended.load(Ordering::SeqCst) - before.0
                    })
                })
                .collect();
            let waited: Vec<_> = sleepers
                .into_iter()
                .map(|sleeper| sleeper.join().unwrap())
                .collect();
            over.raise();
            (waited, wheel.metrics().turns - before.1)
        })
    };
    runtime.block_on(async {
        let storm: Vec<_> = (0..STORMING)
            .map(|_| {
                let (wheel, ended, over) = (stormed.clone(), ended.clone(), over.clone());
                let raging = raging.clone();
                tokio::spawn(async move {
                    while !over.is_raised() {
                        wheel.timeout(ms(50), pending::<()>()).await.unwrap_err();
                        work_for(Duration::from_micros(5));
                        match ended.fetch_add(1, Ordering::SeqCst) {
                            // Everybody storms by now.
                            n if n > 2 * STORMING => raging.raise(),
                            _ => {}
                        }
                        if ended.load(Ordering::SeqCst) > MOST + 2 * STORMING {
                            over.raise();
                        }
                    }
                })
            })
            .collect();
        for task in storm {
            task.await.unwrap();
        }
    });
    // What did not come in the storm comes after it.
    let (waited, turns) = within(5 * SECOND, move || runtime.block_on(async { join(others).await }));
    assert!(
        waited.iter().all(|waited| *waited < ALLOWED),
        "sleeps of 100 ms waited through {waited:?} timeouts of 50 ms that ended"
    );
    assert!(turns > 0, "the wheel stopped");
}

/// Waits for a thread, while the runtime goes on.
async fn join<R: Send + 'static>(thread: thread::JoinHandle<R>) -> R {
    let joined = tokio::task::spawn_blocking(|| thread.join());
    joined.await.unwrap().unwrap()
}

/// One of four workers does something to the wheel and then blocks: a sleep of another worker comes
/// meanwhile.
fn a_worker_that_blocks_delays_nobody<F>(act: impl Fn(Wheel, Flag) -> F)
where
    F: Future<Output = bool> + Send + 'static,
{
    let runtime = threaded_runtime(4);
    for _ in 0..3 {
        let wheel = Wheel::new();
        let came = Flag::default();
        let in_time = runtime.block_on(async {
            wheel.sleep(ms(1)).await;
            let sleeping = {
                let (wheel, came) = (wheel.clone(), came.clone());
                tokio::spawn(async move {
                    wheel.sleep(ms(100)).await;
                    came.raise();
                })
            };
            while wheel.pending() == 0 {
                thread::sleep(ms(1));
            }
            let in_time = tokio::spawn(act(wheel.clone(), came)).await.unwrap();
            sleeping.await.unwrap();
            in_time
        });
        assert!(in_time, "a sleep waited for a worker that another task blocked");
    }
}

#[test]
fn a_worker_that_schedules_a_task_and_blocks_delays_nobody() {
    a_worker_that_blocks_delays_nobody(|wheel, came| async move {
        let scheduled = wheel.schedule(ms(20), async {});
        let in_time = came.block_until_raised();
        in_time & scheduled.is_started()
    });
}

#[test]
fn a_worker_that_starts_a_timeout_and_blocks_delays_nobody() {
    a_worker_that_blocks_delays_nobody(|wheel, came| async move {
        let (elapsed, in_time) = tokio::join!(wheel.timeout(ms(20), pending::<()>()), async {
            came.block_until_raised()
        });
        elapsed.unwrap_err();
        in_time
    });
}

#[test]
fn a_worker_that_resets_a_sleep_to_an_earlier_instant_and_blocks_delays_nobody() {
    a_worker_that_blocks_delays_nobody(|wheel, came| async move {
        let mut sleep = wheel.sleep(60 * SECOND);
        register(&mut sleep);
        sleep.reset_at(Instant::now() + ms(20));
        came.block_until_raised()
    });
}

/// Thousands of tasks wake at one tick, and three of them block three of four workers: later timers come
/// meanwhile.
#[test]
fn tasks_that_block_the_workers_they_were_woken_on_delay_nobody_while_one_is_free() {
    const TASKS: usize = 5_000;
    /// Which of them block depends on who runs them, so this is played again and again.
    const TIMES: usize = 16;

    let runtime = threaded_runtime(4);
    for time in 0..TIMES {
        let wheel = Wheel::new();
        let came = Flag::default();
        let in_time = runtime.block_on(async {
            let due = Instant::now() + ms(200);
            let waking: Vec<_> = (0..TASKS)
                .map(|n| {
                    let (wheel, came) = (wheel.clone(), came.clone());
                    let blocks = [1_300 + 20 * time, 2_500, 3_700 - 20 * time].contains(&n);
                    tokio::spawn(async move {
                        wheel.sleep_until(due).await;
                        !blocks || came.block_until_raised()
                    })
                })
                .collect();
            let later = tokio::spawn(async move {
                wheel.sleep_until(due + ms(50)).await;
                came.raise();
            });
            let mut in_time = true;
            for task in waking {
                in_time &= task.await.unwrap();
            }
            later.await.unwrap();
            in_time
        });
        assert!(
            in_time,
            "in run {time} a sleep waited for workers that other tasks blocked"
        );
    }
}

/// How many polls of other tasks a wheel that cascades 100,000 timers lets pass while sleeps are due: one
/// whose thread shares the shard with them, and some of other threads. None if the machine was too busy to
/// register all of them in time.
fn polls_while_a_cascade_keeps_sleeps_waiting(shards: usize) -> Option<usize> {
    const CASCADING: usize = 100_000;
    const TASKS: usize = 100;
    const TICKS_PER_WHEEL: u32 = 256;

    real_runtime().block_on(async {
        let wheel = Wheel::builder()
            .handle(Handle::current())
            .tick_duration(ms(10))
            .shards(shards)
            .ticks_per_wheel(TICKS_PER_WHEEL as usize)
            .build()
            .unwrap();
        let origin = Instant::now();
        wheel.sleep(ms(1)).await;
        let round = wheel.tick_duration() * TICKS_PER_WHEEL;
        let mut cascading: Vec<_> = (0..CASCADING)
            .map(|_| wheel.sleep_until(origin + 2 * round - ms(100)))
            .collect();
        cascading.iter_mut().for_each(register);

        // Their bucket is spread over the finest level during the half round before it begins.
        let begin = origin + round * 3 / 2;
        let dues = [origin + round, begin - round / 4, begin].map(|due| due + 2 * wheel.tick_duration());
        let overdue = Arc::new(AtomicUsize::new(0));
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = {
            let woken = woken.clone();
            waker_of(move || {
                woken.fetch_add(1, Ordering::SeqCst);
            })
        };
        let mut sleeps: Vec<_> = dues.map(|due| wheel.sleep_until(due)).into();
        sleeps.iter_mut().for_each(|sleep| register_for(&counted, sleep));
        for due in dues.repeat(3) {
            let (wheel, counted) = (wheel.clone(), counted.clone());
            let elsewhere = thread::spawn(move || {
                let mut sleep = wheel.sleep_until(due);
                register_for(&counted, &mut sleep);
                sleep
            });
            sleeps.push(elsewhere.join().unwrap());
        }
        // They are to be registered in one round.
        if origin.elapsed() >= round {
            return None;
        }

        let busy: Vec<_> = (0..TASKS)
            .map(|_| {
                let (overdue, woken) = (overdue.clone(), woken.clone());
                tokio::spawn(async move {
                    // Four sleeps are due at each instant.
                    while let Some(due) = dues.get(woken.load(Ordering::SeqCst) / 4) {
                        if Instant::now() > *due {
                            overdue.fetch_add(1, Ordering::SeqCst);
                        }
                        work_for(Duration::from_micros(20));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in busy {
            task.await.unwrap();
        }
        Some(overdue.load(Ordering::SeqCst))
    })
}

#[test]
fn a_cascade_puts_no_due_timer_behind_other_tasks_by_the_thousand() {
    for shards in [1, 2] {
        let polls = || {
            within(15 * SECOND, move || {
                polls_while_a_cascade_keeps_sleeps_waiting(shards)
            })
        };
        // For each of the three instants, a tick and the millisecond of a pause are 550 polls of 20 us. While
        // other processes have the core, the driver's slices end too soon, or the timers are registered too
        // late, and then it is played again.
        let mut played = Vec::new();
        let is_soon = (0..10).filter_map(|_| polls()).take(3).any(|polls| {
            played.push(polls);
            polls < 3_000
        });
        assert!(
            is_soon,
            "with {shards} shards due sleeps waited through {played:?} polls of other tasks"
        );
    }
}

/// A timer is registered, and then nobody drives the runtime for half a second: the lag says so.
#[test]
fn a_stall_right_after_a_registration_is_lag() {
    real_runtime().block_on(async {
        let wheel = Wheel::new();
        wheel.sleep(ms(1)).await;
        let mut sleep = wheel.sleep(ms(100));
        let due = sleep.deadline();
        register(&mut sleep);
        thread::sleep(ms(600));
        let stalled = due.elapsed();
        sleep.await;
        let metrics = wheel.metrics();
        for lag in [metrics.last_lag, metrics.max_lag] {
            assert!(
                lag + wheel.tick_duration() > stalled && lag <= due.elapsed(),
                "the driver was late by {stalled:?}: {metrics:?}"
            );
        }
    });
}

#[tokio::test(start_paused = true)]
async fn lag_is_exact_whatever_woke_the_driver() {
    let wheel = Wheel::new();
    wheel.sleep(ms(10)).await;
    assert_eq!(wheel.metrics().max_lag, Duration::ZERO);
    // Not a deadline that it waited for, but the registration of an earlier one.
    let mut far = wheel.sleep(SECOND);
    register(&mut far);
    settle().await;
    let mut near = wheel.sleep(ms(100));
    register(&mut near);
    tokio::time::advance(ms(600)).await;
    settle().await;
    near.await;
    let metrics = wheel.metrics();
    assert_eq!((metrics.last_lag, metrics.max_lag), (ms(500), ms(500)));
    far.await;
    let punctual = wheel.metrics();
    assert_eq!((punctual.last_lag, punctual.max_lag), (Duration::ZERO, ms(500)));
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_was_forgotten_keeps_no_driver_once_it_has_expired() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(ms(50));
    register(&mut sleep);
    mem::forget(sleep);
    let mut timeout = wheel.timeout(ms(50), pending::<()>());
    register(&mut timeout);
    mem::forget(timeout);
    settle().await;
    assert_eq!(alive_tasks(), 1);
    drop(wheel);
    settle().await;
    assert_eq!(alive_tasks(), 1, "it is pending still");
    tokio::time::advance(SECOND).await;
    settle().await;
    assert_eq!(alive_tasks(), 0, "the driver stays for a timer that has expired");
}

/// The smallest wheel there is, which works in rounds of 2 ms, thirty days later: 1.3 billion rounds.
#[test]
fn a_wheel_jumps_over_the_rounds_in_which_it_had_nothing() {
    within(3 * SECOND, || {
        paused_runtime().block_on(async {
            let wheel = Wheel::builder()
                .tick_duration(ms(1))
                .ticks_per_wheel(2)
                .levels(1)
                .build()
                .unwrap();
            wheel.sleep(ms(1)).await;
            tokio::time::advance(30 * DAY).await;
            let start = Instant::now();
            let sleeps = (1..=50).rev().map(|n| {
                let sleep = wheel.sleep(ms(n));
                async move {
                    sleep.await;
                    assert_eq!(start.elapsed(), ms(n));
                }
            });
            futures::future::join_all(sleeps).await;
        });
    });
}

/// In how many shards the timers are that one thread makes, and each of eight others polls for the first
/// time.
fn shards_of_eight_owners<F>(make: impl Fn(&Wheel) -> F) -> usize
where
    F: Future + Unpin + Send,
{
    // So many that hardly two of the owners have the same.
    let runtime = paused_runtime();
    let wheel = Wheel::builder().handle(runtime.handle().clone()).shards(64);
    let wheel = wheel.build().unwrap();
    runtime.block_on(async {
        wheel.sleep(ms(10)).await;
        let (polled, counted) = (Barrier::new(9), Barrier::new(9));
        thread::scope(|scope| {
            for _ in 0..8 {
                let mut timer = make(&wheel);
                let (polled, counted) = (&polled, &counted);
                scope.spawn(move || {
                    register(&mut timer);
                    polled.wait();
                    counted.wait();
                });
            }
            polled.wait();
            let shards = wheel.snapshot().shards;
            counted.wait();
            shards.iter().filter(|shard| shard.pending > 0).count()
        })
    })
}

#[test]
fn a_timer_lives_in_the_shard_of_the_thread_that_first_polls_it() {
    let at = || Instant::now() + ms(100);
    let shards = [
        shards_of_eight_owners(|wheel| wheel.sleep(ms(100))),
        shards_of_eight_owners(|wheel| wheel.sleep_until(at())),
        shards_of_eight_owners(|wheel| wheel.timeout(ms(100), pending::<()>())),
        shards_of_eight_owners(|wheel| wheel.timeout_at(at(), pending::<()>())),
        shards_of_eight_owners(|wheel| wheel.idle_timer(ms(100))),
        shards_of_eight_owners(|wheel| {
            let mut interval = wheel.interval_at(at(), SECOND);
            poll_fn(move |cx| interval.poll_tick(cx).map(drop))
        }),
    ];
    assert!(shards.iter().all(|shards| *shards > 4), "{shards:?} of 8");
}

/// A thousand timers come due at one instant, while 20,000 tasks of two workers are ready: those that are
/// woken last wait for few of them.
#[test]
fn a_queue_of_ready_tasks_stands_between_no_two_timers() {
    const READY: usize = 20_000;

    let waited = within(60 * SECOND, || {
        let (wheel, runtime) = (Wheel::new(), threaded_runtime(2));
        let _entered = runtime.enter();
        let ready_tasks = ReadyTasks::new(READY, Duration::from_micros(5), false);
        ready_tasks.spawn();
        let waited = (0..5).map(|_| {
            let woken = Arc::new(Mutex::new(Vec::new()));
            let (polls, noted) = (ready_tasks.polls.clone(), woken.clone());
            let waker = waker_of(move || noted.lock().unwrap().push(polls.load(Ordering::SeqCst)));
            let due = Instant::now() + ms(500);
            let mut sleeps: Vec<_> = (0..1_000).map(|_| wheel.sleep_until(due)).collect();
            sleeps.iter_mut().for_each(|sleep| register_for(&waker, sleep));
            while woken.lock().unwrap().len() < 1_000 {
                thread::sleep(ms(1));
            }
            let woken = woken.lock().unwrap();
            woken.iter().max().unwrap() - woken.iter().min().unwrap()
        });
        let mut waited: Vec<_> = waited.collect();
        waited.sort_unstable();
        ready_tasks.stop();
        waited
    });
    // Other programs may hold up the thread that wakes, but hardly each time.
    assert!(
        waited[2] < READY / 4,
        "the last of a thousand timers came {waited:?} polls of other tasks after the first"
    );
}
