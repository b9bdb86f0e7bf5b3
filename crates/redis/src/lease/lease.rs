//! `Lease`: a lease that has been acquired.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::release::Ending;
use crate::{
    error::Error,
    validity::{Lost, Validity},
};

/// A lease that is held until it is [released](Lease::release), dropped, or [lost](Lease::lost).
///
/// It is renewed in the background, on the runtime that acquired it, for as long as it exists. Dropping it,
/// including by a panic of the holder, releases it in the background.
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
    /// Returns the fencing token, which is greater than the token of every earlier holder of this lease.
    ///
    /// Send it with every write to the resource that the lease protects, and let the resource reject a token
    /// smaller than the greatest one it has seen: a holder that was suspended for longer than its TTL cannot
    /// know in time that it has lost the lease.
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

    /// Returns the name of the lease.
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

    /// Returns the TTL that the lease was acquired with.
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

    /// Returns the instant until which the holder may assume that it holds the lease.
    ///
    /// It is the time at which the last successful request was sent, plus the TTL, minus a margin of two
    /// ticks and 10 ms, or of a hundredth of the TTL if that is more. Each renewal moves it, and once the
    /// lease is lost, it is in the past.
    ///
    /// It is an instant of the local monotonic clock, which on Linux stands still while the machine is
    /// suspended. Use the [token](Lease::token) to guard against that.
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

    /// Returns a future that completes when the lease is no longer held.
    ///
    /// It completes no later than [`valid_until`](Lease::valid_until), whatever Redis says, and whatever
    /// becomes of the runtime that acquired the lease and renews it. It completes earlier if Redis reports
    /// the lease as lost, if the lease is released, if that runtime ends, or if the wheel is shut down.
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

    /// Releases the lease. Returns `true` if it was held until now, and `false` if it had expired or been
    /// lost before.
    ///
    /// The lease is not renewed after the first poll. Releasing also works on a wheel that has been shut
    /// down. If it fails, it is retried in the background until the lease must have expired by itself. The
    /// request is sent by the runtime that polls this future.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped midway, the release continues in the background.
    ///
    /// # Errors
    ///
    /// - [`Error::Redis`]: Redis has been unavailable for a second, and for as long as the connection tries
    ///   to reach it by itself.
    /// - [`Error::NoAnswer`]: Redis has not answered by the end of the lease, or within a second if that is
    ///   longer.
    /// - [`Error::NoRuntime`]: the runtime on which the lease was acquired has been shut down, which has
    ///   ended the lease. It is released in the background. Or the future is polled outside a runtime.
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
        // Dropping `ending` tells the keeper to release the lease.
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
