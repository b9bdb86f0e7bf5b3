//! `Backoff`: the pauses between attempts. `ask` and `repeat`: repeat a call until it is answered or its
//! deadline has passed.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{erased::AnyConnection, nonce::random_part, script::Call};
use crate::{error::Error, timers};

/// The pauses after a call's failed attempts.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(500);

/// Pauses that double, of which up to a half is left out at random.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest }
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause - random_part(pause / 2)
    }
}

/// Returns a duration less up to a fifth of it, at random, so that what began together does not go on together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration - random_part(duration / 5)
}

/// Sends a call that may be carried out twice, and repeats it with growing pauses until `read` accepts an
/// answer or `deadline` has passed.
///
/// An answer that took longer than `attempt` may still be filling the connection that all requests of the
/// process share. So the call is not repeated before a probe behind it has been answered.
pub(crate) async fn ask<T>(
    server: &dyn AnyConnection,
    call: Call,
    attempt: Duration,
    deadline: Instant,
    read: impl Fn(Value) -> Result<T, Error>,
) -> Result<T, Error> {
    let call = Arc::new(call);
    let mut attempts = Attempts::new(attempt, deadline);
    let mut unanswered = false;
    loop {
        let left = attempts.left();
        let error = if unanswered {
            match within(left, server.send(Arc::new(call.probe()))).await {
                Ok(_) => {
                    unanswered = false;
                    continue;
                }
                Err(error) => error,
            }
        } else {
            let answer = within(left, server.send(call.clone())).await;
            match answer.and_then(&read) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            }
        };
        unanswered = error.is_unanswered();
        attempts.pause_after(error).await?;
    }
}

/// Runs a request that may be carried out twice, and repeats it with growing pauses until it succeeds or
/// `deadline` has passed.
pub(crate) async fn repeat<T, F>(
    attempt: Duration,
    deadline: Instant,
    request: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut attempts = Attempts::new(attempt, deadline);
    loop {
        match within(attempts.left(), request()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => attempts.pause_after(error).await?,
        }
    }
}

/// Waits for an answer, but no longer than `limit`, whatever has become of the wheel and on whatever runtime.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let deadline = timers::after(limit);
    let answer = timers::until(deadline, answer).await;
    answer.unwrap_or(Err(Error::NoAnswer { waited: limit }))
}

/// The attempts at one call.
struct Attempts {
    began: Instant,
    deadline: Instant,
    attempt: Duration,
    backoff: Backoff,
}

impl Attempts {
    fn new(attempt: Duration, deadline: Instant) -> Attempts {
        Attempts {
            began: Instant::now(),
            deadline,
            attempt,
            backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
        }
    }

    /// Returns how long the next attempt may take.
    fn left(&self) -> Duration {
        self.deadline
            .saturating_duration_since(Instant::now())
            .min(self.attempt)
    }

    /// Waits before the next attempt, or returns the error if there is none.
    async fn pause_after(&mut self, error: Error) -> Result<(), Error> {
        let next = Instant::now() + self.backoff.next_pause();
        if !is_worth_repeating(&error) || next >= self.deadline {
            return Err(error.after(self.began.elapsed()));
        }
        timers::sleep_until(next).await;
        Ok(())
    }
}

/// Whether to send the same call again. A server that is out of memory is not asked again, because that would
/// only add to its load.
fn is_worth_repeating(error: &Error) -> bool {
    error.is_passing()
        && !matches!(error, Error::Redis(error) if matches!(error.code(), Some("OOM" | "STALE")))
}
