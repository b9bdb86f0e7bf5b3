//! What it costs to create a `Delay`, poll it once and drop it: contrib/futures-timer beside the original, slice by slice in one process.
//! `delay [--rounds N] [--slice-ms N]`.
//!
//! `inside` is a Tokio runtime of two workers, in which the shim uses the runtime's wheel; `outside` is a thread without a runtime. A
//! delay that is due in an hour is always pending: without it, each of the original's delays would be the earliest.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use tickwheel_benches::{
    children::{Arguments, Line, median},
    process, stage,
};

const DUE: Duration = Duration::from_secs(30);

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

fn main() {
    let arguments = Arguments::read();
    let rounds = arguments.number("rounds", 15);
    let slice = Duration::from_millis(arguments.number("slice-ms", 50));
    measure("outside", rounds, slice);
    let runtime = stage::quiet(2);
    let inside = runtime.spawn(async move { measure("inside", rounds, slice) });
    runtime.block_on(inside).expect("it does not panic");
}

fn measure(place: &str, rounds: u64, slice: Duration) {
    let mut far = (
        pin!(futures_timer_shim::Delay::new(DUE * 120)),
        pin!(futures_timer::Delay::new(DUE * 120)),
    );
    let waker = Waker::from(Arc::new(Nobody));
    let mut cx = Context::from_waker(&waker);
    assert!(far.0.as_mut().poll(&mut cx).is_pending());
    assert!(far.1.as_mut().poll(&mut cx).is_pending());
    type Run<'a> = (&'a str, fn(Duration) -> (f64, f64), Vec<f64>, Vec<f64>);
    let mut runs: [Run; 2] = [
        (
            "tickwheel",
            |slice| run(slice, || futures_timer_shim::Delay::new(DUE)),
            Vec::new(),
            Vec::new(),
        ),
        (
            "futures-timer",
            |slice| run(slice, || futures_timer::Delay::new(DUE)),
            Vec::new(),
            Vec::new(),
        ),
    ];
    for _ in 0..rounds {
        for (_, run, ns, cpu_ns) in &mut runs {
            let (wall, cpu) = run(slice);
            ns.push(wall);
            cpu_ns.push(cpu);
        }
    }
    for (peer, _, ns, cpu_ns) in runs {
        let line = Line::new("delay").with("place", place).with("peer", peer);
        let line = line
            .with_number("ns", median(ns))
            .with_number("cpu_ns", median(cpu_ns));
        println!("{}", line.with("rounds", rounds));
    }
}

/// Nanoseconds for one delay: those that pass, and CPU time of the whole process, helper threads included.
fn run<F: Future>(slice: Duration, delay: impl Fn() -> F) -> (f64, f64) {
    let waker = Waker::from(Arc::new(Nobody));
    let mut cx = Context::from_waker(&waker);
    let (began, before, mut times) = (Instant::now(), process::cpu_time(), 0_u32);
    while began.elapsed() < slice {
        for _ in 0..100 {
            assert!(pin!(delay()).poll(&mut cx).is_pending());
        }
        times += 100;
    }
    let ns = |spent: Duration| spent.as_secs_f64() * 1e9 / f64::from(times);
    (ns(began.elapsed()), ns(process::cpu_time() - before))
}
