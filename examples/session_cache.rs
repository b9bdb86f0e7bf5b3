//! A cache of sessions over TCP. Each session has a time to live, a touch renews it, and an expired session
//! is removed. A client stores a few, touches one, and looks at what is left; then the program ends.
//!
//! ```text
//! cargo run --release -p examples --bin session_cache
//!
//! SET name milliseconds value     OK
//! GET name                        the value, or NONE
//! TOUCH name milliseconds         OK, or NONE
//! DEL name                        OK, or NONE
//! LEN                             the number of sessions
//! ```

use std::{collections::HashMap, io, time::Duration};

use futures::StreamExt;
use tickwheel::{DelayQueue, Wheel, delay_queue::Key};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

/// One timer on the wheel serves all sessions, however many there are.
struct Cache {
    sessions: HashMap<String, (String, Key)>,
    expirations: DelayQueue<String>,
}

impl Cache {
    fn answer(&mut self, request: &str) -> String {
        let mut words = request.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (verb, name, time_to_live) = (word(), word(), word().parse().map(Duration::from_millis));
        let found = |found: bool| if found { "OK" } else { "NONE" }.to_owned();
        match (verb, time_to_live) {
            ("SET", Ok(time_to_live)) => {
                let key = self.expirations.insert(name.to_owned(), time_to_live);
                let session = (word().to_owned(), key);
                if let Some((_, replaced)) = self.sessions.insert(name.to_owned(), session) {
                    self.expirations.remove(&replaced);
                }
                found(true)
            }
            ("GET", _) => match self.sessions.get(name) {
                Some((value, _)) => value.clone(),
                None => found(false),
            },
            ("TOUCH", Ok(time_to_live)) => {
                let session = self.sessions.get(name);
                found(session.is_some_and(|(_, key)| self.expirations.try_reset(key, time_to_live)))
            }
            ("DEL", _) => {
                let session = self.sessions.remove(name);
                found(session.is_some_and(|(_, key)| self.expirations.try_remove(&key).is_some()))
            }
            ("LEN", _) => self.sessions.len().to_string(),
            _ => format!("ERROR {request:?}: SET, GET, TOUCH, DEL or LEN, and its words"),
        }
    }
}

type Request = (String, oneshot::Sender<String>);

/// Answers requests, and forgets what nobody has touched in time, until the last connection has gone.
async fn keep(mut cache: Cache, mut requests: mpsc::Receiver<Request>) {
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some((request, reply)) = request else { return };
                // Whoever asked may have gone.
                let _ = reply.send(cache.answer(&request));
            }
            // While the cache is empty, this arm is out of the race.
            Some(expired) = cache.expirations.next() => {
                println!("{:?} has expired", expired.get_ref());
                cache.sessions.remove(expired.get_ref());
            }
        }
    }
}

async fn serve(stream: TcpStream, cache: mpsc::Sender<Request>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(request) = lines.next_line().await? {
        let (reply, answer) = oneshot::channel();
        if cache.send((request, reply)).await.is_err() {
            break;
        }
        let answer = answer.await.map_err(io::Error::other)?;
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

struct Client(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf);

impl Client {
    async fn expect(&mut self, request: &str, expected: &str) -> io::Result<()> {
        self.1.write_all(format!("{request}\n").as_bytes()).await?;
        let answer = self.0.next_line().await?.unwrap_or_default();
        println!("> {request}\n{answer}");
        assert_eq!(answer, expected, "{request}");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let wheel = Wheel::new();
    let cache = Cache {
        sessions: HashMap::new(),
        expirations: DelayQueue::on(&wheel),
    };
    let (requests, received) = mpsc::channel(64);
    tokio::spawn(keep(cache, received));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, requests.clone()));
        }
    });

    let (reader, writer) = TcpStream::connect(address).await?.into_split();
    let mut client = Client(BufReader::new(reader).lines(), writer);
    client.expect("SET ann 60000 likes tea", "OK").await?;
    client.expect("SET bob 60000 likes coffee", "OK").await?;
    client.expect("SET eve 100 likes letters", "OK").await?;
    client.expect("GET ann", "likes tea").await?;
    client.expect("TOUCH bob 50", "OK").await?;
    client.expect("DEL ann", "OK").await?;
    client.expect("TOUCH ann 60000", "NONE").await?;
    // The queue is never early, and late by a tick at most, and by what the machine adds.
    wheel.sleep(Duration::from_millis(300)).await;
    client.expect("GET bob", "NONE").await?;
    client.expect("LEN", "0").await?;
    println!("timers that are left on the wheel: {}", wheel.pending());
    Ok(())
}
