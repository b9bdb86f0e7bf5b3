//! `Lease`: what a holder has.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::release::Ending;
use crate::{
    error::Error,
    lost::{Lost, Validity},
};

/// A lease that is held until it is [released](Lease::release), dropped, or [lost](Lease::lost).
///
/// It is renewed in the background for as long as it exists. Dropping it releases it in the background, also when the holder
/// panics.
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    pub(super) name: Box<str>,
    pub(super) token: u64,
    pub(super) ttl: Duration,
    pub(super) validity: Validity,
    /// Until it is released or dropped.
    pub(super) ending: Option<Ending>,
}

impl Lease {
    /// Returns the fencing token: greater than that of every earlier holder of this lease.
    ///
    /// What the lease protects should be given it with every write, and refuse one that is smaller than the greatest it has
    /// seen: a holder that was stopped for longer than its ttl cannot know in time that it lost the lease.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// let token = lease.token();
    /// println!("update reports set body = 'new', fence = {token} where fence <= {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// assert_eq!(lease.name(), "reports");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the ttl that it was acquired with.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// assert_eq!(lease.ttl().as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the instant until which the holder may believe that it holds the lease.
    ///
    /// Each renewal moves it. Once the lease is lost, it is in the past. It is when the last request that succeeded was sent,
    /// plus ttl, less a margin. The margin is two ticks and 10 ms, or a hundredth of ttl if that is more.
    ///
    /// The local monotonic clock counts. On Linux it stands still while a machine is suspended. For that there is the
    /// [token](Lease::token).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// use tokio::time::Instant;
    ///
    /// if Instant::now() < lease.valid_until() {
    ///     println!("still ours, for {:?} at least", lease.valid_until() - Instant::now());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.validity.until()
    }

    /// Returns a future that completes when the lease is not held any more.
    ///
    /// It completes by [`valid_until`](Lease::valid_until) at the latest, whatever Redis says. It completes earlier if Redis says
    /// that the lease is lost, if the lease was released, or if the wheel was shut down.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// tokio::select! {
    ///     () = lease.lost() => println!("stop: somebody else may have it now"),
    ///     () = async { /* the work */ } => println!("done"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> Lost {
        self.validity.lost()
    }

    /// Releases the lease. Returns `true` if it was held until now, and `false` if it had run out or been lost before.
    ///
    /// From the call on, the lease is not renewed any more. This works also on a wheel that was shut down. If it fails, it is
    /// tried again in the background until the lease must have run out by itself.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped midway, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis has been away for a second.
    /// - [`Error::NoAnswer`]: it has not answered by the end of the lease, or within a second if that is more.
    /// - [`Error::NoRuntime`]: the runtime on which the lease was acquired has gone.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lease: tickwheel_redis::Lease) -> Result<(), tickwheel_redis::Error> {
    /// if !lease.release().await? {
    ///     println!("it was lost before: the work may have been done twice");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<bool, Error> {
        let valid_until = self.validity.granted();
        self.validity.lose();
        match self.ending.take() {
            Some(ending) => ending.release(valid_until).await,
            None => Err(Error::NoRuntime),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The keeper hears of it when `ending` is dropped.
        self.validity.lose();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
