//! An exporter for a third library, or for none: a wheel's metrics as lines of StatsD, sent in UDP datagrams.
//!
//! [`statsd`] is all of it. `main` stands for the server, and receives what it has sent itself.

use std::{error::Error, time::Duration};

use tickwheel::Wheel;
use tickwheel_exported::{ExportedValue, exported};
use tokio::{net::UdpSocket, time::timeout};

/// Writes a wheel's metrics, one a line, with labels as DogStatsD's tags. Totals are sent as gauges, because
/// a counter of StatsD is what was added.
fn statsd(wheel: &Wheel) -> Vec<String> {
    let mut lines = Vec::new();
    for exported in exported(wheel) {
        let mut line = |name: &str, value: f64, more: &str| {
            let labels = exported.labels.iter();
            let tags: String = labels.map(|(key, word)| format!(",{key}:{word}")).collect();
            lines.push(format!("{name}:{value}|g|#{}{more}", &tags[1..]));
        };
        let name = exported.name;
        match &exported.value {
            ExportedValue::Count(number) => line(name, *number as f64, ""),
            ExportedValue::Number(number) => line(name, *number, ""),
            ExportedValue::Histogram { buckets, sum } => {
                for (limit, count) in buckets {
                    line(&format!("{name}.bucket"), *count as f64, &format!(",le:{limit}"));
                }
                line(&format!("{name}.sum"), *sum, "");
            }
            value => eprintln!("{name} has a value of a later version: {value:?}"),
        }
    }
    lines
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (server, client) = (
        UdpSocket::bind("127.0.0.1:0").await?,
        UdpSocket::bind("127.0.0.1:0").await?,
    );
    client.connect(server.local_addr()?).await?;

    let wheel = Wheel::builder().name("requests").build()?;
    let search = wheel.labelled("search");
    let answer = tokio::time::sleep(Duration::from_millis(5));
    search.timeout(Duration::from_millis(100), answer).await?;

    // A real program does this every ten seconds.
    let lines = statsd(&wheel);
    for some in lines.chunks(10) {
        client.send(some.join("\n").as_bytes()).await?;
    }

    let (mut received, mut datagram) = (0, [0; 1500]);
    while received < lines.len() {
        let length = timeout(Duration::from_secs(5), server.recv(&mut datagram)).await??;
        let text = std::str::from_utf8(&datagram[..length])?;
        text.lines().for_each(|line| println!("{line}"));
        received += text.lines().count();
    }
    Ok(())
}
