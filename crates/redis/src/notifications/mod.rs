//! `Notifications`: the one subscription of a process to Redis.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use redis::{Client, cluster::ClusterClient};
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::nonce::random_part;

mod link;

use link::Link;

/// A subscription through which a process learns that a lease was released or that a job has become due earlier than expected.
///
/// A connection that sends requests cannot receive messages, so this type opens one of its own, which all `Leases` and queues of a
/// process share. It connects when it is first needed, reconnects by itself, and closes when its last clone is dropped.
///
/// Notifications are hints. Without them, or when a message is lost, leases and queues look again after a while.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tickwheel::Wheel;
/// use tickwheel_redis::{Leases, Notifications};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let notifications = Notifications::of(client.clone());
/// let leases = Leases::new(&Wheel::new(), client.get_connection_manager().await?).notifications(&notifications);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Notifications {
    hub: Arc<Hub>,
}

struct Hub {
    server: Server,
    state: Mutex<State>,
    /// Notified when a listener is added or removed.
    changed: Arc<Notify>,
}

#[derive(Clone)]
enum Server {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Default)]
struct State {
    /// Listeners by channel.
    listeners: HashMap<String, Vec<Arc<Notify>>>,
    task: Option<AbortHandle>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(task) = self.lock().task.take() {
            task.abort();
        }
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channels(&self) -> BTreeSet<String> {
        self.lock().listeners.keys().cloned().collect()
    }

    fn wake(&self, channel: &str) {
        if let Some(listeners) = self.lock().listeners.get(channel) {
            listeners.iter().for_each(|listener| listener.notify_one());
        }
    }

    fn wake_all(&self) {
        let state = self.lock();
        state
            .listeners
            .values()
            .flatten()
            .for_each(|listener| listener.notify_one());
    }
}

impl Notifications {
    /// Creates a subscription to a single server, which connects at first use.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel_redis::Notifications;
    ///
    /// let notifications = Notifications::of(redis::Client::open("redis://127.0.0.1/")?);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn of(client: Client) -> Notifications {
        Notifications::new(Server::Single(Box::new(client)))
    }

    /// Creates a subscription to a cluster, which connects at first use.
    ///
    /// The client should use RESP3 (`use_protocol(ProtocolVersion::RESP3)`), with which the cluster connection itself receives messages.
    /// For any other client, a connection to one of the nodes is opened for that purpose, without a password and without TLS.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis::{ProtocolVersion, cluster::ClusterClient};
    /// use tickwheel_redis::Notifications;
    ///
    /// let client = ClusterClient::builder(["redis://127.0.0.1:7000/", "redis://127.0.0.1:7001/"])
    ///     .use_protocol(ProtocolVersion::RESP3)
    ///     .build()?;
    /// let notifications = Notifications::of_cluster(client);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn of_cluster(client: ClusterClient) -> Notifications {
        Notifications::new(Server::Cluster(Box::new(client)))
    }

    fn new(server: Server) -> Notifications {
        Notifications {
            hub: Arc::new(Hub {
                server,
                state: Mutex::default(),
                changed: Arc::default(),
            }),
        }
    }

    /// Starts listening to a channel. Requires a runtime.
    pub(crate) fn listen(&self, channel: impl Into<String>) -> Listener {
        let channel = channel.into();
        let heard = Arc::new(Notify::new());
        let mut state = self.hub.lock();
        let listeners = state.listeners.entry(channel.clone()).or_default();
        listeners.push(heard.clone());
        if state.task.as_ref().is_none_or(AbortHandle::is_finished) {
            let task = tokio::spawn(run(Arc::downgrade(&self.hub)));
            state.task = Some(task.abort_handle());
        }
        drop(state);
        self.hub.changed.notify_one();
        Listener {
            hub: self.hub.clone(),
            channel,
            heard,
        }
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications")
            .field("channels", &self.hub.lock().listeners.len())
            .finish()
    }
}

/// A listener on one channel.
pub(crate) struct Listener {
    hub: Arc<Hub>,
    channel: String,
    heard: Arc<Notify>,
}

impl Listener {
    /// Waits until there may have been a message since the last call completed: one arrived, or one may have been missed because the
    /// subscription has just been made or renewed.
    ///
    /// This method is cancel safe: a message that a dropped future did not report is reported by the next call.
    pub(crate) async fn heard(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(listeners) = state.listeners.get_mut(&self.channel) {
            listeners.retain(|heard| !Arc::ptr_eq(heard, &self.heard));
            if listeners.is_empty() {
                state.listeners.remove(&self.channel);
            }
        }
        drop(state);
        self.hub.changed.notify_one();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("channel", &self.channel)
            .finish()
    }
}

/// How long connecting, subscribing or a ping may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may be silent before it is pinged, because a peer that vanished would otherwise go unnoticed.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest pause between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

async fn run(hub: Weak<Hub>) {
    let mut warned = false;
    let mut pause = Duration::from_millis(50);
    loop {
        let Some((server, changed)) = hub.upgrade().map(|hub| (hub.server.clone(), hub.changed.clone()))
        else {
            return;
        };
        let opened = timeout(PATIENCE, Link::open(&server)).await;
        match opened {
            Ok(Ok(link)) => {
                pause = Duration::from_millis(50);
                warned = false;
                serve(&hub, &changed, link).await;
            }
            outcome => {
                if !std::mem::replace(&mut warned, true) {
                    let reason = outcome.map_or("no answer".to_owned(), |opened| match opened {
                        Ok(_) => String::new(),
                        Err(error) => error.to_string(),
                    });
                    tracing::warn!(%reason, "the subscription to Redis could not be made; it is tried again");
                }
            }
        }
        sleep(pause / 2 + random_part(pause / 2)).await;
        pause = (pause * 2).min(PAUSE);
    }
}

/// Serves the listeners until the connection fails.
async fn serve(hub: &Weak<Hub>, changed: &Notify, mut link: Link) {
    let mut subscribed = BTreeSet::new();
    // Kept over every `changed`, so that busy listeners do not put the ping off.
    let mut ping_at = Instant::now() + SILENCE;
    loop {
        let Some(wanted) = hub.upgrade().map(|hub| hub.channels()) else {
            return;
        };
        let gone: Vec<String> = subscribed.difference(&wanted).cloned().collect();
        let new: Vec<String> = wanted.difference(&subscribed).cloned().collect();
        if !gone.is_empty() && !matches!(timeout(PATIENCE, link.unsubscribe(&gone)).await, Ok(Ok(()))) {
            return;
        }
        if !new.is_empty() {
            if !matches!(timeout(PATIENCE, link.subscribe(&new)).await, Ok(Ok(()))) {
                return;
            }
            // Messages published before the subscription was made are not delivered.
            if let Some(hub) = hub.upgrade() {
                new.iter().for_each(|channel| hub.wake(channel));
            }
        }
        subscribed = wanted;
        loop {
            tokio::select! {
                () = changed.notified() => break,
                message = link.next() => {
                    let Some(hub) = hub.upgrade() else { return };
                    ping_at = Instant::now() + SILENCE;
                    match message {
                        Some(link::Message::On(channel)) => hub.wake(&channel),
                        Some(link::Message::Missed) => hub.wake_all(),
                        None => return,
                    }
                }
                () = sleep_until(ping_at) => {
                    if !matches!(timeout(PATIENCE, link.ping()).await, Ok(Ok(()))) {
                        return;
                    }
                    ping_at = Instant::now() + SILENCE;
                }
            }
        }
    }
}
