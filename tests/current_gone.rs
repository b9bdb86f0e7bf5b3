//! The current wheels of runtimes that have ended leave no memory behind. A process of its own, because it counts every byte.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::pending,
    sync::atomic::{AtomicIsize, Ordering},
    thread,
};

use support::*;
use tickwheel::{Wheel, time};
use tokio::runtime::Runtime;

static LIVE: AtomicIsize = AtomicIsize::new(0);

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

/// Bytes that `times` of something leave, after as many to warm up.
fn left_by(times: usize, once: impl Fn()) -> isize {
    (0..times).for_each(|_| once());
    let before = LIVE.load(Ordering::Relaxed);
    (0..times).for_each(|_| once());
    LIVE.load(Ordering::Relaxed) - before
}

#[test]
fn of_thousands_of_runtimes_nothing_is_left() {
    // Less than a byte for each; a table may have grown for those at once.
    const LITTLE: isize = 512;
    let made: [fn() -> Runtime; 3] = [real_runtime, paused_runtime, || threaded_runtime(1)];
    for make in made {
        let asked = left_by(500, || {
            make().block_on(async { drop(Wheel::current()) });
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
                use_it().await;
                drop(Wheel::current().shutdown());
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

    // Many at once, and all of them gone.
    let together = left_by(3, || {
        let runtimes: Vec<_> = (0..100).map(|_| paused_runtime()).collect();
        for runtime in &runtimes {
            runtime.block_on(use_it());
        }
    });
    assert!(together < LITTLE, "{together} bytes of many at once");

    // To the last byte, but for what a thread keeps of what it used last.
    let before = LIVE.load(Ordering::Relaxed);
    thread::spawn(|| real_runtime().block_on(use_it()))
        .join()
        .unwrap();
    let left = LIVE.load(Ordering::Relaxed) - before;
    assert!(left < LITTLE, "{left} bytes of a thread and its runtime");
}
