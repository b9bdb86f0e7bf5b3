//! `Subscription`: who listens on one runtime, and `Task`, which keeps up the connection for them.

use std::{
    collections::{BTreeSet, HashMap},
    future::pending,
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{ErrorKind, RedisError, RedisResult};
use tickwheel_exported::Exported;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::link::{Endpoint, Link, Message};
use crate::{
    exported::{Counter, List},
    per_runtime::Guard,
    server::{
        connection::{broken, in_time},
        retry::Backoff,
    },
};

/// How long a link may take to connect, to subscribe or to answer a ping.
const LINK_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before it is pinged, because a peer that vanished would otherwise go
/// unnoticed.
const MESSAGE_SILENCE: Duration = Duration::from_secs(30);

/// What is counted of all subscriptions.
#[derive(Default)]
pub(super) struct Stats {
    /// Connections that took the place of one that had ended.
    reconnects: Counter,
    /// Connections that ended or could not be made.
    failures: Counter,
    /// Whether it was said that the client cannot subscribe.
    was_refused: AtomicBool,
}

impl Stats {
    pub(super) fn exported(&self) -> Vec<Exported> {
        let mut list = List::new(Vec::new());
        list.counter(
            "tickwheel_redis_notifications_failures_total",
            "Connections for notifications that ended or could not be made.",
            None,
            self.failures.get(),
        );
        list.counter(
            "tickwheel_redis_notifications_reconnects_total",
            "Connections for notifications that took the place of one that had ended.",
            None,
            self.reconnects.get(),
        );
        list.sorted()
    }
}

/// The listeners of one runtime.
#[derive(Default)]
pub(super) struct Subscription {
    /// Listeners by channel.
    listeners: HashMap<String, Vec<Arc<Notify>>>,
    /// Notified when a listener is added or removed.
    changed: Arc<Notify>,
    /// The channels of which messages arrive.
    pub(super) subscribed: BTreeSet<String>,
}

impl Subscription {
    pub(super) fn channels(&self) -> BTreeSet<String> {
        self.listeners.keys().cloned().collect()
    }

    pub(super) fn add(&mut self, channel: &str, listener: &Arc<Notify>) {
        let listeners = self.listeners.entry(channel.to_owned()).or_default();
        listeners.push(listener.clone());
        self.changed.notify_one();
    }

    pub(super) fn remove(&mut self, channel: &str, listener: &Arc<Notify>) {
        if let Some(listeners) = self.listeners.get_mut(channel) {
            listeners.retain(|other| !Arc::ptr_eq(other, listener));
            if listeners.is_empty() {
                self.listeners.remove(channel);
            }
        }
        self.changed.notify_one();
    }

    /// Records that no messages arrive any more. Returns whom to wake, so that he looks by himself.
    fn fall_silent(&mut self) -> Vec<Arc<Notify>> {
        if mem::take(&mut self.subscribed).is_empty() {
            return Vec::new();
        }
        self.all()
    }

    fn of(&self, channel: &str) -> Vec<Arc<Notify>> {
        self.listeners.get(channel).cloned().unwrap_or_default()
    }

    fn all(&self) -> Vec<Arc<Notify>> {
        self.listeners.values().flatten().cloned().collect()
    }
}

/// Wakes listeners with nothing locked: a waker may drop a task that holds another listener.
fn wake(listeners: impl IntoIterator<Item = Arc<Notify>>) {
    listeners.into_iter().for_each(|listener| listener.notify_one());
}

impl Drop for Subscription {
    /// Its task has ended: whoever still listens looks for another.
    fn drop(&mut self) {
        wake(self.all());
    }
}

pub(super) struct Task {
    guard: Guard<Subscription>,
    endpoint: Endpoint,
    stats: Arc<Stats>,
    changed: Arc<Notify>,
    delays: Delays,
    /// Whether there was a connection before.
    was_connected: bool,
}

/// Whether the server has refused what will be refused again until somebody changes a setting.
fn is_refusal(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported
            | ErrorKind::Client
    )
}

impl Task {
    pub(super) fn new(guard: Guard<Subscription>, endpoint: Endpoint, stats: Arc<Stats>) -> Task {
        let changed = guard.running().get(|subscription| subscription.changed.clone());
        Task {
            guard,
            endpoint,
            stats,
            changed: changed.unwrap_or_default(),
            delays: Delays::default(),
            was_connected: false,
        }
    }

