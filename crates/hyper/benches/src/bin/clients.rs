//! Clients that mean well, half of them on HTTP/1 and half on HTTP/2, by reqwest: `clients SECONDS PORT COUNT`. It
//! fails if one of their requests does.

use std::{
    env, io,
    process::ExitCode,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use reqwest::{Body, Client, RequestBuilder};
use tokio::{task::JoinSet, time::sleep};

const KINDS: [&str; 6] = ["/", "/slow", "/events", "/big", "/length", "/length slowly"];

fn request(client: &Client, base: &str, kind: &str) -> RequestBuilder {
    let path = kind.split(' ').next().unwrap_or(kind);
    let url = format!("{base}{path}");
    match kind {
        "/length" => client.post(url).body(vec![b'x'; 100_000]),
        // 10 KB a second.
        "/length slowly" => {
            let pieces = stream::iter(0..30).then(async |_| {
                sleep(Duration::from_millis(100)).await;
                Ok::<_, io::Error>(vec![b'x'; 1_000])
            });
            client.post(url).body(Body::wrap_stream(pieces.boxed()))
        }
        _ => client.get(url),
    }
}

async fn visit(number: usize, base: String, end: Instant) -> (usize, Vec<String>) {
    // Less than the server's idle time, as every client has to.
    let builder = Client::builder().pool_idle_timeout(Duration::from_secs(15));
    let builder = if number.is_multiple_of(2) {
        builder.http1_only()
    } else {
        builder.http2_prior_knowledge()
    };
    let client = builder.build().expect("the settings are good");
    let (mut answered, mut errors) = (0, Vec::new());
    for round in number.. {
        if Instant::now() >= end {
            break;
        }
        let kind = KINDS[round % KINDS.len()];
        let answer = async {
            let response = request(&client, &base, kind).send().await?.error_for_status()?;
            response.bytes().await
        };
        match answer.await {
            Ok(_) => answered += 1,
            Err(error) => errors.push(format!("client {number}, {kind}: {error:?}")),
        }
        // Now and then for long.
        let pause = if round.is_multiple_of(50) {
            12_000
        } else {
            200 + round as u64 % 7 * 100
        };
        sleep(Duration::from_millis(pause)).await;
    }
    (answered, errors)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<u64> = env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let [seconds, port, count] = arguments[..] else {
        panic!("usage: clients SECONDS PORT COUNT");
    };
    let (base, end) = (
        format!("http://127.0.0.1:{port}"),
        Instant::now() + Duration::from_secs(seconds),
    );
    let mut clients: JoinSet<_> = (0..count as usize)
        .map(|number| visit(number, base.clone(), end))
        .collect();
    let (mut answered, mut errors) = (0, Vec::new());
    while let Some(client) = clients.join_next().await {
        let (more, failed) = client.expect("no panic");
        answered += more;
        errors.extend(failed);
    }
    println!(
        "{count} clients: {answered} requests answered, {} failed",
        errors.len()
    );
    for error in errors.iter().take(5) {
        println!("  {error}");
    }
    if errors.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
