//! Three services in a row, and a budget of 300 ms at the edge. The one in the middle is sometimes slow. The
//! table shows how much work each does for requests that nobody waits for any more, with and without the
//! budget being passed on.
//!
//! Each service hands its work to a task, as one with a queue does, so a caller that hangs up does not end
//! it.
//!
//! ```text
//! cargo run --release -p examples --bin deadlines
//! ```

use std::{
    error::Error,
    future::IntoFuture,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{Path, Request},
    http::StatusCode,
    response::IntoResponse,
    routing::get,
};
use reqwest::Client;
use tickwheel::{
    deadline,
    time::sleep,
    tower::{DeadlineHeader, DeadlineLayer},
};
use tokio::{net::TcpListener, task::yield_now};

const BUDGET: Duration = Duration::from_millis(300);
const REQUESTS: u64 = 100;

#[derive(Default)]
struct Service {
    name: &'static str,
    /// How many milliseconds of the processor a request takes.
    work: u64,
    next: Option<SocketAddr>,
    client: Client,
    passes_on: bool,
    requests: AtomicU64,
    requests_for_nobody: AtomicU64,
    cpu: AtomicU64,
    cpu_for_nobody: AtomicU64,
}

impl Service {
    /// Computes for a millisecond, for a request that the edge got when it `began`.
    fn compute(&self, began: Instant, for_nobody: &mut bool) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {}
        self.cpu.fetch_add(1, Relaxed);
        if start > began + BUDGET {
            self.cpu_for_nobody.fetch_add(1, Relaxed);
            self.requests_for_nobody
                .fetch_add(u64::from(!*for_nobody), Relaxed);
            *for_nobody = true;
        }
    }
}

/// Waits if the service is slow, computes for a while, and asks the next service. The path says how old the
/// request is, for the table alone.
async fn work(service: Arc<Service>, began: Instant) -> StatusCode {
    let number = service.requests.fetch_add(1, Relaxed);
    if service.name == "middle" {
        let slow = 150 + number * 37 % 400;
        sleep(Duration::from_millis(if number % 4 == 0 { slow } else { 20 })).await;
    }
    let mut for_nobody = false;
    for _ in 0..service.work {
        service.compute(began, &mut for_nobody);
        yield_now().await; // a scope ends only where its future waits
    }
    let Some(next) = service.next else {
        return StatusCode::OK;
    };
    let mut request = service
        .client
        .get(format!("http://{next}/{}", began.elapsed().as_micros()))
        .build()
        .expect("a valid address");
    // A client that is a tower service has `PropagateLayer` for this.
    if let Some(left) = deadline::remaining().filter(|_| service.passes_on) {
        DeadlineHeader::grpc_timeout().write(request.headers_mut(), left);
    }
    let response = service.client.execute(request).await;
    response.map_or(StatusCode::BAD_GATEWAY, |response| response.status())
}

async fn serve(service: Arc<Service>) -> Result<SocketAddr, Box<dyn Error>> {
    let budget = (service.name == "edge").then_some(BUDGET);
    let header = DeadlineHeader::grpc_timeout();
    let layer =
        DeadlineLayer::from_request(move |request: &Request| budget.or(header.read(request.headers())))
            .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response());
    let handler = async move |Path(age): Path<u64>| {
        let work = deadline::carry(work(service, Instant::now() - Duration::from_micros(age)));
        let outcome = tokio::spawn(work).await.ok().and_then(Result::ok);
        outcome.unwrap_or(StatusCode::GATEWAY_TIMEOUT)
    };
    let app = Router::new().route("/{age}", get(handler)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}

async fn run(passes_on: bool) -> Result<(), Box<dyn Error>> {
    let (mut next, mut services) = (None, Vec::new());
    for (name, work) in [("last", 6), ("middle", 2), ("edge", 1)] {
        #[rustfmt::skip]
        let service = Arc::new(Service { name, work, next, passes_on, ..Default::default() });
        next = Some(serve(service.clone()).await?);
        services.push(service);
    }
    let url = format!("http://{}/0", next.unwrap());
    let client = Client::new();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS {
        asked.spawn(client.get(&url).send());
        sleep(Duration::from_millis(20)).await;
    }
    let mut in_time = 0;
    for answer in asked.join_all().await {
        in_time += u64::from(answer?.status().is_success());
    }
    sleep(2 * BUDGET).await; // for what goes on
    println!("\npropagation: {passes_on}; {in_time} of {REQUESTS} requests are answered in time");
    println!("           requests   for nobody       CPU   for nobody");
    for service in services.iter().rev() {
        let [requests, wasted] = [&service.requests, &service.requests_for_nobody].map(|n| n.load(Relaxed));
        let [cpu, wasted_cpu] = [&service.cpu, &service.cpu_for_nobody].map(|ms| ms.load(Relaxed));
        let name = service.name;
        println!("{name:<8} {requests:>10} {wasted:>12} {cpu:>6} ms {wasted_cpu:>9} ms");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run(false).await?;
    run(true).await
}
