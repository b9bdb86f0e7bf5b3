//! Waiting on a wheel that may be full or shut down.

use std::{future::Future, time::Duration};

use tickwheel::{SleepError, TimeoutError, Wheel};
use tokio::time::Instant;

use crate::error::Error;

/// Waits until `deadline`, on Tokio's timer where the wheel is full. False when the wheel has been shut down.
pub(super) async fn sleep_until(wheel: &Wheel, deadline: Instant) -> bool {
    match wheel.sleep_until(deadline).await {
        Ok(()) => true,
        Err(SleepError::Shutdown) => false,
        Err(_) => {
            tokio::time::sleep_until(deadline).await;
            true
        }
    }
}

/// Waits, whatever has become of the wheel.
pub(super) async fn pause(wheel: &Wheel, duration: Duration) {
    if wheel.sleep(duration).await.is_err() {
        tokio::time::sleep(duration).await;
    }
}

/// Waits for an answer, but no longer than `limit`, whatever has become of the wheel.
pub(super) async fn within<T>(
    wheel: &Wheel,
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::pin!(answer);
    let no_answer = || Error::NoAnswer { waited: limit };
    match wheel.timeout(limit, answer.as_mut()).await {
        Ok(answer) => answer,
        Err(TimeoutError::Elapsed) => Err(no_answer()),
        Err(_) => match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer()),
        },
    }
}
