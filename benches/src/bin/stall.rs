//! How long a registration waits while a million timers of its shard expire at once, and how long those take:
//! `stall [--timers N] [--rounds N]`.

use std::{
    pin::Pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    stage,
};

fn main() {
    let arguments = Arguments::read();
    if arguments.rest.is_empty() {
        return in_turn(&arguments, &["tickwheel"]);
    }
    let timers = arguments.number("timers", 1_000_000);
    let runtime = stage::quiet(1);
    let wheel = Wheel::builder().shards(1).build().expect("one shard is allowed");
    let _entered = runtime.enter();
    let mut cx = Context::from_waker(Waker::noop());
    let due = tokio::time::Instant::now() + Duration::from_secs(2);
    let mut sleeps: Vec<_> = (0..timers).map(|_| wheel.sleep_until(due)).collect();
    for sleep in &mut sleeps {
        assert!(Pin::new(sleep).poll(&mut cx).is_pending());
    }
    assert!(
        Instant::now() < due.into_std(),
        "they expire before they all wait"
    );
    std::thread::sleep(due.into_std() - Instant::now());
    let mut waits = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
    let (mut began, mut ended) = (None, None);
    while ended.is_none() {
        let start = Instant::now();
        let mut sleep = wheel.sleep(Duration::from_secs(60));
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        drop(sleep);
        let now = Instant::now();
        let left = wheel.pending();
        if (left as u64) < timers {
            began.get_or_insert(start);
            waits.saturating_record((now - start).as_nanos() as u64);
        }
        if left == 0 {
            ended = Some(now);
        }
    }
    let took = ended
        .zip(began)
        .map_or(Duration::ZERO, |(end, begin)| end - begin);
    let us = |quantile| waits.value_at_quantile(quantile) as f64 / 1e3;
    let line = Line::new("stall")
        .with("peer", "tickwheel")
        .with("timers", timers);
    println!(
        "{}",
        line.with_number("all_ms", took.as_secs_f64() * 1e3)
            .with("registrations", waits.len())
            .with_number("p50_us", us(0.5))
            .with_number("p99_us", us(0.99))
            .with_number("p999_us", us(0.999))
            .with_number("max_us", waits.max() as f64 / 1e3)
    );
}
