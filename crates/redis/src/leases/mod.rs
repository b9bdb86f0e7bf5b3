//! `Leases`: acquires named leases, each of which one process of the fleet holds at a time. `lease` has
//! the `Lease`, and `calls` what is asked of Redis.

use std::{fmt, future::pending, marker::PhantomData, mem, sync::Arc, time::Duration};

use tickwheel::Wheel;
use tickwheel_exported::Source;
use tokio::time::Instant;

use crate::{
    error::{Error, check_lease, check_name},
    exported::WeakSource,
    server::{
        connection::Connection, erased::connected, eviction::Keys, names::Tag, notifications::Notifications,
        retry::Backoff,
    },
    timers::LocalEntry,
};

mod acquire;
mod calls;
mod keeper;
mod lease;
mod lease_stats;
mod line;
#[cfg(test)]
mod model;
mod state;
mod windows;

use acquire::Asking;
use calls::{LeaseClient, OtherHolder};
use state::Terms;

pub use calls::Holder;
pub use lease::Lease;

/// A factory of leases on one Redis server or cluster.
///
/// A lease has a name and at most one holder at a time, and is renewed for as long as its holder lives. One
/// `Leases` per process is enough: on each runtime that acquires leases, a single task renews them, with one
/// entry in the wheel for each. Clones are cheap and share these tasks.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tickwheel::Wheel;
/// use tickwheel_redis::Leases;
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let leases = Leases::new(&Wheel::new(), client.get_connection_manager().await?);
///
/// let lease = leases.acquire("reports", Duration::from_secs(30)).await?;
/// tokio::select! {
///     () = lease.lost() => println!("somebody else may have it now"),
///     () = write_reports(lease.token()) => println!("done"),
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// # async fn write_reports(_: u64) {}
/// ```
#[derive(Clone)]
pub struct Leases<C> {
    client: Arc<LeaseClient>,
    /// What the client's server was made of.
    connection: PhantomData<C>,
    notifications: Option<Notifications>,
}

/// The longest time that a waiting `acquire` waits before it asks Redis again.
const POLL: Duration = Duration::from_secs(1);
/// The first such time of one that nobody tells of a release, after which it grows. A lease that changes
/// hands quickly has another holder by then, and whoever finds another holder is entered into the line.
const FIRST_LOOK: Duration = Duration::from_millis(25);
/// The first delay after a request that has failed.
const FIRST_ASK_AGAIN: Duration = Duration::from_millis(100);

