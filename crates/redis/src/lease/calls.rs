//! `Calls`: the three scripts of a lease and the keys they use.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, select};
use redis::FromRedisValue;
use tokio::time::Instant;

use crate::{
    error::Error,
    server::{
        erased::AnyConnection,
        keys::Tag,
        nonce::Nonce,
        script::{Call, Script},
    },
    timers,
};

static ACQUIRE: Script = Script::new(include_str!("scripts/acquire.lua"));
static RENEW: Script = Script::new(include_str!("scripts/renew.lua"));
static RELEASE: Script = Script::new(include_str!("scripts/release.lua"));

/// How long the last token is remembered after it was granted or renewed: a day longer than the longest
/// lease.
const FENCE: Duration = Duration::from_secs(48 * 60 * 60);
/// How long a release is remembered, in case it is repeated.
const REPEAT: Duration = Duration::from_secs(10);
/// How long a release is remembered whose request to acquire may still be in flight.
const UNDER_WAY: Duration = Duration::from_secs(60);

/// Redis' answer to a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acquired {
    Yes {
        token: u64,
    },
    /// The lease is held for this much longer unless it is renewed, or `None` if it does not expire.
    No {
        left: Option<Duration>,
        /// The holder's token.
        token: Option<u64>,
    },
}

/// The calls by which one nonce acquires, renews and releases one lease.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    tag: Tag,
    /// The last token of all names in the slot. It may be greater than a name's own, which does no harm, and
    /// so costs nothing per name.
    fence: String,
    nonce: Nonce,
    ttl: Duration,
}

/// The keys that a renewal touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewedKeys {
    Both,
    /// For a renewal that follows one that has failed. While a slot moves to another node of a cluster, the
    /// two keys may be on two nodes, and Redis runs only scripts of a single key. The cluster client repeats
    /// other scripts by itself until it stops waiting, so that the error does not tell.
    HolderAlone,
}

/// What Redis is told of a process that waits for a lease, so that each of several processes has its standing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) group: Nonce,
    /// How long it has waited since it last had the lease.
    pub(super) waited: Duration,
    /// The token of the holder that it found meanwhile. If there is another one now, this process was passed
    /// over.
    pub(super) seen: Option<u64>,
}

impl Calls {
    pub(super) fn new(prefix: &str, tag: Tag, ttl: Duration) -> Calls {
        Calls {
            fence: tag.of_slot(prefix).key("fence"),
            tag,
            nonce: Nonce::new(),
            ttl,
        }
    }

    /// Asks for the lease. Whoever does not wait for it has no `standing`.
    pub(super) async fn acquire(
        &self,
        server: &dyn AnyConnection,
        standing: Option<Standing>,
    ) -> Result<Acquired, Error> {
        let (group, waited, seen) = match standing {
            Some(standing) => (standing.group.to_string(), standing.waited, standing.seen),
            None => Default::default(),
        };
        let call = ACQUIRE
            .call()
            .key(self.holder())
            .key(&self.fence)
            .key(self.ended())
            .arg(self.nonce.to_string())
            .arg(milliseconds(self.ttl))
            .arg(milliseconds(FENCE))
            .arg(group)
            .arg(milliseconds(waited))
            .arg(seen.map_or_else(String::new, |seen| seen.to_string()));
        // The token arrives as text, because it comes close to the largest integer that a Lua number
        // represents exactly.
        let (yes, number, holder): (bool, i64, String) = send(server, call).await?;
        Ok(match (yes, u64::try_from(number)) {
            (true, Ok(token)) => Acquired::Yes { token },
            (_, left) => Acquired::No {
                left: left.ok().map(Duration::from_millis),
                token: holder.parse().ok(),
            },
        })
    }

    /// Renews the lease, which may be done any number of times. If both keys are to be renewed and there is
    /// no answer within a third of the TTL, the holder's key is renewed alone, too.
    pub(super) async fn renew(
        &self,
        keys: RenewedKeys,
        token: u64,
        server: &dyn AnyConnection,
    ) -> Result<bool, Error> {
        let alone = self.renewal(token, RENEW.call().key(self.holder()));
        if keys == RenewedKeys::HolderAlone {
            return send(server, alone).await;
        }
        let both = self.renewal(token, RENEW.call().key(self.holder()).key(&self.fence));
        let mut both = pin!(send(server, both));
        if let Some(answer) = timers::until(Instant::now() + self.ttl / 3, &mut both).await {
            return answer;
        }
        match select(both, pin!(send(server, alone))).await {
            Either::Left((Err(_), alone)) => alone.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    fn renewal(&self, token: u64, call: Call) -> Call {
        call.arg(self.nonce.to_string())
            .arg(token)
            .arg(milliseconds(self.ttl))
            .arg(milliseconds(FENCE))
    }

    /// Returns the slot of the lease's keys.
    pub(super) fn slot(&self) -> usize {
        self.tag.slot()
    }

    /// Releases a lease that was acquired.
    pub(super) fn release(&self) -> Call {
        self.end(REPEAT)
    }

    /// Releases a lease that may have been acquired, or may yet be.
    pub(super) fn give_back(&self) -> Call {
        self.end(UNDER_WAY)
    }

    fn end(&self, remember: Duration) -> Call {
        RELEASE
            .call()
            .key(self.holder())
            .key(self.ended())
            .arg(self.nonce.to_string())
            .arg(milliseconds(remember))
            .arg(channel(&self.tag))
    }

    fn holder(&self) -> String {
        self.tag.key("holder")
    }

    fn ended(&self) -> String {
        self.tag.key(&format!("ended:{}", self.nonce))
    }
}

/// Returns the channel on which releases are published.
pub(super) fn channel(tag: &Tag) -> String {
    tag.key("released")
}

/// Sends a call once.
pub(super) async fn send<T: FromRedisValue>(server: &dyn AnyConnection, call: Call) -> Result<T, Error> {
    let answer = server.send(Arc::new(call)).await?;
    redis::from_redis_value(answer).map_err(|error| Error::Redis(error.into()))
}

/// Rounds up, because the lease must not end in Redis before it ends for the holder.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
