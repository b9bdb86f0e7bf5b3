//! A service with scheduled work, stopped by SIGINT or after five seconds: `shutdown` ends every wait at once
//! and hands back the tasks that had not started, and the service runs them before it exits.
//!
//!     cargo run --release -p examples --bin graceful_shutdown

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tickwheel::{Scheduled, SleepError, Wheel};
use tokio::{signal, task::JoinSet};

const LETTERS: u32 = 1000;
const CONNECTIONS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    let wheel = Wheel::new();
    let sent = Arc::new(AtomicU32::new(0));
    let letters = put_letters_off(&wheel, &sent);
    let connections = open_connections(&wheel);
    println!("{LETTERS} letters are to be sent within 20 s, and {CONNECTIONS} connections are open.");
    println!("Press Ctrl-C, or wait {PATIENCE:?}.");

    wait_for_the_end(&wheel, &sent).await;

    let mut unprocessed = wheel.shutdown();
    println!(
        "Shut down: {} letters had not been sent.",
        unprocessed.tasks.len()
    );

    let said_goodbye = connections
        .join_all()
        .await
        .into_iter()
        .filter(|goodbye| *goodbye)
        .count();
    println!("{said_goodbye} connections were told, and said goodbye.");

    // Those whose time had come may still be at it. Those that are handed back say so.
    for letter in letters {
        let _sent_or_handed_back = letter.await;
    }
    let sent_in_time = sent.load(Ordering::Relaxed);
    println!(
        "{sent_in_time} letters were sent in time, {} were handed back.",
        unprocessed.tasks.len()
    );
    unprocessed.tasks.sort_by_key(|task| task.deadline());
    for task in unprocessed.tasks {
        task.await;
    }

    let sent = sent.load(Ordering::Relaxed);
    println!("{sent} of {LETTERS} letters are sent.");
    if sent == LETTERS && said_goodbye == CONNECTIONS {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Schedules letters over the next 20 seconds.
fn put_letters_off(wheel: &Wheel, sent: &Arc<AtomicU32>) -> Vec<Scheduled<()>> {
    let put_off = |letter| {
        let sent = sent.clone();
        let delay = Duration::from_secs(20) * letter / LETTERS;
        wheel.schedule(delay, async move {
            sent.fetch_add(1, Ordering::Relaxed);
        })
    };
    (0..LETTERS).map(put_off).collect()
}

/// Connections that do nothing but wait for their idle deadline.
fn open_connections(wheel: &Wheel) -> JoinSet<bool> {
    let connection = |_| {
        let wheel = wheel.clone();
        async move { wheel.try_sleep(Duration::from_secs(300)).await == Err(SleepError::Shutdown) }
    };
    (0..CONNECTIONS).map(connection).collect()
}

async fn wait_for_the_end(wheel: &Wheel, sent: &AtomicU32) {
    let mut every_second = wheel.interval(Duration::from_secs(1));
    let mut patience = wheel.sleep(PATIENCE);
    loop {
        tokio::select! {
            interrupted = signal::ctrl_c() => {
                match interrupted {
                    Ok(()) => println!("Interrupted."),
                    Err(error) => println!("Ctrl-C cannot be heard: {error}"),
                }
                return;
            }
            () = &mut patience => return,
            _ = every_second.tick() => println!("  {} letters sent", sent.load(Ordering::Relaxed)),
        }
    }
}
