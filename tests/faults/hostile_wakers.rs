//! Wakers that do what no waker should, while the driver runs inside Tokio's time driver. No other timer is
//! lost, nothing hangs, and the wheel continues. Whatever a waker may do to one of Tokio's sleeps, it may do
//! to one of the wheel's.
//!
//! Each scene runs on a thread of its own with a time limit, so that a scene that hangs fails.

use crate::support;

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use futures::future::BoxFuture;
use tickwheel::{Sleep, SleepError, Wheel};
use tokio::{
    runtime::{Handle, Runtime},
    sync::oneshot,
};

use support::{
    SECOND, assert_at_rest, ms, real_runtime, register, threaded_runtime, waiting, waker_of, within,
};

/// When the hostile waker is woken, and some of the others too.
const DUE: Duration = ms(30);

/// How many other sleeps there are. A third of them is due with the hostile one, the rest before and after.
const OTHERS: u64 = 90;

/// Where the driver works, and what it drives.
struct Stage {
    wheel: Mutex<Option<Wheel>>,
    /// None once somebody has shut it down.
    runtime: Mutex<Option<Runtime>>,
    driving: Handle,
    /// What goes on beside, once the hostile waker has acted.
    beside: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Stage {
    fn beside(&self, act: impl FnOnce() + Send + 'static) {
        self.beside.lock().unwrap().push(thread::spawn(act));
    }

    fn wheel(&self) -> Wheel {
        self.wheel.lock().unwrap().clone().expect("a handle is left")
    }

    fn take_runtime(&self) -> Option<Runtime> {
        self.runtime.lock().unwrap().take()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flavor {
    CurrentThread,
    MultiThread,
}

use Flavor::{CurrentThread, MultiThread};

/// Has `act` run in a waker that the driver wakes, on a runtime of each of these kinds.
#[track_caller]
fn on_each(flavors: &[Flavor], act: impl Fn(&Arc<Stage>) + Clone + Send + Sync + 'static) {
    for &flavor in flavors {
        let act = act.clone();
        within(60 * SECOND, move || play(flavor, act));
    }
}

/// The hostile waker acts once. Every other sleep comes, whoever drives the wheel then, and a new one does
/// too.
fn play(flavor: Flavor, act: impl Fn(&Arc<Stage>) + Send + Sync + 'static) {
    // On one thread, somebody drives the runtime until the scene is over.
    let (over, is_over) = oneshot::channel::<()>();
    let (runtime, driven) = match flavor {
        MultiThread => (Some(threaded_runtime(2)), None),
        CurrentThread => {
            let (sender, receiver) = mpsc::channel();
            let driven = thread::spawn(move || {
                let runtime = real_runtime();
                sender.send(runtime.handle().clone()).unwrap();
                let _ = runtime.block_on(is_over);
            });
            (None, Some((receiver.recv().unwrap(), driven)))
        }
    };
    let driving = match (&runtime, &driven) {
        (Some(runtime), _) => runtime.handle().clone(),
        (_, Some((handle, _))) => handle.clone(),
        _ => unreachable!("there is one runtime"),
    };
    let wheel = Wheel::builder().handle(driving.clone()).shards(2);
    let stage = Arc::new(Stage {
        wheel: Mutex::new(Some(wheel.build().unwrap())),
        runtime: Mutex::new(runtime),
        driving: driving.clone(),
        beside: Mutex::default(),
    });

    let (over_with, is_over_with) = mpsc::channel::<()>();
    let hostile = {
        let (stage, once) = (stage.clone(), Mutex::new(Some(over_with)));
        waker_of(move || {
            // The driver that goes wakes everybody, and it may wake this one again. It is over with once the
            // sender is dropped, also if this panics.
            let once = once.lock().unwrap().take();
            if let Some(over_with) = once {
                over_with.send(()).unwrap();
                act(&stage);
            }
        })
    };
    let elsewhere = threaded_runtime(2);
    let wheel = stage.wheel();
    let sleep = waiting(&hostile, || wheel.try_sleep(DUE));
    let due = sleep.deadline();
    let others: Vec<_> = (0..OTHERS)
        .map(|n| {
            let apart = ms(n / 9);
            let at = match n % 3 {
                0 => due,
                1 => due - apart,
                _ => due + apart,
            };
            let sleep = wheel.sleep_until(at);
            elsewhere.spawn(async move {
                sleep.await;
                Ok(())
            })
        })
        .collect();
    drop((hostile, wheel));

    elsewhere.block_on(async {
        for other in others {
            assert_eq!(refusal(other.await.unwrap(), &stage), None, "another sleep");
        }
        assert_eq!(is_over_with.iter().count(), 1, "the hostile waker was woken");
        assert_eq!(
            refusal(sleep.await, &stage),
            None,
            "the sleep of the hostile waker"
        );
        for beside in stage.beside.lock().unwrap().drain(..) {
            beside.join().unwrap();
        }
        let wheel = stage.wheel.lock().unwrap().clone();
        if let Some(wheel) = wheel {
            if !wheel.is_shutdown() {
                wheel.sleep(ms(3)).await;
            }
            assert_at_rest(&wheel);
        }
    });
    drop(over);
    if let Some((_, driven)) = driven {
        driven.join().unwrap();
    }
    if let Some(runtime) = stage.take_runtime() {
        runtime.shutdown_background();
    }
    elsewhere.shutdown_background();
}

/// What a sleep was refused, unless the wheel has been shut down.
fn refusal(slept: Result<(), SleepError>, stage: &Stage) -> Option<SleepError> {
    let is_shutdown = || stage.wheel().is_shutdown();
    slept.err().filter(|_| !is_shutdown())
}

const EACH: &[Flavor] = &[CurrentThread, MultiThread];

#[test]
fn one_that_blocks() {
    on_each(EACH, |_| thread::sleep(ms(200)));
}

#[test]
fn one_that_panics() {
    on_each(EACH, |_| panic!("a waker's own"));
}

#[test]
fn one_that_drops_the_last_handle() {
    on_each(EACH, |stage| drop(stage.wheel.lock().unwrap().take()));
}

#[test]
fn one_that_shuts_the_wheel_down() {
    on_each(EACH, |stage| {
        stage.wheel().shutdown();
    });
}

#[test]
fn one_that_blocks_on_a_future() {
    on_each(EACH, |stage| stage.driving.block_on(async {}));
}

/// On several workers, Tokio itself aborts the process then.
#[test]
fn one_that_blocks_in_place() {
    on_each(&[CurrentThread], |_| tokio::task::block_in_place(|| {}));
}

#[test]
fn one_that_drops_another_runtime() {
    on_each(EACH, |_| drop(real_runtime()));
}

#[test]
fn one_that_shuts_the_drivers_runtime_down() {
    on_each(&[MultiThread], |stage| {
        stage.take_runtime().expect("it is there").shutdown_background();
    });
}

#[test]
fn one_that_drops_the_drivers_runtime() {
    on_each(&[MultiThread], |stage| drop(stage.take_runtime()));
}

#[test]
fn one_that_starts_and_resets_timers() {
    on_each(EACH, |stage| {
        let wheel = stage.wheel();
        let mut cx = Context::from_waker(Waker::noop());
        let now = tokio::time::Instant::now();
        // Ours and Tokio's, some of them due at once.
        let mut ours: Vec<_> = (0..20).map(|n| wheel.sleep(ms(n))).collect();
        let mut tokios: Vec<_> = (0..20).map(|n| Box::pin(tokio::time::sleep(ms(n)))).collect();
        for reset in [ms(0), ms(2), ms(1)] {
            for (our, tokio) in ours.iter_mut().zip(&mut tokios) {
                let _ = Pin::new(&mut *our).poll(&mut cx);
                let _ = tokio.as_mut().poll(&mut cx);
                our.reset_at(now + reset);
                tokio.as_mut().reset(now + reset);
            }
        }
        // These stay, and come later.
        stage.beside(move || {
            for our in ours {
                futures::executor::block_on(our);
            }
        });
    });
}

/// Each of these timers wakes a waker that starts the next, for as long as a turn lasts.
#[test]
fn one_that_starts_a_timer_that_is_due_by_now() {
    on_each(EACH, |stage| {
        fn next(wheel: Wheel, left: usize, kept: &Arc<Mutex<Vec<Sleep>>>) {
            let (others, again) = (kept.clone(), wheel.clone());
            let waker = waker_of(move || {
                if left > 0 {
                    next(again.clone(), left - 1, &others);
                }
            });
            let sleep = waiting(&waker, || wheel.sleep(ms(1)));
            kept.lock().unwrap().push(sleep);
        }
        let kept = Arc::default();
        next(stage.wheel(), 20, &kept);
        // Past its deadline.
        thread::sleep(ms(3));
        stage.beside(move || {
            while kept.lock().unwrap().len() < 21 {
                thread::sleep(ms(1));
            }
            kept.lock().unwrap().clear();
        });
    });
}

#[test]
fn one_that_drops_timers_of_the_same_wheel() {
    let started = |wheel: &Wheel, n| {
        let mut timeout = wheel.timeout(SECOND + ms(n), pending::<()>());
        register(&mut timeout);
        let sleep = waiting(Waker::noop(), || wheel.sleep(DUE / 2 + ms(n)));
        (timeout, sleep)
    };
    on_each(EACH, move |stage| {
        let wheel = stage.wheel();
        let many: Vec<_> = (0..500).map(|n| started(&wheel, n)).collect();
        drop(many);
    });
}

/// A task of an executor of one's own: its last reference is the waker, and with it goes what the task owns.
#[test]
fn one_whose_task_is_dropped_as_it_is_woken() {
    struct Task {
        _owns: Mutex<BoxFuture<'static, ()>>,
        dropped: Arc<AtomicBool>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            self.dropped.store(true, Ordering::SeqCst);
        }
    }

    on_each(EACH, |stage| {
        let wheel = stage.wheel();
        let (sleep, timeout) = (wheel.sleep(SECOND), wheel.timeout(SECOND, pending::<()>()));
        let owner = wheel.clone();
        let mut owned = Box::pin(async move {
            let _ = futures::join!(sleep, timeout);
            drop(owner);
        });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(owned.as_mut().poll(&mut cx).is_pending());
        let dropped = Arc::new(AtomicBool::new(false));
        let task = Waker::from(Arc::new(Task {
            _owns: Mutex::new(owned),
            dropped: dropped.clone(),
        }));
        let sleep = waiting(&task, || wheel.sleep(ms(1)));
        drop(task);
        stage.beside(move || {
            while !dropped.load(Ordering::SeqCst) {
                thread::sleep(ms(1));
            }
            drop(sleep);
        });
    });
}

/// A turn of one wheel sets the alarm of another, which is driven by the same runtime.
#[test]
fn one_that_starts_another_wheel() {
    on_each(EACH, |stage| {
        let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
        let (sender, woken) = mpsc::channel();
        let sleep = waiting(&waker_of(move || sender.send(()).unwrap()), || wheel.sleep(ms(1)));
        stage.beside(move || {
            woken.recv().unwrap();
            assert_eq!(wheel.pending(), 0);
            drop(sleep);
        });
    });
}
