//! `Calls`: what is asked of Redis for one lease, and with which keys. `Holder`: who has a lease.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use redis::{FromRedisValue, Value};
use tickwheel::Wheel;
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{
    keeper::Keepers,
    lease_stats::LeaseStats,
    line::{Standing, Waiters},
    windows::Windows,
};
use crate::{
    error::Error,
    server::{
        erased::AnyConnection,
        names::{Nonce, Tag},
        retry::{Backoff, ask, within},
        script::{Call, Script},
    },
    timers,
};

static ACQUIRE: Script = Script::new(include_str!("scripts/acquire.lua"));
static RENEW: Script = Script::new(include_str!("scripts/renew.lua"));
static RELEASE: Script = Script::new(include_str!("scripts/release.lua"));
static HOLDER: Script = Script::new(include_str!("scripts/holder.lua"));

/// How long the last token is remembered after it was granted or renewed: a day longer than the longest
/// lease.
const FENCE_KEPT: Duration = Duration::from_secs(48 * 60 * 60);
/// How long a release is remembered, in case it is repeated.
const RELEASE_KEPT: Duration = Duration::from_secs(10);
/// How long a release is remembered that undoes a request to acquire, which may still be in flight.
const UNDO_KEPT: Duration = Duration::from_secs(60);
/// How long a caller waits at least for the answer to a release, and how long an outage of Redis lasts before
/// the caller gets its error.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// How long the question is repeated while Redis does not answer, and after how long it is sent again.
const HOLDER_LIMIT: Duration = Duration::from_secs(5);
const HOLDER_ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What all leases of a [`Leases`](super::Leases) share.
#[derive(Clone)]
pub(super) struct LeaseClient {
    pub(super) wheel: Wheel,
    pub(super) server: Arc<dyn AnyConnection>,
    pub(super) prefix: Arc<str>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) keepers: Arc<Keepers>,
    pub(super) stats: Arc<LeaseStats>,
}

/// The calls by which one nonce acquires, renews and releases one lease.
pub(super) struct Calls {
    pub(super) client: Arc<LeaseClient>,
    tag: Tag,
    nonce: Nonce,
    pub(super) ttl: Duration,
}

/// Who holds a lease that was asked for in vain.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherHolder {
    /// For how long it is held unless it is renewed, or `None` if it does not expire.
    pub(super) left: Option<Duration>,
    /// The holder's token.
    pub(super) token: Option<u64>,
}

/// A holder that releases its lease, and waits for the outcome.
struct Releaser {
    answer: oneshot::Sender<Result<bool, Error>>,
    /// Until when the lease was valid, as far as its holder knew.
    valid_until: Instant,
}

/// The answers of a release: it was held until now, which may be untold, or not.
const NOT_HELD: i64 = 0;
const HELD_AND_UNTOLD: i64 = 2;

impl Calls {
    pub(super) fn new(client: &Arc<LeaseClient>, tag: &Tag, ttl: Duration) -> Arc<Calls> {
        Arc::new(Calls {
            client: client.clone(),
            tag: tag.clone(),
            nonce: Nonce::new(),
            ttl,
        })
    }

    /// Asks for the lease. Returns the token. Whoever does not wait for it has no `standing`.
    pub(super) async fn acquire(
        &self,
        standing: Option<Standing>,
    ) -> Result<Result<u64, OtherHolder>, Error> {
        let (process, waited, seen) = match standing {
            Some(standing) => (standing.process.to_string(), standing.waited, standing.seen),
            None => Default::default(),
        };
        let keys = [
            ("holder", self.holder()),
            ("fence", self.fence()),
            ("ended", self.ended()),
        ];
        let call = ACQUIRE.with_keys(keys).named([
            ("nonce", self.nonce.to_string()),
            ("ttl", milliseconds(self.ttl)),
            ("fence_kept", milliseconds(FENCE_KEPT)),
            ("process", process),
            ("waited", milliseconds(waited)),
            ("seen", seen.map_or_else(String::new, |seen| seen.to_string())),
        ]);
        // The tokens arrive as text, because they come close to the largest integer that a Lua number
        // represents exactly.
        let (token, left, holder): (Option<u64>, Option<u64>, Option<String>) = self.send(&call).await?;
        Ok(token.ok_or_else(|| OtherHolder {
            left: left.map(Duration::from_millis),
            token: holder.and_then(|token| token.parse().ok()),
        }))
    }

