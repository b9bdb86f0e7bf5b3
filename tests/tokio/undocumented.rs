//! What the driver requires of Tokio and Tokio's documentation does not promise: a test for each point of the
//! list at the top of `src/engine/driver/tokio_timer.rs`, and for what `src/engine/thread.rs` and
//! `src/engine/waker_id.rs` go by. They use Tokio alone. One that fails says what has changed and what rests
//! on it. [`kernel_timer`] has the same for `src/engine/driver/timer_fd.rs`.
#![allow(
    clippy::async_yields_async,
    reason = "futures that outlive their runtimes are returned from there"
)]

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, ThreadId},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task,
    time::{self, Instant, MissedTickBehavior, Sleep},
};

#[cfg(target_os = "linux")]
mod kernel_timer;

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// How long something may take that takes no time, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60);

/// A waker that calls a function.
struct Calls<F>(F);

impl<F: Fn() + Send + Sync> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn waker(call: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Calls(call)))
}

/// A waker, and the threads that have called it.
fn recorder() -> (Waker, Arc<Mutex<Vec<ThreadId>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let record = calls.clone();
    let waker = waker(move || record.lock().unwrap().push(thread::current().id()));
    (waker, calls)
}

/// Registers a timer, as the driver does: whatever budget the calling task has left.
fn set(sleep: Pin<&mut Sleep>, waker: &Waker) -> Poll<()> {
    pin!(task::unconstrained(sleep)).poll(&mut Context::from_waker(waker))
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Runs `act` on a thread of its own. Fails with `otherwise` if it does not come back.
fn comes_back<R: Send + 'static>(otherwise: &str, act: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(act));
        let _ = tell.send(());
        outcome
    });
    told.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{otherwise}"));
    let outcome = thread.join().expect("it has caught its panic");
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// 1. A turn registers and resets timers of Tokio's in a waker, and wakes tasks that do so.
#[test]
fn a_waker_is_called_with_no_lock_of_the_timers_held() {
    let changed = "Tokio holds a lock of its timers while it calls a waker: the driver, which makes its turns in a waker and sets the next one \
                   there (tokio_timer.rs, 1), would deadlock";
    for runtime in [current_thread, multi_thread] {
        comes_back(changed, move || {
            let runtime = runtime();
            let (tell, told) = mpsc::channel();
            // More than Tokio wakes at once, all for one millisecond.
            let deadline = Instant::now() + 5 * MILLISECOND;
            let mut sleeps = Vec::new();
            runtime.block_on(async {
                for _ in 0..100 {
                    let (tell, handle) = (tell.clone(), runtime.handle().clone());
                    let waker = waker(move || {
                        let _entered = handle.enter();
                        let mut other = pin!(time::sleep(HOUR));
                        assert!(set(other.as_mut(), Waker::noop()).is_pending());
                        other.as_mut().reset(Instant::now() + 2 * HOUR);
                        tell.send(()).unwrap();
                    });
                    let mut sleep = Box::pin(time::sleep_until(deadline));
                    if set(sleep.as_mut(), &waker).is_ready() {
                        waker.wake();
                    }
                    sleeps.push(sleep);
                }
                time::sleep_until(deadline + MILLISECOND).await;
            });
            for _ in 0..100 {
                told.recv_timeout(LIMIT).expect("each waker has been called");
            }
        });
    }
}

/// 1, at the end of a runtime.
#[test]
fn a_waker_is_called_with_no_lock_of_the_timers_held_when_the_runtime_shuts_down() {
    let changed = "Tokio holds a lock of its timers while it calls wakers at a runtime's shutdown: the driver, which ends its engine in that waker \
                   and wakes tasks of other runtimes there (tokio_timer.rs, 1), would deadlock";
    for runtime in [current_thread, multi_thread] {
        comes_back(changed, move || {
            let runtime = runtime();
            let (tell, told) = mpsc::channel();
            let handle = runtime.handle().clone();
            let waker = waker(move || {
                let _entered = handle.enter();
                // This panics, because the timers have ended. That it does so at all is the point.
                let set = || set(pin!(time::sleep(HOUR)), Waker::noop());
                let _ = catch_unwind(AssertUnwindSafe(set));
                tell.send(()).unwrap();
            });
            let mut sleep = {
                let _entered = runtime.enter();
                Box::pin(time::sleep(HOUR))
            };
            assert!(set(sleep.as_mut(), &waker).is_pending());
            drop(runtime);
            told.recv_timeout(LIMIT).expect("the waker has been called");
        });
    }
}

