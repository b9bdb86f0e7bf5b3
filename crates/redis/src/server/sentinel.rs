//! A connection that follows the master of a set-up with Redis Sentinel.

use std::{collections::HashMap, fmt, io, sync::Arc, thread, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use redis::{
    Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSubSink, PubSubStream},
    sentinel::SentinelClient,
};
use tokio::{
    runtime,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    connection::{broken, in_time},
    reconnecting::{Reconnecting, connect},
    retry::Backoff,
};
use crate::mutex::Mutex;

/// A connection that asks the sentinels where the master is, and asks them again when the master is gone,
/// silent, or has become a replica.
///
/// Like [`Reconnecting`], it has a connection for each runtime that sends requests, which is made at first
/// use. It leaves a master when
///
/// - the sentinels publish that there is another (`+switch-master`), to which each runtime listens on a
///   second connection, to one of them;
/// - it has closed the connection, as one that was killed does;
/// - it has been silent for [two seconds](Connection::silence) while requests wait, as one whose machine has
///   vanished is;
/// - it refuses a request because it has become a replica.
///
/// What was under way then fails, and the next request goes to the master that the sentinels name by then.
/// Until they have agreed on one, requests fail with errors that leases and queues wait out. A name that no
/// sentinel knows is an error that they return at once. See `docs/operations.md` for what a failover means
/// for them.
///
/// The client is to be one for the master, `SentinelServerType::Master`. Its sentinels are asked on a thread
/// of their own, for a few milliseconds at each lookup, so that no runtime waits for another.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redis::sentinel::{SentinelClient, SentinelServerType};
/// use tickwheel::Wheel;
/// use tickwheel_redis::{Leases, Notifications, sentinel};
///
/// let client = || {
///     let sentinels = vec!["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
///     SentinelClient::build(sentinels, "mymaster".to_owned(), None, SentinelServerType::Master)
/// };
/// let leases = Leases::new(&Wheel::new(), sentinel::Connection::new(client()?))
///     .notifications(&Notifications::of_sentinel(client()?));
/// let lease = leases.acquire("reports", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    connection: Reconnecting<ToMaster>,
}

impl Connection {
    /// Creates a connection to the master that the sentinels of `client` name, which connects at first use.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis::sentinel::{SentinelClient, SentinelServerType};
    /// use tickwheel_redis::sentinel::Connection;
    ///
    /// let sentinels = vec!["redis://127.0.0.1:26379/"];
    /// let client = SentinelClient::build(sentinels, "mymaster".to_owned(), None, SentinelServerType::Master)?;
    /// let connection = Connection::new(client);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn new(client: SentinelClient) -> Connection {
        let master = Master::new(client);
        Connection {
            connection: Reconnecting::new(move || {
                let master = master.clone();
                async move {
                    let (client, mastership) = master.find().await?;
                    let connection = connect(&client).await?;
                    Ok(ToMaster {
                        connection,
                        mastership,
                    })
                }
            }),
        }
    }

    /// Sets how long a connection may be silent while requests wait before the sentinels are asked again, two
    /// seconds by default.
    ///
    /// It should be longer than the slowest answer that still is one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(connection: tickwheel_redis::sentinel::Connection) {
    /// use std::time::Duration;
    ///
    /// let connection = connection.silence(Duration::from_secs(5));
    /// # }
    /// ```
    #[must_use]
    pub fn silence(self, silence: Duration) -> Connection {
        Connection {
            connection: self.connection.silence(silence),
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    /// Returns 0, because the connection may yet have to be made.
    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("sentinel::Connection").finish_non_exhaustive()
    }
}

/// A connection to a master, which fails once there is another.
#[derive(Clone)]
struct ToMaster {
    connection: MultiplexedConnection,
    mastership: Mastership,
}

impl ConnectionLike for ToMaster {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.mastership
            .until_ended(self.connection.req_packed_command(cmd))
            .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let answers = self.connection.req_packed_commands(pipeline, offset, count);
        self.mastership.until_ended(answers).boxed()
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// How long the sentinels may take to answer. The `redis` crate gives up each of them after half a second.
const SENTINELS_LIMIT: Duration = Duration::from_secs(3);
const SILENT: &str = "the sentinels do not answer";
/// How long a sentinel may be silent that is listened to, before it is pinged.
const SENTINEL_SILENCE: Duration = Duration::from_secs(5);
/// The delays before another sentinel is listened to.
const FIRST_LISTEN_AGAIN: Duration = Duration::from_millis(100);
const LONGEST_LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// The delay before the sentinels are asked again for a master that none of them seems to know.
const DELAY_FOR_FAILOVER: Duration = Duration::from_millis(250);
/// The channel on which sentinels publish that there is another master.
const SWITCHED: &str = "+switch-master";

/// The master that sentinels name.
#[derive(Clone)]
pub(crate) struct Master {
    client: Arc<Mutex<SentinelClient>>,
}

impl Master {
    pub(crate) fn new(client: SentinelClient) -> Master {
        Master {
            client: Arc::new(Mutex::new(client)),
        }
    }

