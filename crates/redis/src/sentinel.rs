//! A connection that follows the master of a set-up with Redis Sentinel.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use redis::{
    Client, Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value, aio::ConnectionLike,
    sentinel::SentinelClient,
};
use tokio::{runtime, sync::oneshot, time::timeout};

use crate::reconnecting::{Reconnecting, connect};

/// A connection that asks the sentinels where the master is, and asks them again when the master is gone, silent, or has become a replica.
///
/// It is a [`Reconnecting`], so each runtime that sends requests has a connection of its own, which is made at first use. After a failover, the
/// first request that fails makes the connection follow the new master:
///
/// - a master that was killed closes its connections;
/// - a master that is suspended, or whose machine has vanished, is given up after [two seconds](Connection::silence) of silence;
/// - a master that has become a replica refuses what would change it.
///
/// Until the sentinels have agreed on a new master, requests fail with errors that leases and queues wait out. See `docs/guarantees.md` for what a
/// failover means for them.
///
/// The client is one for the master, `SentinelServerType::Master`. Its sentinels are asked on a thread of their own, for a few milliseconds at
/// each lookup, so that no runtime waits for another.
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
    connection: Reconnecting,
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
                async move { connect(&master.client().await?).await }
            }),
        }
    }

    /// Sets how long a connection may be silent while requests wait before the sentinels are asked again, two seconds by default.
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

/// How long the sentinels may take to name the master. The `redis` crate gives up each of them after half a second.
const PATIENCE: Duration = Duration::from_secs(3);

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

    /// Asks where the master is. It answers that it is one.
    ///
    /// One client serves all runtimes and has to be locked while it asks. A future that holds the lock may not be polled any more, so a thread
    /// of its own asks.
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        let (answer, answered) = oneshot::channel();
        let client = self.client.clone();
        thread::Builder::new()
            .name("tickwheel-sentinel".to_owned())
            .spawn(move || {
                let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
                // Whoever asked may have given up while others were asking.
                if !answer.is_closed() {
                    let _ = answer.send(look_up(&mut client));
                }
            })?;
        let panicked = |_| Err(io::Error::other("the client of the sentinels panicked").into());
        answered.await.unwrap_or_else(panicked)
    }
}

fn look_up(client: &mut SentinelClient) -> RedisResult<Client> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let found = timeout(PATIENCE, client.async_get_client()).await;
        found.unwrap_or_else(|_| Err(no_answer()))
    })
}

fn no_answer() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "the sentinels do not name a master").into()
}
