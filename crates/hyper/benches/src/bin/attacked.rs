//! A server under limits on two ports, one for clients that mean well and one for an attack: `attacked SECONDS
//! PORT PORT`. At its end it prints how the connections of each port have ended, and after how many seconds.

use std::{
    collections::BTreeMap,
    env, io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    routing::{get, post},
    serve::Listener,
};
use futures::{StreamExt, stream};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use socket2::SockRef;
use tickwheel::Wheel;
use tickwheel_hyper::ConnectionLimits;
use tickwheel_hyper_benches::usual_limits;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

const SECOND: Duration = Duration::from_secs(1);

/// The seconds after which connections have ended, by port and how.
type Ends = Arc<Mutex<BTreeMap<(&'static str, String), Vec<f64>>>>;

fn app() -> Router {
    let length = async |body: Bytes| body.len().to_string();
    let slow = async || {
        sleep(SECOND).await;
        "slow"
    };
    let events = async || {
        let events = stream::iter(0..5).then(async |_| {
            sleep(SECOND).await;
            Ok::<_, io::Error>("event")
        });
        Body::from_stream(events.boxed())
    };
    Router::new()
        .route("/", get(async || "hello"))
        .route("/slow", get(slow))
        .route("/length", post(length))
        .route("/big", get(async || vec![b'x'; 2_000_000]))
        .route("/events", get(events))
}

async fn serve(port: &'static str, mut listener: TcpListener, limits: ConnectionLimits, ends: Ends) {
    let (builder, app) = (Builder::new(TokioExecutor::new()), app());
    loop {
        let (stream, _) = Listener::accept(&mut listener).await;
        // As a server on the internet does, for slow readers.
        if SockRef::from(&stream).set_tcp_notsent_lowat(16_384).is_err() {
            continue;
        }
        let start = Instant::now();
        let served = limits.serve(
            &builder,
            TokioIo::new(stream),
            TowerToHyperService::new(app.clone()),
        );
        let ends = ends.clone();
        tokio::spawn(async move {
            let ended = served
                .await
                .map_or_else(|error| format!("error: {error}"), |ended| format!("{ended:?}"));
            let after = start.elapsed().as_secs_f64();
            ends.lock()
                .expect("no panic")
                .entry((port, ended))
                .or_default()
                .push(after);
        });
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments: Vec<u16> = env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let [seconds, good, bad] = arguments[..] else {
        panic!("usage: attacked SECONDS PORT PORT");
    };
    let limits = usual_limits(&Wheel::new()).idle(20 * SECOND).grace(10 * SECOND);
    let ends = Ends::default();
    for (name, port) in [("good", good), ("bad", bad)] {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        tokio::spawn(serve(name, listener, limits.clone(), ends.clone()));
    }
    sleep(u32::from(seconds) * SECOND).await;
    for ((port, ended), after) in &mut *ends.lock().expect("no panic") {
        after.sort_by(f64::total_cmp);
        let (least, most) = (after[0], after[after.len() - 1]);
        println!(
            "{port}: {:5} {ended}, after {least:.2} to {most:.2} s",
            after.len()
        );
    }
    println!("{:?}", limits.stats());
    Ok(())
}