    pub(super) async fn run(mut self) {
        while let Some(wanted) = self.wanted() {
            if wanted.is_empty() {
                self.changed.notified().await;
                continue;
            }
            let began = Instant::now();
            let Err(error) = self.connect().await else {
                return;
            };
            self.wake(Subscription::fall_silent);
            self.stats.failures.increment();
            let is_cluster = matches!(self.endpoint, Endpoint::Cluster(_));
            // Only the attempt reveals the protocol.
            if is_cluster && error.kind() == ErrorKind::InvalidClientConfig {
                if !self.stats.was_refused.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "the client of a cluster receives no messages by RESP2: build it with use_protocol(ProtocolVersion::RESP3); who waits looks by himself"
                    );
                }
                // Nothing changes the client. The task ends with the subscription.
                pending::<()>().await;
            }
            let lasted = began.elapsed();
            self.delays.record(lasted);
            // That a connection ends which has lasted is nothing unusual.
            if lasted < LASTING && !mem::replace(&mut self.delays.was_logged, true) {
                tracing::warn!(
                    %error,
                    "the subscription to Redis could not be made; it is tried again, and who waits looks by himself meanwhile"
                );
            }
            let delays = &mut self.delays;
            let backoff = if is_refusal(&error) {
                &mut delays.refused
            } else {
                &mut delays.unreached
            };
            sleep(backoff.next_delay()).await;
        }
    }

    /// Connects, and serves the listeners until that fails or the subscription has been removed.
    async fn connect(&mut self) -> RedisResult<()> {
        let mut link = within(Link::open(&self.endpoint)).await?;
        // The first one takes the place of no other.
        if mem::replace(&mut self.was_connected, true) {
            self.stats.reconnects.increment();
        }
        self.serve(&mut link).await
    }

    /// Returns the channels to which somebody listens.
    fn wanted(&self) -> Option<BTreeSet<String>> {
        self.guard.running().get(|subscription| subscription.channels())
    }

    /// Wakes those whom the subscription names.
    fn wake(&self, whom: impl FnOnce(&mut Subscription) -> Vec<Arc<Notify>>) {
        wake(self.guard.running().get(whom).into_iter().flatten());
    }

    /// Records of which channels messages arrive.
    fn record(&self, subscribed: &BTreeSet<String>) {
        self.guard
            .running()
            .get(|subscription| subscription.subscribed.clone_from(subscribed));
    }

    async fn serve(&self, link: &mut Link) -> RedisResult<()> {
        let (mut subscribed, mut refused) = (BTreeSet::new(), BTreeSet::new());
        // Kept over every `changed`, so that busy listeners do not put the ping off.
        let mut ping_at = Instant::now() + MESSAGE_SILENCE;
        loop {
            let Some(wanted) = self.wanted() else {
                return Ok(());
            };
            let gone: Vec<String> = subscribed.difference(&wanted).cloned().collect();
            if !gone.is_empty() {
                // Some servers answer as if there had been no subscription, which is what is wanted.
                if let Err(error) = within(link.unsubscribe(&gone)).await
                    && error.is_timeout()
                {
                    return Err(error);
                }
                subscribed.retain(|channel| wanted.contains(channel));
                self.record(&subscribed);
            }
            refused.retain(|channel| wanted.contains(channel));
            let is_new = |channel: &&String| !subscribed.contains(*channel) && !refused.contains(*channel);
            let new: Vec<String> = wanted.iter().filter(is_new).cloned().collect();
            if !new.is_empty() {
                let denied = subscribe(link, &new).await?;
                let done = new.into_iter().filter(|channel| !denied.contains(channel));
                let done: Vec<String> = done.collect();
                refused.extend(denied);
                subscribed.extend(done.iter().cloned());
                self.record(&subscribed);
                // Messages published before the subscription was made are not delivered.
                for channel in &done {
                    self.wake(|subscription| subscription.of(channel));
                }
            }
            loop {
                tokio::select! {
                    () = self.changed.notified() => break,
                    message = link.next() => {
                        ping_at = Instant::now() + MESSAGE_SILENCE;
                        match message {
                            Some(Message::On(channel)) => self.wake(|subscription| subscription.of(&channel)),
                            Some(Message::Missed) => {
                                // A cluster's client connects to the node anew by itself.
                                self.stats.failures.increment();
                                self.stats.reconnects.increment();
                                self.wake(|subscription| subscription.all());
                            }
                            None => return Err(broken(io::ErrorKind::UnexpectedEof, "the connection was closed")),
                        }
                    }
                    () = sleep_until(ping_at) => {
                        within(link.ping()).await?;
                        ping_at = Instant::now() + MESSAGE_SILENCE;
                    }
                }
            }
        }
    }
}