    /// Finds the master, and begins to listen for another, on the current runtime.
    pub(crate) async fn find(&self) -> RedisResult<(Client, Mastership)> {
        let client = self.client().await?;
        let unused = CancellationToken::new();
        let mastership = Mastership {
            ended: CancellationToken::new(),
            _used: Arc::new(unused.clone().drop_guard()),
        };
        let (master, address, ended) = (self.clone(), address(&client), mastership.ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = unused.cancelled() => {}
                () = master.moves_from(&address) => ended.cancel(),
            }
        });
        Ok((client, mastership))
    }

    /// Completes when the master is at another address.
    async fn moves_from(&self, address: &str) {
        let first = || Backoff::new(FIRST_LISTEN_AGAIN, LONGEST_LISTEN_AGAIN);
        let mut backoff = first();
        loop {
            let began = Instant::now();
            let Err(error) = self.listen_until_moved(address).await else {
                return;
            };
            tracing::debug!(%error, "the sentinels could not be listened to; they are tried again");
            if began.elapsed() > SENTINEL_SILENCE {
                backoff = first();
            }
            sleep(backoff.next_delay()).await;
        }
    }

    async fn listen_until_moved(&self, old: &str) -> RedisResult<()> {
        let (mut sink, mut messages) = in_time(SENTINELS_LIMIT, SILENT, self.listen()).await?;
        // Another may have become the master before the subscription was made, and a message may be about a
        // master that is none of ours.
        while address(&self.client().await?) == old {
            loop {
                match timeout(SENTINEL_SILENCE, messages.next()).await {
                    Ok(Some(_)) => break,
                    Ok(None) => {
                        let why = "the sentinel has closed the connection";
                        return Err(broken(io::ErrorKind::UnexpectedEof, why));
                    }
                    Err(_) => in_time(SENTINELS_LIMIT, SILENT, sink.ping::<Value>())
                        .await
                        .map(drop)?,
                }
            }
        }
        Ok(())
    }

    async fn listen(&self) -> RedisResult<(PubSubSink, PubSubStream)> {
        let (mut sink, messages) = self
            .ask(|client| client.async_get_sentinel_client().boxed())
            .await?
            .get_async_pubsub()
            .await?
            .split();
        sink.subscribe(SWITCHED).await?;
        Ok((sink, messages))
    }

    /// Asks where the master is. The server there has answered that it is one.
    async fn client(&self) -> RedisResult<Client> {
        self.ask(|client| find_master(client).boxed()).await
    }

    /// Asks the sentinels for a server.
    ///
    /// One client serves all runtimes and has to be locked while it asks. A future that holds the lock may
    /// not be polled any more, so a thread of its own asks.
    async fn ask(&self, find: Find) -> RedisResult<Client> {
        let (answer, answered) = oneshot::channel();
        let client = self.client.clone();
        let ask = move || {
            let mut client = client.lock();
            // Whoever asked may have given up while others were asking.
            if answer.is_closed() {
                return;
            }
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let found = runtime.map_err(RedisError::from).and_then(|runtime| {
                runtime.block_on(async { in_time(SENTINELS_LIMIT, SILENT, find(&mut client)).await })
            });
            let _ = answer.send(found);
        };
        thread::Builder::new()
            .name("tickwheel-sentinel".to_owned())
            .spawn(ask)?;
        let panicked = |_| Err(io::Error::other("the client of the sentinels panicked").into());
        answered.await.unwrap_or_else(panicked)
    }
}

/// Finds the master, or a sentinel that answers.
type Find = for<'a> fn(&'a mut SentinelClient) -> BoxFuture<'a, RedisResult<Client>>;

/// Asks where the master is. The `redis` crate returns the same error for a master that is down as for one
/// that no sentinel knows, which is a mistake in the client's configuration: nothing is to be waited for.
async fn find_master(client: &mut SentinelClient) -> RedisResult<Client> {
    let is_unfound = |error: &RedisError| error.kind() == ErrorKind::MasterNameNotFoundBySentinel;
    let error = match client.async_get_client().await {
        Err(error) if is_unfound(&error) => error,
        answer => return answer,
    };
    if names_of_masters(client).await?.is_none() {
        return Err(error);
    }
    // A failover may have ended between the two questions.
    sleep(DELAY_FOR_FAILOVER).await;
    match (client.async_get_client().await, names_of_masters(client).await?) {
        (Err(error), Some(names)) if is_unfound(&error) => Err(RedisError::from((
            ErrorKind::InvalidClientConfig,
            "the sentinels know no master of the client's name",
            format!("they know {}", names.join(", ")),
        ))),
        (answer, _) => answer,
    }
}

/// Returns the names of the masters that a sentinel watches, or `None` if it does not take all of them to be
/// up.
async fn names_of_masters(client: &mut SentinelClient) -> RedisResult<Option<Vec<String>>> {
    let sentinel = client.async_get_sentinel_client().await?;
    let mut sentinel = sentinel.get_multiplexed_async_connection().await?;
    let masters: Vec<HashMap<String, String>> = redis::cmd("SENTINEL")
        .arg("MASTERS")
        .query_async(&mut sentinel)
        .await?;
    let name_if_up = |master: &HashMap<String, String>| {
        let is_up = master.get("flags").is_some_and(|flags| flags == "master");
        is_up.then(|| format!("{:?}", master.get("name").map_or("", |name| name)))
    };
    Ok(masters.iter().map(name_if_up).collect())
}

/// The time in which a server is the master.
#[derive(Clone)]
pub(crate) struct Mastership {
    ended: CancellationToken,
    /// Nobody listens for another master any more once this is dropped.
    _used: Arc<DropGuard>,
}

impl Mastership {
    /// Completes when there is another master.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Waits for an answer, or fails with an error that makes the connection anew.
    async fn until_ended<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        tokio::select! {
            biased;
            () = self.ended() => {
                let why = "another server has become the master";
                Err(broken(io::ErrorKind::ConnectionReset, why))
            }
            answer = answer => answer,
        }
    }
}

fn address(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}
