//! What a wheel costs under a trickle of one request every 100 ms, each under a timeout of five seconds that is cancelled after 20 ms:
//! `trickle [--seconds N] [--rounds N]`.

use std::{
    thread,
    time::{Duration, Instant},
};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process,
};
use tokio::sync::oneshot;

const EVERY: Duration = Duration::from_millis(100);
const WORK: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["tickwheel", "tokio", "none"]);
    };
    let requests = arguments.number("seconds", 5) * 10;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts");
    let wheel = Wheel::new();
    let before = (
        process::cpu_time(),
        process::context_switches(),
        wheel.metrics().turns,
    );
    let began = Instant::now();
    for request in 0..requests as u32 {
        thread::sleep((began + EVERY * request).saturating_duration_since(Instant::now()));
        // Work comes from and goes to another thread, so that no timer but the one measured has a part in it.
        let (done, work) = oneshot::channel::<()>();
        match peer.as_str() {
            "tickwheel" => {
                let wheel = wheel.clone();
                runtime.spawn(async move { wheel.timeout(TIMEOUT, work).await.expect("in time").ok() });
            }
            "tokio" => {
                runtime
                    .spawn(async move { tokio::time::timeout(TIMEOUT, work).await.expect("in time").ok() });
            }
            "none" => {
                runtime.spawn(async move { work.await.ok() });
            }
            peer => panic!("there is no {peer}"),
        }
        thread::sleep(WORK);
        done.send(()).expect("the request waits");
    }
    let after = (
        process::cpu_time(),
        process::context_switches(),
        wheel.metrics().turns,
    );
    let line = Line::new("trickle").with("peer", peer).with("requests", requests);
    let line = line.with_number("cpu_ms", (after.0 - before.0).as_secs_f64() * 1e3);
    println!(
        "{}",
        line.with("switches", after.1 - before.1)
            .with("turns", after.2 - before.2)
    );
}
