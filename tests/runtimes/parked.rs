//! Alone in its process, because it counts the descriptors of that.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use tickwheel::time;

struct Held(#[allow(dead_code)] Arc<()>);

impl Wake for Held {
    fn wake(self: Arc<Self>) {}
}

static ALONE: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A thread is parked for long with a spare of an engine that has ended.
#[test]
fn a_parked_thread_keeps_no_runtime() {
    let _alone = ALONE.lock();
    let before = descriptors();
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut held = Vec::new();
    let mut parked = Vec::new();
    for _ in 0..10 {
        let owned = Arc::new(());
        held.push(Arc::downgrade(&owned));
        let sender = sender.clone();
        parked.push(thread::spawn(move || {
            let waker = Waker::from(Arc::new(Held(owned)));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            {
                let _entered = runtime.enter();
                for _ in 0..3 {
                    let mut sleep = Box::pin(time::sleep((30 * SECOND)));
                    assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                }
            }
            drop(waker);
            drop(runtime);
            sender.send(()).unwrap();
            thread::park_timeout((2 * SECOND));
        }));
    }
    for _ in 0..10 {
        receiver.recv().unwrap();
    }
    assert!(descriptors() <= before + 2, "{} to {}", before, descriptors());
    assert!(
        held.iter().all(|held| held.upgrade().is_none()),
        "a waker is kept alive"
    );
    for parked in parked {
        parked.thread().unpark();
        parked.join().unwrap();
    }
}

/// A sleep of one runtime is polled by a task of another, which ends.
#[test]
fn a_spare_keeps_no_task_of_another_runtime() {
    let _alone = ALONE.lock();
    let first = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let before = descriptors();
    let (sender, receiver) = std::sync::mpsc::channel();
    let parked: Vec<_> = (0..10)
        .map(|_| {
            let (handle, sender) = (first.handle().clone(), sender.clone());
            thread::spawn(move || {
                let mut sleep = Box::pin(time::sleep((30 * SECOND)));
                {
                    let _entered = handle.enter();
                    let mut context = Context::from_waker(Waker::noop());
                    assert!(sleep.as_mut().poll(&mut context).is_pending());
                }
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let polled = std::future::poll_fn(move |cx| {
                    assert!(sleep.as_mut().poll(cx).is_pending());
                    std::task::Poll::Ready(())
                });
                runtime.block_on(async { tokio::spawn(polled).await.unwrap() });
                drop(runtime);
                sender.send(()).unwrap();
                thread::park_timeout((2 * SECOND));
            })
        })
        .collect();
    for _ in 0..10 {
        receiver.recv().unwrap();
    }
    assert!(descriptors() <= before + 2, "{} to {}", before, descriptors());
    for parked in parked {
        parked.thread().unpark();
        parked.join().unwrap();
    }
}