    /// Renews the lease, which may be done any number of times. If there is no answer within a third of the
    /// TTL, the holder's key is renewed alone, in place of both.
    pub(super) async fn renew(&self, token: u64) -> Result<bool, Error> {
        let keys = [("holder", self.holder()), ("fence", self.fence())];
        let both = self.renewal(RENEW.with_keys(keys), token);
        match timers::until(Instant::now() + self.ttl / 3, self.send(&both)).await {
            Some(answer) => answer,
            None => self.renew_holder(token).await,
        }
    }

    /// Renews the holder's key alone, after a renewal that has failed. While a slot moves to another node of
    /// a cluster, the two keys may be on two nodes, and Redis runs only scripts of a single key. The cluster
    /// client repeats other scripts by itself until it stops waiting, so that the error does not tell.
    pub(super) async fn renew_holder(&self, token: u64) -> Result<bool, Error> {
        let call = RENEW.with_keys([("holder", self.holder())]);
        self.send(&self.renewal(call, token)).await
    }

    fn renewal(&self, call: Call, token: u64) -> Call {
        call.named([
            ("nonce", self.nonce.to_string()),
            ("token", token.to_string()),
            ("ttl", milliseconds(self.ttl)),
            ("fence_kept", milliseconds(FENCE_KEPT)),
        ])
    }

    /// Releases the lease for its holder, which waits for the `answer`.
    pub(super) async fn release(
        self: Arc<Self>,
        answer: oneshot::Sender<Result<bool, Error>>,
        valid_until: Instant,
    ) {
        let call = self.end(RELEASE_KEPT);
        let releaser = Releaser { answer, valid_until };
        self.release_by(|| self.send(&call), Some(releaser), false).await;
    }

    /// Releases a lease that was dropped, in a keeper's task.
    pub(super) async fn release_dropped(self: Arc<Self>, windows: Arc<Windows>) {
        self.release_through(windows, false).await;
    }

    /// Releases, in the background, a lease that may have been acquired or may yet be.
    pub(super) fn undo(self: Arc<Self>, runtime: &Handle) {
        let keepers = self.client.keepers.clone();
        keepers.adopt(
            runtime,
            Box::new(|windows| self.release_through(windows, true).boxed()),
        );
    }

    fn end(&self, kept: Duration) -> Call {
        RELEASE
            .with_keys([("holder", self.holder()), ("ended", self.ended())])
            .named([
                ("nonce", self.nonce.to_string()),
                ("remembered", milliseconds(kept)),
                ("channel", channel(&self.tag)),
            ])
    }

    async fn release_through(self: Arc<Self>, windows: Arc<Windows>, is_undo: bool) {
        let call = self.end(if is_undo { UNDO_KEPT } else { RELEASE_KEPT });
        // Nobody needs the release once the lease has expired by itself.
        let by = Instant::now() + self.ttl;
        let send = async || windows.send(self.slot(), by, self.send(&call)).await.1;
        self.release_by(send, None, is_undo).await;
    }