async fn within<T>(answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    in_time(LINK_LIMIT, "no answer to a subscription", answer).await
}

/// Subscribes to channels, and returns those that the server refuses. If it refuses all of them, returns its
/// error.
async fn subscribe(link: &mut Link, channels: &[String]) -> RedisResult<Vec<String>> {
    let error = match within(link.subscribe(channels)).await {
        Ok(()) => return Ok(Vec::new()),
        Err(error) if is_refusal(&error) && channels.len() > 1 => error,
        Err(error) => return Err(error),
    };
    // One channel that is forbidden (ACL) makes Redis refuse all of a command.
    let mut refused = Vec::new();
    for channel in channels {
        match within(link.subscribe(std::slice::from_ref(channel))).await {
            Ok(()) => {}
            Err(error) if is_refusal(&error) => refused.push(channel.clone()),
            Err(error) => return Err(error),
        }
    }
    if refused.len() == channels.len() {
        return Err(error);
    }
    tracing::warn!(%error, channels = ?refused, "Redis refuses subscriptions; who waits there looks by himself");
    Ok(refused)
}

/// A connection that lasted for this long was a success.
const LASTING: Duration = Duration::from_secs(10);

/// The delays between two connections, which grow while they fail. They are longer if the server has refused.
struct Delays {
    unreached: Backoff,
    refused: Backoff,
    /// Whether the first failure was logged.
    was_logged: bool,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays {
            unreached: Backoff::new(Duration::from_millis(50), Duration::from_secs(1)),
            refused: Backoff::new(Duration::from_millis(200), Duration::from_secs(60)),
            was_logged: false,
        }
    }
}

impl Delays {
    /// Records how long a connection lasted. After one that was a success, the delays begin anew.
    fn record(&mut self, lasted: Duration) {
        if lasted >= LASTING {
            *self = Delays::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::mpsc,
        task::{Context, Wake, Waker},
        thread,
    };

    use redis::Client;
    use tokio::runtime::Builder;

    use super::{
        super::{Listener, Notifications},
        *,
    };
    use crate::mutex::Mutex;

    /// How many connections are made within so long, each of which fails at once.
    fn connections(within: Duration, delays: impl Fn(Delays) -> Backoff) -> u32 {
        let (mut backoff, mut passed, mut made) = (delays(Delays::default()), Duration::ZERO, 0);
        while passed < within {
            made += 1;
            passed += backoff.next_delay();
        }
        made
    }

    #[test]
    fn delays_grow() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        assert!(connections(minute, |delays| delays.refused) < 12);
        assert!(connections(hour, |delays| delays.refused) < 150);
        assert!(connections(minute, |delays| delays.unreached) > 50);
    }

    /// A task's waker may be all that keeps the task, and so another listener.
    #[test]
    fn a_waker_that_drops_a_listener_is_called_with_nothing_locked() {
        struct Drops(Mutex<Option<Listener>>);
        impl Wake for Drops {
            fn wake(self: Arc<Self>) {
                drop(self.0.lock().take());
            }
        }
        let (unlocked, waits) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let _entered = runtime.enter();
            let notifications = Notifications::of(Client::open("redis://127.0.0.1:1/").unwrap());
            let (hub, mut guarded) = (&notifications.hub, None);
            let serve = |guard| {
                guarded = Some(guard);
                pending()
            };
            hub.subscriptions
                .get_or_start(runtime.handle(), Subscription::default, serve, |_| {});
            let task = Task::new(guarded.unwrap(), hub.endpoint.clone(), hub.stats.clone());
            let [listener, other] = [(); 2].map(|()| notifications.listen("a"));
            let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(other)))));
            let mut heard = pin!(listener.heard());
            assert!(heard.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            task.wake(|subscription| subscription.of("a"));
            unlocked.send(()).unwrap();
        });
        waits
            .recv_timeout(Duration::from_secs(30))
            .expect("it hangs, or has panicked");
    }

    #[test]
    fn they_begin_anew_after_a_connection_that_lasted() {
        let mut delays = Delays {
            was_logged: true,
            ..Delays::default()
        };
        for _ in 0..20 {
            delays.refused.next_delay();
        }
        delays.record(Duration::ZERO);
        assert!(delays.was_logged && delays.refused.next_delay() > Duration::from_secs(10));
        delays.record(LASTING);
        assert!(!delays.was_logged && delays.refused.next_delay() <= Duration::from_millis(200));
    }
}
