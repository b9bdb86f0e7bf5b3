//! `Holder`: who holds a lease at the moment.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    error::Error,
    server::{connection::Connection, keys::Tag, nonce::random_part, script::Script},
    timers,
};

static HOLDER: Script = Script::new(include_str!("scripts/holder.lua"));

/// How long the question is repeated while Redis does not answer, and how long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(5);
const ATTEMPT: Duration = Duration::from_secs(2);
/// The pause after a failed attempt, which doubles from the first value to the second.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

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
pub(super) async fn find(connection: &impl Connection, tag: &Tag) -> Result<Option<Holder>, Error> {
    let call = HOLDER.call().key(tag.key("holder"));
    let began = Instant::now();
    let last = began + PATIENCE;
    let mut pause = PAUSE;
    loop {
        let by = last.min(Instant::now() + ATTEMPT);
        let found = timers::until(by, call.send::<Option<(u64, i64)>>(connection)).await;
        let error = match found {
            Some(Ok(found)) => return Ok(found.and_then(read)),
            Some(Err(error)) => error,
            None => Error::NoAnswer { waited: ATTEMPT },
        };
        if !error.is_passing() || Instant::now() + pause >= last {
            return Err(error.after(began.elapsed()));
        }
        timers::sleep(pause / 2 + random_part(pause / 2)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads an answer, in which what is left is what `PTTL` says.
fn read((token, left): (u64, i64)) -> Option<Holder> {
    const GONE: i64 = -2;
    (left != GONE).then(|| Holder {
        token,
        expires_in: u64::try_from(left).map_or(Duration::MAX, Duration::from_millis),
    })
}