    /// Releases the lease, also through an outage, until it must have expired by itself. The releaser gets
    /// the first answer, or the error once the outage has lasted for [`RELEASE_LIMIT`], or `NoAnswer` at the
    /// end of the lease.
    async fn release_by<F>(&self, send: impl Fn() -> F, mut releaser: Option<Releaser>, is_undo: bool)
    where
        F: Future<Output = Result<i64, Error>>,
    {
        let start = Instant::now();
        let (told_by, end) = (start + RELEASE_LIMIT, start + self.ttl.max(RELEASE_LIMIT));
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            let by = releaser
                .as_ref()
                .map_or(end, |releaser| releaser.valid_until.max(told_by));
            let left = by.saturating_duration_since(Instant::now());
            let error = match within(left, send()).await {
                Ok(answer) => {
                    if answer == HELD_AND_UNTOLD {
                        self.client.stats.say_untold();
                    }
                    // A request that was refused is undone while another holds the lease.
                    if !is_undo || answer != NOT_HELD {
                        self.client.waiters.released(&line(&self.tag));
                    }
                    if let Some(releaser) = releaser {
                        let was_held = answer != NOT_HELD && start < releaser.valid_until;
                        let _ = releaser.answer.send(Ok(was_held));
                    }
                    return;
                }
                Err(error) => error.after(start.elapsed()),
            };
            let now = Instant::now();
            let over = !error.is_passing() || now >= end;
            tracing::debug!(%error, over, "a lease could not be released");
            // The client may have stopped waiting before the caller has.
            let told_by = if error.is_unanswered() { by } else { told_by };
            if (over || now >= told_by)
                && let Some(releaser) = releaser.take()
            {
                let _ = releaser.answer.send(Err(error));
            }
            if over {
                return;
            }
            timers::sleep(backoff.next_delay()).await;
        }
    }

    async fn send<T: FromRedisValue>(&self, call: &Call) -> Result<T, Error> {
        read(self.client.server.send(call).await?)
    }

    /// Returns the slot of the lease's keys.
    pub(super) fn slot(&self) -> usize {
        self.tag.slot()
    }

    fn holder(&self) -> String {
        self.tag.key("holder")
    }

    /// Returns the key of the last token of all names in the slot. It may be greater than a name's own, which
    /// does no harm, and so costs nothing for a name.
    fn fence(&self) -> String {
        self.tag.of_slot(&self.client.prefix).key("fence")
    }

    fn ended(&self) -> String {
        self.tag.key(&format!("ended:{}", self.nonce))
    }
}

/// Who holds a lease, as [`Leases::holder`](super::Leases::holder) found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The fencing [token](super::Lease::token) of the holder, by which it can be told from others.
    pub token: u64,
    /// How much of the TTL is left by Redis' clock unless the holder renews the lease, with a precision of
    /// one millisecond.
    ///
    /// [`Duration::MAX`] if another program has removed the TTL, as `PERSIST` does. The holder's next renewal
    /// sets it again.
    pub expires_in: Duration,
}

/// Asks for the holder, and again while Redis is away.
pub(super) async fn find_holder(server: &dyn AnyConnection, tag: &Tag) -> Result<Option<Holder>, Error> {
    let deadline = Instant::now() + HOLDER_LIMIT;
    let found: Option<(u64, Option<u64>)> =
        ask(server, HOLDER.on(tag), HOLDER_ANSWER_WITHIN, deadline, read).await?;
    Ok(found.map(|(token, left)| Holder {
        token,
        expires_in: left.map_or(Duration::MAX, Duration::from_millis),
    }))
}

/// Reads an answer. One that is none of our scripts' is asked for again, as after any passing error.
fn read<T: FromRedisValue>(answer: Value) -> Result<T, Error> {
    redis::from_redis_value(answer).map_err(|error| Error::Redis(error.into()))
}

/// Returns the channel on which releases are published.
pub(super) fn channel(tag: &Tag) -> String {
    tag.key("released")
}

/// Returns the key under which tasks of this process wait for the lease.
pub(super) fn line(tag: &Tag) -> String {
    tag.key("")
}

/// Rounds up, because the lease must not end in Redis before it ends for the holder.
fn milliseconds(duration: Duration) -> String {
    duration.as_nanos().div_ceil(1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::BoxFuture;

    use super::*;

    struct Silent;

    impl AnyConnection for Silent {
        fn send<'a>(&'a self, _: &'a Call) -> BoxFuture<'a, Result<Value, Error>> {
            pending().boxed()
        }
    }

    #[tokio::test]
    async fn an_undo_of_what_was_not_held_is_no_release() {
        let client = Arc::new(LeaseClient {
            wheel: Wheel::new(),
            server: Arc::new(Silent),
            prefix: "p".into(),
            waiters: Arc::default(),
            keepers: Arc::default(),
            stats: Arc::default(),
        });
        let tag = Tag::new("p", "x");
        let calls = Calls::new(&client, &tag, Duration::from_secs(30));
        let waiter = client.waiters.waiter(line(&tag));
        for (answer, is_undo, is_release) in
            [(NOT_HELD, true, false), (1, true, true), (NOT_HELD, false, true)]
        {
            calls.release_by(|| ready(Ok(answer)), None, is_undo).await;
            let is_told = waiter.released().now_or_never().is_some();
            assert_eq!(is_told, is_release, "{answer} {is_undo}");
        }
    }
}
