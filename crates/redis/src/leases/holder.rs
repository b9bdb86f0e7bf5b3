//! `Holder`: who holds a lease at the moment.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::Error,
    server::{erased::AnyConnection, names::Tag, retry::ask, script::Script},
};

static HOLDER: Script = Script::new(include_str!("scripts/holder.lua"));

/// How long the question is repeated while Redis does not answer, and how long one attempt may take.
const HOLDER_LIMIT: Duration = Duration::from_secs(5);
const HOLDER_ATTEMPT: Duration = Duration::from_secs(2);

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
pub(super) async fn find(server: &dyn AnyConnection, tag: &Tag) -> Result<Option<Holder>, Error> {
    let call = HOLDER.on(tag);
    ask(
        server,
        call,
        HOLDER_ATTEMPT,
        Instant::now() + HOLDER_LIMIT,
        |answer| {
            let found: Option<(u64, Option<u64>)> =
                redis::from_redis_value(answer).map_err(|error| Error::Redis(error.into()))?;
            Ok(found.map(|(token, left)| Holder {
                token,
                expires_in: left.map_or(Duration::MAX, Duration::from_millis),
            }))
        },
    )
    .await
}
