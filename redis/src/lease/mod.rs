//! `Leases`: names that one holder in the fleet has at a time. `acquired` is the `Lease` that a holder has.

use std::{fmt, mem, sync::Arc, time::Duration};

use tickwheel::Wheel;

use crate::{
    connection::Connection, error::Error, keys::Tag, nonce::random_part, notifications::Notifications,
    policy::Policy,
};

mod acquired;
mod asking;
mod calls;
mod keeper;
#[cfg(test)]
mod model;
mod release;
mod state;
mod waiters;

use asking::{Asking, Attempt};
use keeper::Keeper;
use state::Terms;
use waiters::Waiters;

pub use acquired::Lease;

/// Leases on one Redis server or cluster: named, held by one holder at a time, and renewed for as long as the holder lives.
///
/// One for a process is enough, and one task renews all its leases, each with one entry in the wheel. Clones are cheap, and the
/// same.
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
    wheel: Wheel,
    connection: C,
    prefix: Arc<str>,
    notifications: Option<Notifications>,
    policy: Arc<Policy>,
    waiters: Arc<Waiters>,
    keeper: Arc<Keeper>,
}

/// How long a waiting `acquire` waits before it looks again, at most.
const POLL: Duration = Duration::from_secs(1);

impl<C: Connection> Leases<C> {
    /// Makes leases on the server or cluster of a connection, timed by a wheel.
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
            wheel: wheel.clone(),
            connection,
            prefix: "tickwheel:lease".into(),
            notifications: None,
            policy: Arc::default(),
            waiters: Arc::default(),
            keeper: Arc::default(),
        }
    }

    /// Sets what the names of all keys begin with; `tickwheel:lease` without it. Leases with different prefixes do not meet.
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
        self.prefix = prefix.as_ref().into();
        self
    }

    /// Has a waiting [`acquire`](Leases::acquire) woken by the release's message, instead of looking again up to a second later.
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

    /// Acquires the lease if nobody holds it. Returns `None` if somebody does.
    ///
    /// `ttl` says how long the lease outlives a holder that has died, and how long an outage of Redis it survives. The lease is
    /// renewed at a third of that. The time is precise to a millisecond.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped midway, what it may have acquired is given back in the background.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Before Redis is asked:
    ///
    /// - [`Error::InvalidTtl`]: `ttl` is less than 200 ms or 20 ticks, or more than 24 hours.
    /// - [`Error::InvalidName`]: the name is empty.
    /// - [`Error::Wheel`]: the wheel is full or has been shut down.
    ///
    /// Afterwards:
    ///
    /// - [`Error::EvictionPolicy`]: Redis might throw the lease away.
    /// - [`Error::WrongType`]: something else has written to its keys.
    /// - [`Error::NoAnswer`]: no answer came for as long as the lease would have lasted.
    /// - [`Error::Redis`]: all else.
    ///
    /// What may have been acquired all the same is given back in the background.
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
        let mut asking = Asking::new(self, name, &tag, terms);
        match asking.attempt().await? {
            Attempt::Held(lease) => Ok(Some(lease)),
            Attempt::Taken { .. } => Ok(None),
        }
    }

    /// Acquires the lease, and waits for it while somebody else holds it.
    ///
    /// Of those who wait for one lease by these `Leases` and their clones, one asks Redis at a time, in the order in which they came. It is woken by
    /// the release's message, with [`notifications`](Leases::notifications), and looks again by itself when the holder's ttl
    /// has passed, every second at least. It goes on through outages of Redis.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, it loses its place among those of this process who wait. What it may have acquired is
    /// given back in the background.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails as [`try_acquire`](Leases::try_acquire) does, but not for what passes by itself. It goes on waiting while Redis is
    /// away, starts, fails over, or is out of memory.
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
        let waiter = self.waiters.waiter(tag.key(""));
        let mut listener = waiter.first().await;
        let mut asking = Asking::new(self, name, &tag, terms);
        let mut backoff = Duration::from_millis(50);
        // Redis would only say what is known here.
        let mut known_as_held = waiter.is_held_here();
        loop {
            let pause = if mem::take(&mut known_as_held) {
                POLL
            } else {
                waiter.forget_releases(listener.as_ref());
                let answer = asking.attempt().await;
                if let (Err(_) | Ok(Attempt::Taken { .. }), None, Some(notifications)) =
                    (&answer, &*listener, &self.notifications)
                {
                    *listener = Some(notifications.listen(calls::channel(&tag)));
                }
                match answer {
                    Ok(Attempt::Held(lease)) => {
                        waiter.holds();
                        return Ok(lease);
                    }
                    Ok(Attempt::Taken { left }) => {
                        backoff = Duration::from_millis(50);
                        // A millisecond more, so that it has gone.
                        left.map_or(POLL, |left| (left + Duration::from_millis(1)).min(POLL))
                    }
                    Err(error) if error.is_passing() => {
                        tracing::debug!(%error, name, "a lease could not be asked for; it is tried again");
                        backoff = (backoff * 2).min(POLL);
                        backoff - random_part(backoff / 2)
                    }
                    Err(error) => return Err(error),
                }
            };
            let heard = async {
                match &*listener {
                    Some(listener) => listener.heard().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = heard => {}
                () = waiter.released() => {}
                slept = self.wheel.sleep(pause) => slept?,
            }
        }
    }

    fn check(&self, name: &str, ttl: Duration) -> Result<(Tag, Terms), Error> {
        if name.is_empty() {
            return Err(Error::InvalidName {
                name: name.to_owned(),
                reason: "a lease needs a name of at least one character",
            });
        }
        let tick = self.wheel.tick_duration();
        let (min, max) = Terms::limits(tick);
        if ttl < min || ttl > max {
            return Err(Error::InvalidTtl { ttl, min, max });
        }
        Ok((Tag::new(&self.prefix, name), Terms::new(ttl, tick)))
    }
}

impl<C> fmt::Debug for Leases<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("prefix", &self.prefix)
            .field("wheel", &self.wheel)
            .field("notifications", &self.notifications)
            .finish_non_exhaustive()
    }
}
