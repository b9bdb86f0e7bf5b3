use std::{
    future::{Future, pending, ready},
    pin::pin,
    task::{Context, Waker},
    time::{Duration, Instant},
};
use tickwheel::Wheel;
fn per(n: u64, f: impl FnOnce()) -> f64 {
    let t = Instant::now();
    f();
    t.elapsed().as_nanos() as f64 / n as f64
}
#[tokio::main]
async fn main() {
    let wheel = Wheel::new();
    let n = 3_000_000u64;
    let w = wheel.clone();
    tokio::spawn(async move {
    let wheel = w;
    std::future::poll_fn(|cx| {
        for _ in 0..3 {
        let a = per(n, || for _ in 0..n { let f = pin!(wheel.timeout(Duration::from_secs(5), ready(1))); std::hint::black_box(f.poll(cx).is_ready()); });
        let b = per(n, || for _ in 0..n { let f = pin!(tokio::time::timeout(Duration::from_secs(5), ready(1))); std::hint::black_box(f.poll(cx).is_ready()); });
        let c = per(n, || for _ in 0..n { let f = pin!(wheel.timeout(Duration::from_secs(5), pending::<()>())); std::hint::black_box(f.poll(cx).is_ready()); });
        let d = per(n, || for _ in 0..n { let f = pin!(tokio::time::timeout(Duration::from_secs(5), pending::<()>())); std::hint::black_box(f.poll(cx).is_ready()); });
        let e = per(n, || for _ in 0..n { let f = pin!(wheel.sleep(Duration::from_secs(5))); std::hint::black_box(f.poll(cx).is_ready()); });
        let mut s = Box::pin(wheel.sleep(Duration::from_secs(5))); let _ = s.as_mut().poll(cx);
        let at = tokio::time::Instant::now() + Duration::from_secs(6);
        let g = per(n, || for i in 0..n { s.as_mut().reset(at + Duration::from_nanos(i)); std::hint::black_box(&mut s); });
        let mut s = Box::pin(tokio::time::sleep(Duration::from_secs(5))); let _ = s.as_mut().poll(cx);
        let h = per(n, || for i in 0..n { s.as_mut().reset(at + Duration::from_nanos(i)); std::hint::black_box(&mut s); });
        println!("ready {a:.1} vs tokio {b:.1} ({:.1}x)  register+cancel {c:.1} vs {d:.1} ({:.1}x)  sleep {e:.1}  reset {g:.2} vs {h:.2} ({:.1}x)", b/a, d/c, h/g);
        }
        std::task::Poll::Ready(())
    }).await;
    }).await.unwrap();
    println!("{:?}", wheel.metrics());
    println!("{}", std::mem::size_of::<tickwheel::Sleep>());
    let t = Instant::now();
    wheel.sleep(Duration::from_millis(100)).await.unwrap();
    println!("{:?}", t.elapsed());
    let _ = Context::from_waker(Waker::noop());
}
