//! Wheels leave no memory and no file descriptors behind of runtimes and tasks that have ended. A process of
//! its own, because it counts every byte and every descriptor.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::pending,
    sync::{
        Barrier, Mutex, PoisonError,
        atomic::{AtomicIsize, Ordering},
    },
    thread,
};

use support::*;
use tickwheel::{Wheel, time};
use tokio::runtime::{Builder, Runtime};

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Held by the one test that counts.
static COUNTING: Mutex<()> = Mutex::new(());

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is left to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Uses the runtime's wheel, and leaves timers pending in tasks when the runtime goes.
async fn use_it() {
    time::sleep(ms(1)).await;
    tokio::spawn(async { time::timeout(DAY, pending::<()>()).await });
    tokio::spawn(time::sleep(DAY));
    settle().await;
}

/// Bytes that `times` of something leave, after as many to warm up: the least of three counts, because the
/// test harness may start or end another test during one of them.
fn left_by(times: usize, once: impl Fn()) -> isize {
    (0..times).for_each(|_| once());
    let counts = (0..3).map(|_| {
        let before = LIVE.load(Ordering::Relaxed);
        (0..times).for_each(|_| once());
        LIVE.load(Ordering::Relaxed) - before
    });
    counts.min().expect("three counts")
}

#[test]
fn of_thousands_of_runtimes_nothing_is_left() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // Less than a byte for each; a table may have grown for those at once.
    const LITTLE: isize = 512;
    let made: [fn() -> Runtime; 3] = [real_runtime, paused_runtime, || threaded_runtime(1)];
    for make in made {
        let asked = left_by(500, || {
            make().block_on(async { drop(Wheel::new()) });
        });
        assert!(asked < LITTLE, "{asked} bytes of a wheel without a timer");

        let never_driven = left_by(50, || {
            let runtime = make();
            let _entered = runtime.enter();
            let mut sleep = time::sleep(DAY);
            register(&mut sleep);
        });
        assert!(
            never_driven < LITTLE,
            "{never_driven} bytes of a runtime never driven"
        );

        let used = left_by(50, || make().block_on(use_it()));
        assert!(used < LITTLE, "{used} bytes of a wheel that was used");

        let shut_down = left_by(50, || {
            let runtime = make();
            runtime.block_on(async {
                let wheel = Wheel::new();
                wheel.sleep(ms(1)).await;
                tokio::spawn(wheel.try_sleep(DAY));
                tokio::spawn(wheel.sleep(DAY));
                settle().await;
                drop(wheel.shutdown());
            });
        });
        assert!(shut_down < LITTLE, "{shut_down} bytes of a wheel shut down");
    }

    let elsewhere = left_by(50, || {
        let runtime = real_runtime();
        runtime.block_on(use_it());
        thread::spawn(move || drop(runtime)).join().unwrap();
    });
    assert!(
        elsewhere < LITTLE,
        "{elsewhere} bytes of a runtime that ended on another thread"
    );

    // Many at once, and all of them gone. The table of engines is a hash table, which may double once more
    // after the first hundreds, depending on its random hashes. A leak would be found both times.
    let many = || {
        let runtimes: Vec<_> = (0..100).map(|_| paused_runtime()).collect();
        for runtime in &runtimes {
            runtime.block_on(use_it());
        }
    };
    let together = left_by(3, many).min(left_by(3, many));
    assert!(together < LITTLE, "{together} bytes of many at once");

    // To the last byte, but for what a thread keeps of what it used last.
    let before = LIVE.load(Ordering::Relaxed);
    thread::spawn(|| real_runtime().block_on(use_it()))
        .join()
        .unwrap();
    let left = LIVE.load(Ordering::Relaxed) - before;
    assert!(left < LITTLE, "{left} bytes of a thread and its runtime");
}