/// 2. Meanwhile other workers run tasks, but none polls timers. A task that is spawned from outside may have
///    to wait all the same, because the worker that is told of it may be the one that is in the waker.
#[test]
fn a_waker_may_take_its_time_and_keeps_the_timers_meanwhile() {
    assert!(
        (0..20).any(|_| runs_tasks_beside_a_waker()),
        "while a waker of a timer runs, Tokio runs no tasks on its other workers: a turn of the driver (tokio_timer.rs, 2) would stop the runtime, \
         so it could not be made in a waker"
    );
}

/// Returns whether a task ran while a waker of a timer did, and checks that no other timer fired.
fn runs_tasks_beside_a_waker() -> bool {
    let runtime = multi_thread();
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let waker = waker(move || {
        begin.send(()).unwrap();
        let _ = ended.lock().unwrap().recv_timeout(LIMIT);
    });
    let mut sleep = {
        let _entered = runtime.enter();
        Box::pin(time::sleep(5 * MILLISECOND))
    };
    assert!(set(sleep.as_mut(), &waker).is_pending());
    begun.recv_timeout(LIMIT).expect("the timer fires on a worker");

    let (tell, told) = mpsc::channel();
    runtime.spawn(async move { tell.send(()).unwrap() });
    let has_run = told.recv_timeout(500 * MILLISECOND).is_ok();
    let fired = Arc::new(AtomicBool::new(false));
    let fires = fired.clone();
    let other = runtime.spawn(async move {
        time::sleep(5 * MILLISECOND).await;
        fires.store(true, SeqCst);
    });
    thread::sleep(50 * MILLISECOND);
    let fired_meanwhile = fired.load(SeqCst);
    end.send(()).unwrap();
    runtime.block_on(other).unwrap();
    assert!(
        !fired_meanwhile,
        "another worker polls Tokio's timers while a waker runs: a turn of the driver would not have to stop after a slice (tokio_timer.rs, 2), and \
         two wakers of one engine may now be called at once"
    );
    has_run
}

