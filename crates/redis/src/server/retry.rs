//! `Backoff`: delays that grow. `ask`: repeats a call until it is answered or its deadline has passed.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::{erased::AnyConnection, script::Call};
use crate::{error::Error, timers};

/// The first and the longest delay before a call is sent again.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_millis(500);

/// Delays that double.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            longest,
            failures: 0,
        }
    }

    /// Counts a failure, and returns the delay after it, of which up to a half is left out at random.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let delay = self.after(self.failures);
        delay - random_part(delay / 2)
    }

    /// Returns the delay after so many failures, at least one.
    pub(crate) fn after(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << (failures - 1).min(30));
        doubled.min(self.longest)
    }
}

/// Returns a random duration between zero and `of`.
pub(crate) fn random_part(of: Duration) -> Duration {
    of.mul_f64(fastrand::f64())
}

/// Returns a duration less up to a fifth of it, at random, so that what began together does not go on
/// together.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration - random_part(duration / 5)
}

/// Sends a call that may be carried out twice, and repeats it with growing delays until `read` accepts an
/// answer or `deadline` has passed.
///
/// An answer that took longer than `answer_within` may still be filling the connection that all requests of the
/// process share. So the call is not repeated before a probe behind it has been answered.
pub(crate) async fn ask<T>(
    server: &dyn AnyConnection,
    call: Call,
    answer_within: Duration,
    deadline: Instant,
    read: impl Fn(Value) -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    let mut unanswered = false;
    // Whether an earlier attempt may have been carried out.
    let mut is_unsure = false;
    loop {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .min(answer_within);
        let probe = unanswered.then(|| call.probe());
        let error = match within(left, server.send(probe.as_ref().unwrap_or(&call))).await {
            Ok(_) if unanswered => {
                unanswered = false;
                continue;
            }
            answer => match answer.and_then(&read) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            },
        };
        unanswered = error.is_unanswered();
        let again_at = Instant::now() + backoff.next_delay();
        if !is_worth_repeating(&error) || again_at >= deadline {
            let waited = began.elapsed();
            // A server that is out of memory does not look at what it has carried out before.
            return Err(if is_unsure && is_out_of_memory(&error) {
                Error::NoAnswer { waited }
            } else {
                error.after(waited)
            });
        }
        is_unsure |= !error.is_refusal();
        timers::sleep_until(again_at).await;
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

/// Whether to send the same call again. A server that is out of memory is not asked again, because that would
/// only add to its load.
fn is_worth_repeating(error: &Error) -> bool {
    let is_stale = matches!(error, Error::Redis(error) if error.code() == Some("STALE"));
    error.is_passing() && !is_stale && !is_out_of_memory(error)
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Redis(error) if error.code() == Some("OOM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_spread_over_the_whole() {
        let whole = Duration::from_secs(1);
        let parts: Vec<Duration> = (0..1000).map(|_| random_part(whole)).collect();
        assert!(parts.iter().all(|part| *part <= whole));
        for tenth in 0..10u32 {
            let from = whole / 10 * tenth;
            let hits = parts
                .iter()
                .filter(|part| (from..from + whole / 10).contains(part))
                .count();
            assert!((50..200).contains(&hits), "{hits} of 1000 in tenth {tenth}");
        }
    }
}
