//! Waiting on a wheel that may be full or shut down.

use std::{future::Future, time::Duration};

use tickwheel::{SleepError, Wheel};
use tokio::time::Instant;

use crate::{error::Error, local};

/// Waits until `deadline`, on Tokio's timer where the wheel is full. False when the wheel has been shut down.
pub(super) async fn sleep_until(wheel: &Wheel, deadline: Instant) -> bool {
    match wheel.try_sleep_until(deadline).await {
        Ok(()) => true,
        Err(SleepError::Shutdown) => false,
        Err(_) => {
            tokio::time::sleep_until(deadline).await;
            true
        }
    }
}

/// Waits for an answer, but no longer than `limit`, whatever has become of the wheel and on whatever runtime.
pub(super) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = local::until(Instant::now() + limit, answer).await;
    answer.unwrap_or(Err(Error::NoAnswer { waited: limit }))
}
