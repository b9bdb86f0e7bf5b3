//! A small server's use of timers, with Tokio's or, with feature `wheel`, with `tickwheel::time`. `measure` compares the two programs.

use std::time::Duration;

#[cfg(feature = "wheel")]
use tickwheel::time;
use tokio::net::TcpListener;
#[cfg(not(feature = "wheel"))]
use tokio::time;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    time::sleep(Duration::from_millis(5)).await;
    let accepted = time::timeout(Duration::from_millis(10), listener.accept()).await;
    println!("accepted: {}", accepted.is_ok());
    let mut interval = time::interval(Duration::from_millis(3));
    interval.tick().await;
    interval.tick().await;
    Ok(())
}
