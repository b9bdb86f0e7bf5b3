//! An axum server behind tower's timeout, and a reqwest client with timeouts of its own.

use std::future::{IntoFuture, pending};

use axum::{BoxError, Router, error_handling::HandleErrorLayer, routing::get};
use facade_programs::{ELAPSES, measure, met};
use reqwest::{Client, StatusCode, Url};
use tokio::{net::TcpListener, time::Duration};
use tower::{ServiceBuilder, timeout::TimeoutLayer};

/// Serves `/`, and `/stalls` that never answers; gives the server's address.
async fn serve(timeout: Duration) -> String {
    let timeout = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |_: BoxError| {
            StatusCode::REQUEST_TIMEOUT
        }))
        .layer(TimeoutLayer::new(timeout));
    let routes = Router::new()
        .route("/", get(async || "hello"))
        .route("/stalls", get(pending::<()>));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(axum::serve(listener, routes.layer(timeout)).into_future());
    format!("http://{address}")
}

fn client(timeout: Duration) -> Client {
    Client::builder()
        .no_proxy()
        .connect_timeout(met())
        .timeout(timeout)
        .build()
        .expect("a client")
}

async fn get_all(client: Client, url: Url) -> reqwest::Result<StatusCode> {
    let response = client.get(url).send().await?;
    let status = response.status();
    response.bytes().await.map(|_| status)
}

#[tokio::main]
async fn main() {
    let (patient, strict) = (serve(met()).await, serve(ELAPSES).await);
    let get = |client: Client, server: &str, path| {
        let url: Url = format!("{server}{path}").parse().expect("a URL");
        move || get_all(client.clone(), url.clone())
    };
    measure(
        get(client(2 * met()), &patient, "/"),
        |answer| answer.is_ok_and(|status| status == StatusCode::OK),
        get(client(2 * met()), &strict, "/stalls"),
        |answer| answer.is_ok_and(|status| status == StatusCode::REQUEST_TIMEOUT),
        get(client(ELAPSES), &patient, "/stalls"),
        |answer| answer.is_err_and(|error| error.is_timeout()),
    )
    .await;
}