impl<C: Connection> Leases<C> {
    /// Creates leases on the server or cluster of `connection`, timed by `wheel`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tickwheel::Wheel;
    /// use tickwheel_redis::Leases;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let leases = Leases::new(&Wheel::new(), client.get_connection_manager().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(wheel: &Wheel, connection: C) -> Leases<C> {
        Leases {
            client: Arc::new(LeaseClient {
                wheel: wheel.clone(),
                server: connected(connection, Keys::Expire),
                prefix: "tickwheel:lease".into(),
                waiters: Arc::default(),
                keepers: Arc::default(),
                stats: Arc::default(),
            }),
            connection: PhantomData,
            notifications: None,
        }
    }

    /// Sets the prefix of all keys, `tickwheel:lease` by default. Leases with different prefixes are
    /// independent of each other.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// let leases = leases.prefix("shop:lease");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Leases<C> {
        let client = Arc::make_mut(&mut self.client);
        client.prefix = prefix.as_ref().into();
        client.stats = Arc::default();
        self
    }

    /// Lets the message of a release wake a waiting [`acquire`](Leases::acquire), which otherwise asks again
    /// up to a second later.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use tickwheel_redis::Notifications;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/").map_err(tickwheel_redis::Error::Redis)?;
    /// let leases = leases.notifications(&Notifications::of(client));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn notifications(mut self, notifications: &Notifications) -> Leases<C> {
        self.notifications = Some(notifications.clone());
        self
    }

    /// Acquires the lease, or returns `None` if it is held.
    ///
    /// `ttl` is how long the lease outlives a holder that has died, and how long an outage of Redis it
    /// survives. The lease is renewed at a third of `ttl`. The TTL has a precision of one millisecond.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped midway, a lease that it may have acquired is released in the background.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Before it asks Redis, it returns:
    ///
    /// - [`Error::InvalidTtl`]: `ttl` is less than 200 ms or 20 ticks, or more than 24 hours.
    /// - [`Error::InvalidName`]: the name is empty or longer than 1,024 bytes.
    /// - [`Error::Wheel`]: the wheel is full or has been shut down.
    ///
    /// Afterwards, it returns:
    ///
    /// - [`Error::EvictionPolicy`]: Redis might evict the lease.
    /// - [`Error::WrongType`]: another program has written to one of its keys.
    /// - [`Error::NoAnswer`]: no answer came in the time for which the lease would have lasted.
    /// - [`Error::Redis`]: any other failure.
    ///
    /// A lease that may have been acquired all the same is released in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use std::time::Duration;
    ///
    /// match leases.try_acquire("reports", Duration::from_secs(30)).await? {
    ///     Some(lease) => println!("it is ours, with token {}", lease.token()),
    ///     None => println!("somebody else has it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self, name: &str, ttl: Duration) -> Result<Option<Lease>, Error> {
        let (tag, terms) = self.check(name, ttl)?;
        let mut asking = Asking::new(&self.client, name, &tag, terms);
        Ok(asking.ask(None).await?.ok())
    }

    /// Acquires the lease, waiting for as long as it is held.
    ///
    /// Of all the tasks that wait for the same lease through this `Leases` and its clones, one asks Redis at
    /// a time, in the order of their calls. With [`notifications`](Leases::notifications), the message of a
    /// release wakes it. It also asks again by itself once the holder's TTL has passed, and at least once a
    /// second. If the holder acquired the lease through this `Leases`, it first asks a second after that. It
    /// continues through outages of Redis.
    ///
    /// Several processes that want the same lease have it in turns: a lease that is released is reserved for up
    /// to 1.2 s for a process that has waited for it for half a second, or has seen another process get it
    /// meanwhile. A task that waits first in its process and whose future is not polled for three seconds
    /// is passed over by the others, and loses the lease if it was granted meanwhile.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, it leaves the line of this process. A lease that it may
    /// have acquired is released in the background.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`try_acquire`](Leases::try_acquire), except for transient ones: it keeps
    /// waiting while Redis is unavailable, starting, failing over, or out of memory.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use std::time::Duration;
    ///
    /// let lease = leases.acquire("reports", Duration::from_secs(30)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(&self, name: &str, ttl: Duration) -> Result<Lease, Error> {
        let (tag, terms) = self.check(name, ttl)?;
        let waiter = self.client.waiters.waiter(calls::line(&tag));
        waiter.first().await;
        let mut asking = Asking::new(&self.client, name, &tag, terms);
        let backoff = || Backoff::new(FIRST_ASK_AGAIN, POLL);
        let (mut failing, mut look) = (backoff(), FIRST_LOOK);
        // Redis would only confirm what is known here.
        let mut known_as_held = waiter.is_held_here();
        loop {
            let delay = if mem::take(&mut known_as_held) {
                POLL
            } else {
                waiter.forget_releases();
                let answer = waiter.stay(asking.ask(Some(&waiter))).await;
                if let (Err(_) | Ok(Err(_)), None, Some(notifications)) =
                    (&answer, waiter.listener(), &self.notifications)
                {
                    waiter.listen(notifications.listen(calls::channel(&tag)));
                }
                match answer {
                    Ok(Ok(lease)) => return Ok(lease),
                    Ok(Err(OtherHolder { left, token })) => {
                        waiter.record_refusal(token);
                        failing = backoff();
                        let longest = if self.notifications.is_some() { POLL } else { look };
                        look = (look * 4).min(POLL);
                        // A millisecond more, so that it has gone.
                        left.map_or(longest, |left| longest.min(left + Duration::from_millis(1)))
                    }
                    Err(error) if error.is_passing() => {
                        tracing::debug!(%error, name, "a lease could not be asked for; it is tried again");
                        failing.next_delay()
                    }
                    Err(error) => return Err(error),
                }
            };
            let listener = waiter.listener();
            let heard = async {
                match &listener {
                    Some(listener) => listener.heard().await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = heard => {}
                () = waiter.released() => {}
                slept = LocalEntry::until(&self.client.wheel, Instant::now() + delay) => slept?,
            }
            // Another may be first if this future was not polled for a while.
            waiter.first().await;
        }
    }

    /// Returns who holds the lease now, or `None` if nobody does.
    ///
    /// The answer may be out of date as soon as it arrives, so use it for people and their tools, and
    /// [`try_acquire`](Leases::try_acquire) to decide who acts. A holder that has died is found until its TTL
    /// has passed. A lease that was released and is reserved for a process that waits for it has no holder. It
    /// costs one command, or two at first use, and changes nothing.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidName`]: the name is empty or longer than 1,024 bytes.
    /// - [`Error::EvictionPolicy`]: Redis might evict leases.
    /// - [`Error::WrongType`]: another program has written to the key of the lease.
    /// - [`Error::NoAnswer`], [`Error::Redis`]: there was no answer for five seconds, or Redis refused the
    ///   call.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// match leases.holder("reports").await? {
    ///     Some(holder) => println!("held with token {}, for {:?} at least", holder.token, holder.expires_in),
    ///     None => println!("nobody holds it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holder(&self, name: &str) -> Result<Option<Holder>, Error> {
        calls::find_holder(&*self.client.server, &self.tag(name)?).await
    }

    /// Returns what an exporter reports of the leases that were acquired through this `Leases` and its
    /// clones, as a source for `WheelCollector::and_source` of `tickwheel-prometheus` and
    /// `Reporter::and_source` of `tickwheel-metrics`.
    ///
    /// It asks nothing of Redis, and all counts are exact. See the [crate documentation](crate#metrics)
    /// for the names. It reports nothing once this `Leases`, its clones and their leases have been dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(leases: tickwheel_redis::Leases<redis::aio::ConnectionManager>, wheel: tickwheel::Wheel) {
    /// use tickwheel_prometheus::WheelCollector;
    ///
    /// let collector = WheelCollector::new(&wheel).and_source(leases.source());
    /// # }
    /// ```
    pub fn source(&self) -> impl Source + Clone + use<C> {
        let wheel = self.client.wheel.name().unwrap_or_default().to_owned();
        let labels = vec![("wheel", wheel), ("prefix", self.client.prefix.to_string())];
        WeakSource::new(&self.client.stats, move |stats| stats.exported(labels.clone()))
    }

    fn check(&self, name: &str, ttl: Duration) -> Result<(Tag, Terms), Error> {
        let tag = self.tag(name)?;
        let tick = self.client.wheel.tick_duration();
        check_lease(ttl, tick)?;
        Ok((tag, Terms::new(ttl, tick)))
    }

    fn tag(&self, name: &str) -> Result<Tag, Error> {
        check_name(name, "a lease needs a name of at least one character")?;
        Ok(Tag::new(&self.client.prefix, name))
    }
}

impl<C> fmt::Debug for Leases<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("prefix", &self.client.prefix)
            .field("wheel", &self.client.wheel)
            .field("notifications", &self.notifications)
            .finish_non_exhaustive()
    }
}
