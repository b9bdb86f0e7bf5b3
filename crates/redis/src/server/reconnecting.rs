//! `Reconnecting`: a connection of its own for each runtime, made anew when it breaks or falls silent.

use std::{fmt, future::pending, io, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use tokio::{runtime::Handle, time::Instant};

use super::connection::{Connection, broken, guarded};
use crate::{
    mutex::Mutex,
    per_runtime::{Guard, PerRuntime, Running},
    timers,
};

/// A connection that is made anew when it breaks, or when it has been silent for too long while requests
/// wait.
///
/// The connections of the `redis` crate are made anew when they break, if at all. One whose other end has
/// vanished without a word, for example behind a firewall that has forgotten it, does not break for as long
/// as TCP keeps trying, which may be a quarter of an hour. This one is given up after [two
/// seconds](Reconnecting::silence). One to a server that has become a replica is made anew when that refuses
/// a request, because a name or a proxy may lead to the new master by then.
///
/// Each runtime that sends requests has a connection of its own, so that a runtime which ends, blocks or is
/// not driven any more concerns no other. A connection is made at first use, and after a failure by the next
/// request.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tickwheel::Wheel;
/// use tickwheel_redis::{Leases, Reconnecting};
///
/// let connection = Reconnecting::of(redis::Client::open("redis://127.0.0.1/")?);
/// let leases = Leases::new(&Wheel::new(), connection);
/// let lease = leases.acquire("reports", Duration::from_secs(30)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Reconnecting<C = MultiplexedConnection> {
    shared: Arc<Connections<C>>,
    silence: Duration,
}

type Connecting<C> = Shared<BoxFuture<'static, RedisResult<C>>>;

struct Connections<C> {
    connect: Arc<dyn Fn() -> BoxFuture<'static, RedisResult<C>> + Send + Sync>,
    by_runtime: PerRuntime<Current<C>>,
}

/// The connection of one runtime.
#[derive(Clone)]
struct Current<C> {
    connection: Connecting<C>,
    health: Arc<Mutex<Health>>,
}

/// What is known about whether a connection answers.
struct Health {
    last_answer: Instant,
    /// When the first of the requests was sent that got no answer since the last answer.
    unanswered_since: Option<Instant>,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            last_answer: Instant::now(),
            unanswered_since: None,
        }
    }
}

/// The longest silence of a connection: ten years.
const LONGEST_SILENCE: Duration = Duration::from_secs(86_400 * 365 * 10);

/// How long a request waits at least before it counts as unanswered when its caller gives it up.
const GIVEN_UP: Duration = Duration::from_millis(500);

impl Reconnecting {
    /// Creates a connection to a single server.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel_redis::Reconnecting;
    ///
    /// let connection = Reconnecting::of(redis::Client::open("redis://127.0.0.1/")?);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn of(client: Client) -> Reconnecting {
        Reconnecting::new(move || {
            let client = client.clone();
            async move { connect(&client).await }
        })
    }
}

/// Connects to a single server.
pub(crate) async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    // A request has the limit of its call, and the connection that of its silence.
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(Some(Duration::from_secs(2)));
    client.get_multiplexed_async_connection_with_config(&config).await
}

impl Reconnecting<ClusterConnection> {
    /// Creates a connection to a cluster. If a node is silent, all connections of the runtime are made anew.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis::cluster::ClusterClient;
    /// use tickwheel_redis::Reconnecting;
    ///
    /// let connection = Reconnecting::of_cluster(ClusterClient::new(["redis://127.0.0.1:7000/"])?);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn of_cluster(client: ClusterClient) -> Reconnecting<ClusterConnection> {
        Reconnecting::new(move || {
            let client = client.clone();
            async move { client.get_async_connection().await }
        })
    }
}

impl<C: Connection> Reconnecting<C> {
    /// Creates a connection that `connect` makes, as often as it is needed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel_redis::Reconnecting;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let connection = Reconnecting::new(move || {
    ///     let client = client.clone();
    ///     async move { client.get_multiplexed_async_connection().await }
    /// });
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn new<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Reconnecting<C>
    where
        F: Future<Output = RedisResult<C>> + Send + 'static,
    {
        Reconnecting {
            shared: Arc::new(Connections {
                connect: Arc::new(move || connect().boxed()),
                by_runtime: PerRuntime::default(),
            }),
            silence: Duration::from_secs(2),
        }
    }

    /// Sets how long a connection may be silent while requests wait before it is replaced, two seconds by
    /// default.
    ///
    /// It should be longer than the slowest answer that still is one. A single request is given up after
    /// three times this duration, even if others are answered, because one node of a cluster may be silent. A
    /// duration of more than ten years is taken as ten years.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel_redis::Reconnecting;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let connection = Reconnecting::of(client).silence(Duration::from_secs(5));
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Reconnecting<C> {
        // Three times this, from any instant, must not overflow the clock.
        self.silence = silence.min(LONGEST_SILENCE);
        self
    }

    /// Returns the connection of the current runtime if it has been made.
    pub(crate) fn present(&self) -> Option<C> {
        let runtime = Handle::try_current().ok()?.id();
        let made = |current: &mut Current<C>| current.connection.peek()?.as_ref().ok().cloned();
        self.shared.by_runtime.get(runtime, made)?
    }

