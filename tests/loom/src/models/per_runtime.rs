//! `PerRuntime` of tickwheel-redis: work for a task that ends whenever it has none.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
};

use loom::thread;

use super::model;
use crate::{
    per_runtime::{Guard, PerRuntime},
    runtime::Handle,
    task::yield_now,
};

/// The work that waits, each piece of which counts itself when it is done.
type Lane = VecDeque<Arc<AtomicUsize>>;

/// Runs `beside` on this thread while two others hand over one piece of work each. Then checks that no value
/// is left, and returns how much was done.
fn hand_over(beside: impl FnOnce(&Handle)) -> usize {
    let (runtime, lanes, done) = (
        Handle::new(1),
        Arc::new(PerRuntime::<Lane>::default()),
        Arc::default(),
    );
    let threads = [(); 2].map(|()| {
        let (runtime, lanes, work) = (runtime.clone(), lanes.clone(), Arc::clone(&done));
        thread::spawn(move || {
            let serve = |lane: Guard<Lane>| async move {
                while lane.running().end_if(|lane| lane.is_empty()).is_none() {
                    let work = lane.running().get(VecDeque::pop_front).flatten();
                    work.into_iter().for_each(|work| _ = work.fetch_add(1, Relaxed));
                    yield_now().await;
                }
            };
            lanes.get_or_start(&runtime, Lane::new, serve, |lane| lane.push_back(work));
        })
    });
    beside(&runtime);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Each piece is done at one poll, and at the next one its task ends.
    (0..4).for_each(|_| runtime.poll_tasks(Waker::noop()));
    assert!(
        lanes.get(runtime.id(), |_| ()).is_none(),
        "a value without a task"
    );
    assert_eq!(Arc::strong_count(&done), 1, "work that nobody does");
    done.load(Relaxed)
}

#[test]
fn what_is_handed_to_a_task_that_ends_is_done() {
    model(3, || {
        let done = hand_over(|runtime| (0..2).for_each(|_| runtime.poll_tasks(Waker::noop())));
        assert_eq!(done, 2);
    });
}

#[test]
fn what_is_handed_over_while_a_runtime_shuts_down_goes_with_it() {
    model(3, || {
        hand_over(|runtime| {
            runtime.poll_tasks(Waker::noop());
            runtime.shut_down();
        });
    });
}