/// The descriptors that are open while `threads` threads live on, each of which has made a runtime, used a
/// wheel and dropped both.
#[cfg(target_os = "linux")]
fn descriptors_kept_by(threads: usize, once: fn()) -> usize {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let (used, counted) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                once();
                used.wait();
                counted.wait();
            });
        }
        used.wait();
        let kept = open() - before;
        counted.wait();
        kept
    })
}

#[cfg(target_os = "linux")]
#[test]
fn no_thread_keeps_a_descriptor_of_a_runtime_that_has_gone() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // Tokio keeps a few of its own for signals, once in a process.
    io_runtime().block_on(use_it());
    let ways: [(&str, fn()); 8] = [
        ("the global wheel", || io_runtime().block_on(use_it())),
        ("a wheel without a runtime", || {
            let wheel = Wheel::new();
            io_runtime().block_on(wheel.sleep(ms(1)));
        }),
        ("a wheel dropped before its runtime", || {
            let runtime = io_runtime();
            let wheel = wheel_on(&runtime);
            runtime.block_on(wheel.sleep(ms(1)));
            drop(wheel);
        }),
        ("a wheel whose engine ends before its runtime", || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build();
            let runtime = runtime.unwrap();
            let wheel = wheel_on(&runtime);
            runtime.block_on(wheel.sleep(ms(1)));
            drop(wheel);
            runtime.block_on(settle());
        }),
        ("a wheel dropped after its runtime", || {
            let runtime = io_runtime();
            let wheel = wheel_on(&runtime);
            runtime.block_on(wheel.sleep(ms(1)));
            drop(runtime);
        }),
        ("a wheel that outlives its runtime", || {
            let runtime = io_runtime();
            let wheel = wheel_on(&runtime);
            runtime.block_on(wheel.sleep(ms(1)));
            drop(runtime);
            std::mem::forget(wheel);
        }),
        ("a wheel on whose runtime no timer waited", || {
            let runtime = io_runtime();
            let wheel = wheel_on(&runtime);
            drop(wheel.sleep(SECOND));
            assert!(real_runtime().block_on(wheel.timeout(SECOND, async {})).is_ok());
            drop((wheel, runtime));
        }),
        ("a wheel with a timer left pending", || {
            let runtime = io_runtime();
            let wheel = wheel_on(&runtime);
            runtime.block_on(async {
                wheel.sleep(ms(1)).await;
                tokio::spawn(wheel.sleep(DAY));
                settle().await;
            });
        }),
    ];
    for (way, once) in ways {
        assert_eq!(descriptors_kept_by(20, once), 0, "{way}");
    }
}

/// A runtime with I/O, and so with descriptors.
#[cfg(target_os = "linux")]
fn io_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Timers on two wheels at once: a thread keeps a spare with the memory of one ended task, not of all that
/// ended lately.
#[test]
fn spares_keep_no_more_than_one_ended_task() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    const TASKS: usize = 2_000;
    let runtime = threaded_runtime(1);
    let wheels = [Wheel::new(), Wheel::new()];
    let play = || {
        let wheels = wheels.clone();
        let task = runtime.spawn(async move {
            for _ in 0..TASKS {
                let wheels = wheels.clone();
                let task = tokio::spawn(async move {
                    let mut state = [0_u8; 4_096];
                    for wheel in &wheels {
                        let _ = wheel.timeout(SECOND * 30, tokio::task::yield_now()).await;
                        state[7] += 1;
                    }
                    let _ = wheels[0].timeout(SECOND * 30, tokio::task::yield_now()).await;
                    state.iter().map(|byte| u64::from(*byte)).sum::<u64>()
                });
                assert_eq!(task.await.unwrap(), 2);
            }
        });
        runtime.block_on(task).unwrap();
    };
    play();
    let before = LIVE.load(Ordering::Relaxed);
    play();
    let kept = LIVE.load(Ordering::Relaxed) - before;
    assert!(kept < 3 * 4_096, "{kept} bytes after {TASKS} more tasks");
}
