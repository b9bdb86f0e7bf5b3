//! `Notifications`: the one subscription of a process to Redis.

use std::{fmt, future::poll_fn, pin::pin, sync::Arc};

use futures_util::FutureExt;
use redis::{Client, cluster::ClusterClient, sentinel::SentinelClient};
use tickwheel_exported::Source;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
};

mod link;
mod subscription;

use link::Endpoint;
use subscription::{Stats, Subscription, Task};

use super::sentinel::Master;
use crate::{
    exported::WeakSource,
    mutex::Mutex,
    per_runtime::{PerRuntime, Running},
};

/// A subscription through which a process learns that a lease was released or that a job has become due
/// earlier than expected.
///
/// A connection that sends requests cannot receive messages, so this type opens one of its own, which all
/// `Leases` and queues of a process share: one for each runtime on which somebody waits. It connects when it
/// is first needed, reconnects by itself, and closes when its last clone is dropped. If a server refuses it,
/// it tries again with growing delays, up to a minute apart, and logs one warning.
///
/// Notifications are hints. Without them, or when a message is lost, leases and queues look again after a
/// while.
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
    endpoint: Endpoint,
    stats: Arc<Stats>,
    /// One for each runtime on which somebody listens, so that none of them depends on another.
    subscriptions: PerRuntime<Subscription>,
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
        Notifications::new(Endpoint::Single(Box::new(client)))
    }

    /// Creates a subscription to a cluster, which connects at first use.
    ///
    /// The client has to use RESP3 (`use_protocol(ProtocolVersion::RESP3)`). With RESP2, the default of the
    /// `redis` crate, a cluster connection receives no messages: leases and queues then work without them,
    /// and one error is logged.
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
        Notifications::new(Endpoint::Cluster(Box::new(client)))
    }

    /// Creates a subscription to the master that the sentinels of `client` name, which connects at first use
    /// and follows the master over a failover.
    ///
    /// It connects to another master as soon as the sentinels publish that there is one (`+switch-master`),
    /// to which each runtime listens on a second connection, to one of them. Messages that are published
    /// before are lost, as in any outage.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis::sentinel::{SentinelClient, SentinelServerType};
    /// use tickwheel_redis::Notifications;
    ///
    /// let sentinels = vec!["redis://127.0.0.1:26379/"];
    /// let client = SentinelClient::build(sentinels, "mymaster".to_owned(), None, SentinelServerType::Master)?;
    /// let notifications = Notifications::of_sentinel(client);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn of_sentinel(client: SentinelClient) -> Notifications {
        Notifications::new(Endpoint::Sentinel(Master::new(client)))
    }

    fn new(endpoint: Endpoint) -> Notifications {
        Notifications {
            hub: Arc::new(Hub {
                endpoint,
                stats: Arc::default(),
                subscriptions: PerRuntime::default(),
            }),
        }
    }

    /// Returns what an exporter reports of this subscription and its clones, as a source for
    /// `WheelCollector::and_source` of `tickwheel-prometheus` and `Reporter::and_source` of
    /// `tickwheel-metrics`.
    ///
    /// It asks nothing of Redis, and all counts are exact. See the [crate documentation](crate#metrics)
    /// for the names. It does not keep the subscription, and reports nothing once that has been closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_prometheus::WheelCollector;
    /// use tickwheel_redis::Notifications;
    ///
    /// let notifications = Notifications::of(redis::Client::open("redis://127.0.0.1/")?);
    /// let collector = WheelCollector::new(&Wheel::new()).and_source(notifications.source());
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn source(&self) -> impl Source + Clone + use<> {
        WeakSource::new(&self.hub, |hub| hub.stats.exported())
    }

    /// Whether messages of a channel arrive on a runtime on which somebody listens, as far as is known there.
    pub(crate) fn arrive(&self, runtime: Id, channel: &str) -> bool {
        let arrive = |subscription: &mut Subscription| subscription.subscribed.contains(channel);
        self.hub.subscriptions.get(runtime, arrive).unwrap_or(false)
    }

    /// Starts listening to a channel.
    pub(crate) fn listen(&self, channel: impl Into<String>) -> Listener {
        let listener = Listener {
            hub: self.hub.clone(),
            channel: channel.into(),
            heard: Arc::default(),
            subscription: Mutex::default(),
        };
        listener.listen_here();
        listener
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut channels = 0;
        let count = |subscription: &mut Subscription| channels += subscription.channels().len();
        self.hub.subscriptions.each(count);
        f.debug_struct("Notifications")
            .field("channels", &channels)
            .finish()
    }
}

/// A listener on one channel, on the runtime that polled it last.
pub(crate) struct Listener {
    hub: Arc<Hub>,
    channel: String,
    heard: Arc<Notify>,
    subscription: Mutex<Option<Running<Subscription>>>,
}

impl Listener {
    /// Waits until there may have been a message since the last call completed: one arrived, or one may have
    /// been missed because the subscription has just been made, renewed or ended.
    ///
    /// This method is cancel safe: a message that a dropped future did not report is reported by the next
    /// call.
    pub(crate) async fn heard(&self) {
        let mut heard = pin!(self.heard.notified());
        poll_fn(|cx| {
            self.listen_here();
            heard.as_mut().poll(cx)
        })
        .await;
    }

    /// Forgets what was heard so far.
    pub(crate) fn forget(&self) {
        self.heard.notified().now_or_never();
    }

    /// Moves to the subscription of the current runtime, if there is a runtime, and starts it if there is
    /// none.
    fn listen_here(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut here = self.subscription.lock();
        if let Some(running) = &*here {
            if running.runtime() == runtime.id() && running.get(|_| ()).is_some() {
                return;
            }
            self.stop_listening(running);
        }
        let (endpoint, stats) = (self.hub.endpoint.clone(), self.hub.stats.clone());
        let serve = |guard| Task::new(guard, endpoint, stats).run();
        let add = |subscription: &mut Subscription| subscription.add(&self.channel, &self.heard);
        let subscriptions = &self.hub.subscriptions;
        *here = Some(
            subscriptions
                .get_or_start(&runtime, Subscription::default, serve, add)
                .0,
        );
    }

    fn stop_listening(&self, running: &Running<Subscription>) {
        running.get(|subscription| subscription.remove(&self.channel, &self.heard));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(running) = &*self.subscription.lock() {
            self.stop_listening(running);
        }
    }
}
