//! Runtimes that begin and end, as in a program that makes one for each call.

use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use tickwheel::Wheel;
use tokio::{
    runtime::{Builder, Runtime},
    task,
};

use crate::timers::Timers;

/// Engines that have a timer and nothing to do.
const IDLE: usize = 4_000;

/// Uses one timeout in each of `times` runtimes, beside many idle engines.
pub fn begin_and_end(timers: &impl Timers, duration: Duration, times: u64) {
    let beside = runtime();
    let _idle: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut sleep = Box::pin(Wheel::new().sleep(duration));
            let _entered = beside.enter();
            assert!(
                sleep
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            sleep
        })
        .collect();
    for _ in 0..times {
        let timeout = async { timers.timeout(duration, task::yield_now()).await };
        assert!(runtime().block_on(timeout).is_ok());
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("there are descriptors left")
}