/// 3. The driver sets its timer under the alarm's lock, and expects no waker other than on this thread.
#[test]
fn a_timer_set_to_an_instant_that_has_come_calls_its_waker_at_once() {
    let past = Instant::now();
    for runtime in [current_thread(), multi_thread()] {
        let _entered = runtime.enter();
        let (waker, calls) = recorder();
        let mut interval = time::interval(MILLISECOND);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        interval.reset_at(Instant::now() + HOUR);
        let mut poll = || interval.poll_tick(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        interval.reset_at(past);
        assert_eq!(
            *calls.lock().unwrap(),
            [thread::current().id()],
            "a timer that is reset to an instant which has come does not call its waker on the thread that resets it, before it returns: the driver \
             ignores such calls by a flag of the thread (tokio_timer.rs, 3, `is_setting`), and might now miss a turn or make one under its own lock"
        );
        let is_ready = interval.poll_tick(&mut Context::from_waker(&waker)).is_ready();
        assert!(
            is_ready,
            "an interval that is reset to an instant which has come is not ready at its next poll: `TokioTimer::register` takes it for one that waits \
             (tokio_timer.rs, 3)"
        );
    }
}

/// 4. By this the driver finds where Tokio's milliseconds begin.
#[test]
fn a_sleep_elapses_as_it_is_reset_to_a_millisecond_that_has_been_processed() {
    // Nobody processes timers while this thread blocks.
    current_thread().block_on(async {
        let mut sleep = pin!(time::sleep(HOUR));
        let start = Instant::now();
        time::sleep(5 * MILLISECOND).await;
        sleep.as_mut().reset(start);
        assert!(
            sleep.is_elapsed(),
            "a sleep that is reset to a millisecond which Tokio has processed does not elapse at once: the driver finds by that where Tokio's \
             milliseconds begin (tokio_timer.rs, 4, `begin_of_millisecond`), and would round every deadline up twice"
        );
        thread::sleep(20 * MILLISECOND);
        sleep.as_mut().reset(Instant::now() - 5 * MILLISECOND);
        assert!(
            !sleep.is_elapsed(),
            "a sleep that is reset to an instant which has passed, but which Tokio has not processed, elapses at once: on a test's clock the driver \
             takes that for the millisecond having come (tokio_timer.rs, 4, `has_passed`), and timers would end before Tokio's"
        );
    });
}

/// 6. The wakers of a millisecond are called in batches, between which other timers can be looked at.
#[test]
fn all_timers_of_a_millisecond_are_fired_before_the_next_one_is_processed() {
    let partly = Arc::new(AtomicBool::new(false));
    let seen = partly.clone();
    current_thread().block_on(async move {
        let at = Instant::now() + 5 * MILLISECOND;
        let sleeps: Vec<_> = (0..100).map(|_| Box::pin(time::sleep_until(at))).collect();
        let sleeps = Arc::new(Mutex::new(sleeps));
        let fired = Arc::downgrade(&sleeps);
        let look = waker(move || {
            let Some(fired) = fired.upgrade() else { return };
            let fired = fired
                .lock()
                .unwrap()
                .iter()
                .filter(|sleep| sleep.is_elapsed())
                .count();
            let later = at + 2 * MILLISECOND;
            let mut sleep = pin!(time::sleep_until(later));
            sleep.as_mut().reset(later);
            assert!(
                fired == 100 || !sleep.is_elapsed(),
                "after {fired} of 100, a later millisecond has passed"
            );
            seen.fetch_or(fired < 100, SeqCst);
        });
        for sleep in &mut *sleeps.lock().unwrap() {
            assert!(set(sleep.as_mut(), &look).is_pending());
        }
        // Both milliseconds come before the driver does.
        thread::sleep(20 * MILLISECOND);
        time::sleep(MILLISECOND).await;
        assert!(sleeps.lock().unwrap().iter().all(|sleep| sleep.is_elapsed()));
    });
    assert!(partly.load(SeqCst), "no waker was called before all had fired");
}

/// 4. The boundary between what has come and what has not is the beginning of a millisecond.
#[test]
fn milliseconds_begin_at_whole_milliseconds_from_one_instant() {
    current_thread().block_on(async {
        let first = last_processed();
        for _ in 0..5 {
            time::sleep(2 * MILLISECOND).await;
            let span = last_processed() - first;
            assert!(
                span > Duration::ZERO && span.subsec_nanos() % 1_000_000 == 0,
                "the milliseconds up to which Tokio processes its timers are {span:?} apart, which is no whole number of them: the ticks of a wheel \
                 begin with Tokio's milliseconds (tokio_timer.rs, 4, `begin_of_millisecond`), and each deadline would be rounded up twice"
            );
        }
    });
}

/// The latest instant for which a sleep elapses as it is reset.
fn last_processed() -> Instant {
    let mut sleep = pin!(time::sleep(HOUR));
    let mut has_come = |at| {
        sleep.as_mut().reset(at);
        sleep.is_elapsed()
    };
    let mut to_come = Instant::now() + MILLISECOND;
    let mut come = to_come - HOUR.min(LIMIT);
    assert!(
        has_come(come) && !has_come(to_come),
        "Tokio has processed the past and nothing else"
    );
    while to_come - come > Duration::from_nanos(1) {
        let between = come + (to_come - come) / 2;
        if has_come(between) {
            come = between;
        } else {
            to_come = between;
        }
    }
    come
}

/// Adds a word to a list as it is dropped, and sets a timer.
struct Last(Arc<Mutex<Vec<&'static str>>>);

impl Drop for Last {
    fn drop(&mut self) {
        let is_pending = set(pin!(time::sleep(HOUR)), Waker::noop()).is_pending();
        self.0
            .lock()
            .unwrap()
            .push(if is_pending { "task, with timers" } else { "task" });
    }
}

/// 5. An engine ends when its runtime's timers do.
#[test]
fn a_runtime_that_shuts_down_drops_its_tasks_and_then_fires_all_of_its_timers() {
    for runtime in [current_thread(), multi_thread()] {
        let events = Arc::new(Mutex::new(Vec::new()));
        let last = Last(events.clone());
        let record = events.clone();
        let waker = waker(move || record.lock().unwrap().push("timer"));
        runtime.block_on(async {
            let (tell, told) = oneshot::channel();
            tokio::spawn(async move {
                let _last = last;
                tell.send(()).unwrap();
                std::future::pending::<()>().await;
            });
            told.await.unwrap();
        });
        let handle = runtime.handle().clone();
        let _entered = handle.enter();
        let mut sleep = Box::pin(time::sleep(HOUR));
        assert!(set(sleep.as_mut(), &waker).is_pending());
        drop(runtime);
        assert_eq!(
            *events.lock().unwrap(),
            ["task, with timers", "timer"],
            "a runtime that shuts down does not drop its tasks, whose destructors can set timers, and then fire all of its timers: that the timer \
             fires before its moment is how an engine learns that it has to end (tokio_timer.rs, 5; alarm.rs, rule 4), and its futures would hang or \
             end too early"
        );
        let mut other = pin!(time::sleep(HOUR));
        other.as_mut().reset(Instant::now() + HOUR / 2);
        assert!(
            other.is_elapsed(),
            "a sleep that is reset after its runtime has shut down does not elapse at once: the driver learns from that, without a panic, whether the \
             timers have ended (tokio_timer.rs, 5, `probe`), and would wait for timers that never fire"
        );
        let set = catch_unwind(AssertUnwindSafe(|| set(pin!(time::sleep(HOUR)), Waker::noop())));
        assert!(
            set.is_err(),
            "a timer can be set although its runtime has shut down, and answers {set:?}: the driver takes the panic for the runtime's end \
             (tokio_timer.rs, 5; `Alarm::set`), and would wait for a timer that never fires"
        );
    }
}

/// 7. The driver sets its timer in whatever task registers one.
#[test]
fn a_timer_without_budget_is_not_registered_and_one_that_ignores_it_is() {
    let runtime = current_thread();
    let fired = runtime.block_on(runtime.spawn(async {
        let deadline = Instant::now() + 5 * MILLISECOND;
        let (mut with, mut without) = (
            Box::pin(time::sleep_until(deadline)),
            Box::pin(time::sleep_until(deadline)),
        );
        poll_fn(|cx| {
            while pin!(task::coop::consume_budget()).poll(cx).is_ready() {}
            assert!(without.as_mut().poll(cx).is_pending());
            assert!(set(with.as_mut(), cx.waker()).is_pending());
            Poll::Ready(())
        })
        .await;
        time::sleep_until(deadline + 2 * MILLISECOND).await;
        (without.is_elapsed(), with.is_elapsed())
    }));
    let (without, with) = fired.unwrap();
    assert!(
        with,
        "a timer that is polled in `unconstrained` by a task without budget is not registered: a turn that such a task asks for would not be made \
         (tokio_timer.rs, 6, `TokioTimer::register`)"
    );
    assert!(
        !without,
        "a timer that is polled by a task without budget is registered: `TokioTimer::register` need not ignore the budget any more (tokio_timer.rs, 6)"
    );
}

/// What thread.rs goes by: the index of a worker that is not the first is never told to a task of another
/// runtime on that thread.
#[test]
fn a_thread_that_is_worker_1_of_a_runtime_polls_tasks_as_worker_1_for_no_other() {
    let runtime = multi_thread();
    let (tell, told) = mpsc::channel();
    // One of two tasks that block is on worker 1.
    let barrier = Arc::new(std::sync::Barrier::new(2));
    for _ in 0..2 {
        let (tell, barrier) = (tell.clone(), barrier.clone());
        runtime.spawn(async move {
            barrier.wait();
            if tokio::runtime::worker_index() == Some(1) {
                tell.send(indices_elsewhere()).unwrap();
            }
        });
    }
    let indices = told.recv_timeout(LIMIT).expect("one of the workers is worker 1");
    assert!(
        indices.iter().all(|index| *index != Some(1)),
        "tasks of other runtimes, polled on worker 1 of a runtime, are told these indices of their worker: {indices:?}. A thread takes the runtime \
         whose worker 1 it is for the current one whenever a task is polled there as worker 1 (thread.rs, \"Which runtime\"), so timers would be bound \
         to the wrong runtime"
    );
}

/// The worker's index as tasks of other runtimes see it that run on this worker's thread.
fn indices_elsewhere() -> Vec<Option<usize>> {
    let index = async || tokio::runtime::worker_index();
    task::block_in_place(|| {
        let other = current_thread();
        let spawned = other.block_on(async { tokio::spawn(index()).await.unwrap() });
        let local =
            task::LocalSet::new().block_on(&other, async { task::spawn_local(index()).await.unwrap() });
        let _entered = other.enter();
        vec![spawned, local]
    })
}

/// What waker_id.rs goes by: all tasks have one vtable, whatever their future, runtime and thread, and it
/// tells them from other wakers.
#[test]
fn the_wakers_of_all_tasks_have_one_vtable() {
    let vtable = || poll_fn(|cx| Poll::Ready(std::ptr::from_ref(cx.waker().vtable()) as usize));
    let mut of_tasks = Vec::new();
    let mut of_block_on = Vec::new();
    for runtime in [current_thread(), multi_thread()] {
        of_block_on.push(runtime.block_on(vtable()));
        of_tasks.push(runtime.block_on(async { tokio::spawn(vtable()).await.unwrap() }));
        let boxed: Pin<Box<dyn Future<Output = usize> + Send>> = Box::pin(vtable());
        of_tasks.push(runtime.block_on(async { tokio::spawn(boxed).await.unwrap() }));
        let local = task::LocalSet::new();
        of_tasks.push(local.block_on(&runtime, async { task::spawn_local(vtable()).await.unwrap() }));
    }
    let first = of_tasks[0];
    assert!(
        of_tasks.iter().all(|vtable| *vtable == first),
        "the wakers of Tokio's tasks have different vtables: {of_tasks:x?}. A task whose vtable is another than the first one's keeps no spare, and asks \
         for its runtime at each timer (waker_id.rs, `is_task`), so its timeouts cost five times as much"
    );
    assert!(
        !of_block_on.contains(&first),
        "the waker of `block_on` has the vtable of tasks: it would be taken for a task, and its spare would keep the thread's parker (waker_id.rs, \
         `is_task`)"
    );
}
