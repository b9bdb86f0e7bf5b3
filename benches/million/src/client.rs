//! The client process: requests at a fixed rate, whether or not the server keeps up.

use std::{
    io::{self, BufRead},
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{io::AsyncReadExt, net::TcpStream, runtime::Runtime, time::MissedTickBehavior};

use crate::{machine::cpu_time, server::MESSAGE};

/// Sends until its standard input ends, and answers each line there: `begin` and `end` of what is measured.
pub(crate) fn run(port: u16, rate: u64, connections: usize) -> io::Result<()> {
    let runtime = Runtime::new()?;
    let sent = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let mut writers = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.set_nodelay(true)?;
            let (mut reader, writer) = stream.into_split();
            writers.push(writer);
            tokio::spawn(async move {
                let mut buffer = [0; 64 * MESSAGE];
                while matches!(reader.read(&mut buffer).await, Ok(1..)) {}
            });
        }
        let sent = sent.clone();
        tokio::spawn(async move {
            let (start, mut written) = (Instant::now(), 0_u64);
            let mut pace = tokio::time::interval(Duration::from_millis(1));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                pace.tick().await;
                let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
                for number in written..due {
                    let writer = &writers[number as usize % writers.len()];
                    // A server so far behind that a socket is full has lost this request.
                    if let Ok(MESSAGE) = writer.try_write(&number.to_le_bytes()) {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
                written = written.max(due);
            }
        });
        io::Result::Ok(())
    })?;
    println!();
    let mut before = (Duration::ZERO, 0);
    for line in io::stdin().lock().lines() {
        let now = (cpu_time()?, sent.load(Ordering::Relaxed));
        if line? == "begin" {
            before = now;
            println!();
        } else {
            println!("{} {}", (now.0 - before.0).as_nanos(), now.1 - before.1);
        }
    }
    runtime.shutdown_background();
    Ok(())
}
