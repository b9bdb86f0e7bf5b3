//! Register and cancel where many tasks take turns: `turns [--tasks N] [--times N] [--rounds N]`.
//!
//! Each task has a pending timeout. `same`: the task whose turn it is ends its timeout and starts its next one, as a connection does
//! whose next request has already arrived. `other`: it ends its own timeout, and another task starts one.

use std::{
    future::{Future, pending},
    sync::Arc,
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use pingora_timeout::fast_timeout::fast_timeout;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    stage,
};

const TIMEOUT: Duration = Duration::from_secs(600);

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["tickwheel", "tokio", "pingora-timeout"]);
    };
    let tasks = arguments.number("tasks", 64) as usize;
    let times = arguments.number("times", 2_000_000) as usize;
    // One worker for the work, one for whoever drives the timers.
    let runtime = stage::quiet(2);
    let mut line = Line::new("turns").with("peer", peer).with("tasks", tasks);
    for (next, step) in [("same_ns", 0), ("other_ns", 1)] {
        let peer = peer.clone();
        let work = async move {
            match peer.as_str() {
                "tickwheel" => {
                    let wheel = Wheel::new();
                    turns(tasks, times, step, || wheel.timeout(TIMEOUT, pending::<()>()))
                }
                "tokio" => turns(tasks, times, step, || {
                    tokio::time::timeout(TIMEOUT, pending::<()>())
                }),
                "pingora-timeout" => turns(tasks, times, step, || fast_timeout(TIMEOUT, pending::<()>())),
                peer => panic!("there is no {peer}"),
            }
        };
        let took = runtime
            .block_on(runtime.spawn(work))
            .expect("the work does not panic");
        line = line.with_number(next, took.as_secs_f64() * 1e9 / times as f64);
    }
    println!("{line}");
}

/// Ends one timeout after the other, and starts another in its place: in each pass for a task `step` further.
fn turns<F: Future>(tasks: usize, times: usize, step: usize, timeout: impl Fn() -> F) -> Duration {
    let wakers: Vec<_> = (0..tasks).map(|_| Waker::from(Arc::new(Nobody))).collect();
    let mut places: Vec<_> = (0..tasks).map(|_| Box::pin(None::<F>)).collect();
    let mut began = Instant::now();
    for turn in 0..times + times / 10 {
        // A tenth goes ahead, for the driver to start and a busy shard to begin to tick.
        if turn == times / 10 {
            began = Instant::now();
        }
        let task = turn % tasks;
        let mut place = places[task].as_mut();
        place.set(None);
        place.set(Some(timeout()));
        let started = place.as_pin_mut().expect("it was just put there");
        let mut cx = Context::from_waker(&wakers[(task + turn / tasks * step) % tasks]);
        assert!(started.poll(&mut cx).is_pending());
    }
    began.elapsed()
}
