//! A server in memory: connections that have their turn, each with a timeout around every read and a sleep for its idle time.

use std::{thread, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::timers::Timers;

/// How long a request may take to come in whole, once the connection waits for one.
const READ: Duration = Duration::from_secs(5);
/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(60);

const REQUEST: &[u8; 16] = b"GET the-key    \n";
const ANSWER: &[u8; 8] = b"a value\n";

/// How the requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// One after the other, without a pause.
    Busy,
    /// One on each connection, and then none for a tick of the wheel.
    Quiet,
}

/// The client's ends of the connections of a server.
pub struct Server(Vec<DuplexStream>);

impl Server {
    /// Starts a task for each connection.
    pub fn start<T: Timers>(connections: usize, timers: &T) -> Server {
        let ends = (0..connections).map(|_| {
            let (client, server) = duplex(64);
            tokio::spawn(serve(server, timers.clone()));
            client
        });
        Server(ends.collect())
    }

    /// Sends so many requests, each when the one before has been answered, to one connection after the other.
    pub async fn ask(&mut self, requests: u64, traffic: Traffic) {
        let mut left = requests;
        while left > 0 {
            for connection in self.0.iter_mut().take(left as usize) {
                connection.write_all(REQUEST).await.expect("the server reads");
                let mut answer = [0; ANSWER.len()];
                connection
                    .read_exact(&mut answer)
                    .await
                    .expect("the server answers");
                assert_eq!(&answer, ANSWER);
                left -= 1;
            }
            if traffic == Traffic::Quiet {
                // On this thread: what a runtime does when it has nothing to do is not the timers' part.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

async fn serve<T: Timers>(mut connection: DuplexStream, timers: T) {
    let mut idle = std::pin::pin!(timers.sleep(IDLE));
    let mut request = [0; REQUEST.len()];
    loop {
        tokio::select! {
            read = timers.timeout(READ, connection.read_exact(&mut request)) => match read {
                Ok(Ok(_)) => {
                    T::restart(idle.as_mut(), IDLE);
                    if connection.write_all(ANSWER).await.is_err() {
                        return;
                    }
                }
                Ok(Err(_)) | Err(_) => return,
            },
            _ = &mut idle => return,
        }
    }
}
