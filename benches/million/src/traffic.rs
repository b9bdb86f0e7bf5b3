//! The connections: clients that send requests, and a server that answers most of them.

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::Instant,
};

use crate::{clockwork::Clockwork, random::Random, tally::Tally};

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);
const HEARTBEAT: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(1);
/// One request in so many is never answered: its timeout elapses.
const LOST: u64 = 1000;
/// After one request in so many the client falls silent: the server's idle deadline closes the connection.
const SILENT: u64 = 500;

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Request(u64),
    /// A request that the server will not answer.
    Lost(u64),
    Response(u64),
    Heartbeat,
}

const MESSAGE: usize = 9;

impl Message {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, number) = match self {
            Message::Request(number) => (0, number),
            Message::Lost(number) => (1, number),
            Message::Response(number) => (2, number),
            Message::Heartbeat => (3, 0),
        };
        let mut bytes = [kind; MESSAGE];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn decode([kind, number @ ..]: [u8; MESSAGE]) -> Message {
        let number = u64::from_le_bytes(number);
        match kind {
            0 => Message::Request(number),
            1 => Message::Lost(number),
            2 => Message::Response(number),
            _ => Message::Heartbeat,
        }
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: [u8; MESSAGE],
    filled: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            buffer: [0; MESSAGE],
            filled: 0,
        })
    }

    pub(crate) async fn open(server: SocketAddr) -> io::Result<Connection> {
        Connection::new(TcpStream::connect(server).await?)
    }

    async fn send(&mut self, message: Message) -> io::Result<()> {
        self.stream.write_all(&message.encode()).await
    }

    /// The next message, or `None` when the other side has closed. Cancel safe: what has been read of a message stays.
    async fn receive(&mut self) -> io::Result<Option<Message>> {
        while self.filled < MESSAGE {
            match self.stream.read(&mut self.buffer[self.filled..]).await? {
                0 => return Ok(None),
                read => self.filled += read,
            }
        }
        self.filled = 0;
        Ok(Some(Message::decode(self.buffer)))
    }

    async fn response_to(&mut self, number: u64) -> io::Result<()> {
        loop {
            match self.receive().await? {
                Some(Message::Response(answered)) if answered == number => return Ok(()),
                // A heartbeat, or a response that came after its request's timeout.
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

pub(crate) struct Client<C> {
    pub(crate) clock: C,
    pub(crate) server: SocketAddr,
    pub(crate) connection: Connection,
    pub(crate) random: Random,
    pub(crate) answered: Arc<AtomicU64>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) tally: Tally,
}

impl<C: Clockwork> Client<C> {
    pub(crate) async fn run(mut self) -> io::Result<Tally> {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let lasts = self.request(number).await.is_ok();
            if lasts && !self.random.one_in(SILENT) {
                continue;
            }
            // Until the server closes; it may have done so already, on a machine so busy that a client looks idle.
            while let Ok(Some(_)) = self.connection.receive().await {}
            // Closed before the next is opened: the file limit may leave no room for both.
            drop(self.connection);
            self.connection = Connection::open(self.server).await?;
        }
        Ok(self.tally)
    }

    async fn request(&mut self, number: u64) -> io::Result<()> {
        let lost = self.random.one_in(LOST);
        let request = if lost {
            Message::Lost(number)
        } else {
            Message::Request(number)
        };
        self.connection.send(request).await?;
        let started = Instant::now();
        self.tally.registered += 1;
        let answer = self.connection.response_to(number);
        match self.clock.timeout(REQUEST_TIMEOUT, answer).await {
            Some(answer) => {
                self.tally.cancelled += 1;
                answer?;
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            None => self.tally.timeout_elapsed(started),
        }
        Ok(())
    }
}

async fn serve<C: Clockwork>(clock: C, mut connection: Connection, mut random: Random) -> Tally {
    let mut tally = Tally::default();
    let mut idle_until = Instant::now() + IDLE;
    let mut idle = pin!(clock.sleep_until(idle_until));
    let mut heartbeat = clock.interval_at(Instant::now() + random.within(HEARTBEAT), HEARTBEAT);
    tally.registered += 2;
    loop {
        let answer = tokio::select! {
            biased;
            received = connection.receive() => {
                let Ok(Some(message)) = received else { break };
                idle_until = Instant::now() + IDLE;
                C::reset(idle.as_mut(), idle_until);
                tally.pushed_back += 1;
                let Message::Request(number) = message else { continue };
                Message::Response(number)
            }
            due = C::tick(&mut heartbeat) => {
                tally.sleep_expired(due);
                tally.registered += 1;
                Message::Heartbeat
            }
            _ = idle.as_mut() => {
                tally.sleep_expired(idle_until);
                tally.cancelled += 1; // the heartbeat
                return tally;
            }
        };
        if connection.send(answer).await.is_err() {
            break;
        }
    }
    tally.cancelled += 2;
    tally
}

/// Serves whoever connects until told to stop, then waits for the connections to end.
pub(crate) async fn accept<C: Clockwork>(
    clock: C,
    listener: TcpListener,
    mut stop: oneshot::Receiver<()>,
) -> io::Result<Tally> {
    let mut connections = JoinSet::new();
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, client) = accepted?;
                let random = Random::new(client.port().into());
                connections.spawn(serve(clock.clone(), Connection::new(stream)?, random));
            }
            Some(ended) = connections.join_next() => tally.add(ended?),
            _ = &mut stop => break,
        }
    }
    while let Some(ended) = connections.join_next().await {
        tally.add(ended?);
    }
    Ok(tally)
}
