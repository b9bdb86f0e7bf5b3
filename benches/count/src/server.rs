//! A server of short lines. Each connection has a timeout around the reading of every request, and a sleep
//! for the idle time, which every request restarts. The connections are in memory and are served one after
//! another.

use std::{io, time::Duration};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};

use crate::timers::Timers;

/// How long a request may take to come in whole, once the connection waits for one.
const READ: Duration = Duration::from_secs(30);
/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request takes that works.
const WORK: Duration = Duration::from_millis(10);

const REQUEST: &[u8; 16] = b"GET the-key    \n";
const ANSWER: &[u8; 8] = b"a value\n";

/// The client's ends of the connections of a server.
pub struct Server(Vec<DuplexStream>);

impl Server {
    /// Starts a task for each connection.
    pub fn start<T: Timers>(connections: usize, timers: &T) -> Server {
        Server::of(connections, |server| serve(server, timers.clone()))
    }

    /// The same, with a new sleep for each read and each write.
    pub fn with_two_sleeps<T: Timers>(connections: usize, timers: &T) -> Server {
        Server::of(connections, |server| {
            serve_with_two_sleeps(server, timers.clone())
        })
    }

    /// The same, with no timer but a sleep of [`WORK`] before each answer: HttpArena's `async` profile.
    pub fn that_works<T: Timers>(connections: usize, timers: &T) -> Server {
        Server::of(connections, |server| serve_with_work(server, timers.clone()))
    }

    fn of<S>(connections: usize, serve: impl Fn(DuplexStream) -> S) -> Server
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let ends = (0..connections).map(|_| {
            let (client, server) = duplex(64);
            tokio::spawn(serve(server));
            client
        });
        Server(ends.collect())
    }

    /// Sends so many requests, each when the one before has been answered, to one connection after the other.
    pub async fn ask(&mut self, requests: u64) {
        let connections = self.0.len();
        for request in 0..requests as usize {
            let connection = &mut self.0[request % connections];
            ask(connection).await.expect("the server answers");
        }
    }

    /// Asks so many times, each time on all connections at once.
    pub async fn ask_all(&mut self, rounds: u64) {
        for _ in 0..rounds {
            for connection in &mut self.0 {
                connection.write_all(REQUEST).await.expect("the server listens");
            }
            for connection in &mut self.0 {
                read_answer(connection).await.expect("the server answers");
            }
        }
    }
}

/// Asks once, and reads the answer.
pub async fn ask<C: AsyncRead + AsyncWrite + Unpin + Send>(connection: &mut C) -> io::Result<()> {
    connection.write_all(REQUEST).await?;
    read_answer(connection).await
}

async fn read_answer<C: AsyncRead + Unpin>(connection: &mut C) -> io::Result<()> {
    let mut answer = [0; ANSWER.len()];
    connection.read_exact(&mut answer).await?;
    assert_eq!(&answer, ANSWER);
    Ok(())
}

/// Serves a connection until the client has gone or has been silent for too long.
pub async fn serve<C: AsyncRead + AsyncWrite + Unpin + Send, T: Timers>(mut connection: C, timers: T) {
    let mut idle = std::pin::pin!(timers.sleep(IDLE));
    loop {
        tokio::select! {
            read = timers.timeout(READ, read_line(&mut connection)) => match read {
                Ok(Ok(())) => {
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

/// The same, with a new sleep beside each read and each write. A write is ready at once, so its sleep is
/// never polled.
async fn serve_with_two_sleeps<C: AsyncRead + AsyncWrite + Unpin + Send, T: Timers>(
    mut connection: C,
    timers: T,
) {
    loop {
        let read = tokio::select! {
            biased;
            read = read_line(&mut connection) => read,
            _ = timers.sleep(READ) => return,
        };
        let written = tokio::select! {
            biased;
            written = connection.write_all(ANSWER) => written,
            _ = timers.sleep(READ) => return,
        };
        if read.is_err() || written.is_err() {
            return;
        }
    }
}

async fn serve_with_work<C: AsyncRead + AsyncWrite + Unpin + Send, T: Timers>(mut connection: C, timers: T) {
    while read_line(&mut connection).await.is_ok() {
        timers.sleep(WORK).await;
        if connection.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}

async fn read_line<C: AsyncRead + Unpin + Send>(connection: &mut C) -> io::Result<()> {
    let mut line = [0; 32];
    let mut length = 0;
    while !line[..length].ends_with(b"\n") {
        match connection.read(&mut line[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => length += read,
        }
    }
    Ok(())
}
