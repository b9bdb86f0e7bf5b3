//! A tonic service with the server's timeout, and clients with timeouts of their own.

use facade_programs::{ELAPSES, REQUESTS, measure, met};
use tokio::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint, Server, server::TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const STALLS: &str = "stalls";

struct Service;

#[tonic::async_trait]
impl Health for Service {
    type WatchStream = Streaming<HealthCheckResponse>;

    /// Never answers if it is asked for `STALLS`.
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service == STALLS {
            std::future::pending::<()>().await;
        }
        let mut response = Response::new(HealthCheckResponse::default());
        if REQUESTS.is_some() {
            // hyper would add the time, which HPACK compares with each second before, so that a slow run
            // would count more.
            let date = MetadataValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT");
            response.metadata_mut().insert("date", date);
        }
        Ok(response)
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("nothing changes"))
    }
}

/// Gives the server's address.
async fn serve(timeout: Duration) -> Endpoint {
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let incoming = TcpIncoming::bind(any_port)
        .expect("a port is free")
        .with_nodelay(Some(true));
    let address = incoming.local_addr().expect("it is bound");
    let server = Server::builder()
        .timeout(timeout)
        .add_service(HealthServer::new(Service));
    tokio::spawn(server.serve_with_incoming(incoming));
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect_timeout(met())
}

async fn client(endpoint: &Endpoint, timeout: Duration) -> HealthClient<Channel> {
    HealthClient::new(
        endpoint
            .clone()
            .timeout(timeout)
            .connect()
            .await
            .expect("it listens"),
    )
}

async fn check(mut client: HealthClient<Channel>, service: &str) -> Result<(), Status> {
    let request = HealthCheckRequest {
        service: service.into(),
    };
    client.check(request).await.map(drop)
}

#[tokio::main]
async fn main() {
    let (patient, strict) = (serve(met()).await, serve(ELAPSES).await);
    let check = |client: HealthClient<Channel>, service| move || check(client.clone(), service);
    measure(
        check(client(&patient, 2 * met()).await, ""),
        |answer| answer.is_ok(),
        check(client(&strict, 2 * met()).await, STALLS),
        |answer| answer.is_err_and(|status| status.message().contains("imeout")),
        check(client(&patient, ELAPSES).await, STALLS),
        |answer| answer.is_err_and(|status| status.message().contains("imeout")),
    )
    .await;
}