    async fn request<T, F>(&self, send: impl FnOnce(C) -> F) -> RedisResult<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let Ok(runtime) = Handle::try_current() else {
            return Err(io::Error::other("there is no Tokio runtime").into());
        };
        let Connections { connect, by_runtime } = &*self.shared;
        let make = || {
            let connect = connect.clone();
            Current {
                // `connect` is called when this is polled, because it may block or panic, and the connections
                // of all runtimes are locked here.
                connection: guarded(async move { connect().await }).boxed().shared(),
                health: Arc::default(),
            }
        };
        // For as long as the runtime.
        let last = |guard: Guard<Current<C>>| pending().map(move |()| drop(guard));
        let (running, Current { connection, health }) =
            by_runtime.get_or_start(&runtime, make, last, |current| current.clone());
        let mut request = InFlight {
            running,
            health,
            sent: Instant::now(),
            silence: self.silence,
            is_over: false,
        };
        let connection = match timers::until(request.sent + self.silence, connection).await {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                request.is_over = true;
                request.replace();
                return Err(error);
            }
            None => return Err(request.give_up()),
        };
        let mut answer = pin!(send(connection));
        loop {
            match timers::until(request.silent_at(), &mut answer).await {
                Some(answer) => return request.answered(answer),
                None if request.silent_at() <= Instant::now() => return Err(request.give_up()),
                None => {}
            }
        }
    }
}

/// A request that waits for its answer.
struct InFlight<C> {
    running: Running<Current<C>>,
    health: Arc<Mutex<Health>>,
    sent: Instant,
    silence: Duration,
    is_over: bool,
}

impl<C> InFlight<C> {
    /// Returns when the connection will have been silent for too long unless it answers before.
    fn silent_at(&self) -> Instant {
        let quiet = self.health.lock().last_answer.max(self.sent) + self.silence;
        quiet.min(self.sent + self.silence * 3)
    }

    /// Forgets the connection, so that the next request makes another.
    fn replace(&self) {
        drop(self.running.end());
    }

    fn give_up(&mut self) -> RedisError {
        self.is_over = true;
        tracing::debug!("a connection to Redis is silent, and is made anew");
        self.replace();
        broken(
            io::ErrorKind::TimedOut,
            "the connection was silent and is made anew",
        )
    }

    fn answered<T>(mut self, answer: RedisResult<T>) -> RedisResult<T> {
        match &answer {
            Err(error) if error.is_timeout() => self.count_as_unanswered(),
            Err(error)
                if error.is_unrecoverable_error()
                    || error.is_connection_dropped()
                    // It is no master, or not any more.
                    || matches!(
                        error.kind(),
                        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
                    ) =>
            {
                self.replace();
            }
            _ => {
                let mut health = self.health.lock();
                health.last_answer = Instant::now();
                health.unanswered_since = None;
            }
        }
        self.is_over = true;
        answer
    }

    fn count_as_unanswered(&self) {
        let since = *self.health.lock().unanswered_since.get_or_insert(self.sent);
        if since.elapsed() >= self.silence {
            self.replace();
        }
    }
}

impl<C> Drop for InFlight<C> {
    /// The caller has waited for long enough, if it has.
    fn drop(&mut self) {
        if !self.is_over && self.sent.elapsed() >= GIVEN_UP {
            self.count_as_unanswered();
        }
    }
}

impl<C: Connection> ConnectionLike for Reconnecting<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.request(move |mut connection: C| async move {
            // The caller would do so, and it matters here what the error is.
            connection.req_packed_command(cmd).await?.extract_error()
        })
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.request(move |mut connection: C| async move {
            connection.req_packed_commands(pipeline, offset, count).await
        })
        .boxed()
    }

    /// Returns 0, because the connection may yet have to be made.
    fn get_db(&self) -> i64 {
        0
    }
}

impl<C> Clone for Reconnecting<C> {
    fn clone(&self) -> Reconnecting<C> {
        Reconnecting {
            shared: self.shared.clone(),
            silence: self.silence,
        }
    }
}

impl<C> fmt::Debug for Reconnecting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting")
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc::{Receiver, channel},
        },
        thread,
    };

    use tokio::runtime::Builder;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Makes a request on a runtime of its own, and returns what receives its error.
    fn ask(connection: &Reconnecting) -> Receiver<RedisError> {
        let (connection, (answer, answered)) = (connection.clone(), channel());
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let asked = connection.request(async |_| Ok(()));
            answer.send(runtime.block_on(asked).unwrap_err())
        });
        answered
    }

    fn refused() -> RedisResult<MultiplexedConnection> {
        Err(broken(io::ErrorKind::Other, "refused"))
    }

    #[test]
    fn a_closure_that_blocks_stops_no_other_runtime() {
        let (begin, begun) = channel();
        let (release, released) = channel::<()>();
        let (calls, released) = (AtomicUsize::new(0), Mutex::new(released));
        let connection = Reconnecting::new(move || {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                begin.send(()).unwrap();
                let _ = released.lock().recv();
            }
            ready(refused())
        });
        let blocked = ask(&connection);
        begun.recv_timeout(PATIENCE).unwrap();
        let other = ask(&connection).recv_timeout(PATIENCE);
        assert!(
            other
                .expect("it waits for the other")
                .to_string()
                .contains("refused")
        );
        release.send(()).unwrap();
        assert!(blocked.recv_timeout(PATIENCE).is_ok());
    }

    #[test]
    fn a_closure_that_panics_is_called_again() {
        let calls = AtomicUsize::new(0);
        let connection = Reconnecting::new(move || {
            let calls = calls.fetch_add(1, Ordering::Relaxed);
            assert!(calls > 1, "a panic of the test");
            ready(refused())
        });
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        for expected in ["panicked", "panicked", "refused"] {
            let asked = connection.request(async |_| Ok(()));
            let error = runtime.block_on(asked).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
