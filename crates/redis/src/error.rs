//! `Error`, and which errors are worth a retry.

use std::{error, fmt, time::Duration};

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tickwheel::SleepError;

/// An error of a lease or a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Redis could not be reached, or refused the call: it is unavailable, starting, out of memory, or
    /// rejects our credentials.
    Redis(RedisError),
    /// No answer came in the time in which it would have been useful: Redis is silent, its sentinels are, or
    /// the keys of the call are on two nodes of a cluster because their slot is being moved.
    NoAnswer {
        /// How long the call waited.
        waited: Duration,
    },
    /// The duration of a lease is shorter or longer than allowed.
    InvalidTtl {
        /// The given duration.
        ttl: Duration,
        /// The shortest allowed: 200 ms, or 20 ticks of the wheel if that is more.
        min: Duration,
        /// The longest allowed: 24 hours.
        max: Duration,
    },
    /// A name or an id is not allowed.
    InvalidName {
        /// The given name, or its beginning if it is long.
        name: String,
        /// Why it is not allowed.
        reason: &'static str,
    },
    /// The value of a setting, or the size of a payload, is not allowed.
    InvalidSetting {
        /// The name of the setting.
        setting: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Redis is configured to evict keys that are in use when its memory is full.
    EvictionPolicy {
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// A key of this crate holds a value of another type, or one that is none of this crate's, because
    /// another program has written to it.
    WrongType {
        /// That key alone, or the keys of the call, which include it, where Redis does not say which it is.
        keys: Vec<String>,
    },
    /// The queue was created with another number of partitions.
    Partitions {
        /// The given number.
        given: u32,
        /// The number that is stored with the queue.
        stored: u32,
    },
    /// A job could not be delivered. It is tried again, or dead if this was its last attempt.
    Undeliverable {
        /// The job's id. If that is no id of this crate, its beginning, with replacement characters.
        id: String,
        /// Why it could not be delivered.
        reason: String,
    },
    /// The wheel refused a timer because it is full or has been shut down.
    Wheel(SleepError),
    /// The runtime on which the lease was acquired or the worker was started has been shut down, or there is
    /// no current runtime.
    NoRuntime,
}

impl Error {
    /// Whether the client stopped waiting for an answer, so that the call may or may not have been carried
    /// out.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Error::Redis(error) => error.is_timeout(),
            Error::NoAnswer { .. } => true,
            _ => false,
        }
    }

    /// Turns the error of the last of several attempts into the error of all of them.
    pub(crate) fn after(self, waited: Duration) -> Error {
        match self {
            Error::NoAnswer { .. } => Error::NoAnswer { waited },
            error => error,
        }
    }

    /// Whether the connection ended; the client may have opened another by now.
    pub(crate) fn is_broken_connection(&self) -> bool {
        let Error::Redis(error) = self else {
            return false;
        };
        // A cluster's connection says so of a node whose own connection has broken.
        error.kind() == ErrorKind::ClusterConnectionNotFound
            || (error.is_connection_dropped() && !error.is_connection_refusal())
    }

    /// Whether the call was certainly not carried out, except by an earlier attempt that the client repeated
    /// on its own.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            // A script that fails halfway reports an error too, but ours check before they write to a job or a lease.
            Error::Redis(error) => match error.kind() {
                // A cluster client reports these after several attempts of its own, of which an earlier one
                // may have arrived.
                ErrorKind::Server(_) if error.is_cluster_error() => false,
                ErrorKind::Server(ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly) => false,
                ErrorKind::Server(_) | ErrorKind::Extension => true,
                _ => error.is_connection_refusal(),
            },
            Error::NoAnswer { .. } => false,
            _ => true,
        }
    }

    /// Whether a worker cannot go on, because only another setting or program can avoid the error, or because
    /// its runtime has ended.
    pub(crate) fn ends_work(&self) -> bool {
        matches!(
            self,
            Error::InvalidTtl { .. }
                | Error::InvalidName { .. }
                | Error::InvalidSetting { .. }
                | Error::Partitions { .. }
                | Error::NoRuntime
        )
    }

    /// Whether the same call may succeed later although nobody changes a setting or a program.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::NoAnswer { .. } => true,
            Error::Redis(error) => match error.kind() {
                ErrorKind::AuthenticationFailed
                | ErrorKind::InvalidClientConfig
                | ErrorKind::UnexpectedReturnType
                | ErrorKind::RESP3NotSupported
                | ErrorKind::Server(
                    ServerErrorKind::ResponseError | ServerErrorKind::CrossSlot | ServerErrorKind::NoPerm,
                ) => false,
                ErrorKind::Extension => !matches!(
                    error.code(),
                    Some("NOAUTH" | "WRONGPASS" | "NOPROTO" | "WRONGTYPE")
                ),
                _ => true,
            },
            _ => false,
        }
    }

    fn text(&self) -> String {
        match self {
            Error::Redis(error) if error.code() == Some("OOM") => format!("Redis is out of memory: {error}"),
            Error::Redis(error) if error.is_connection_refusal() => {
                format!("Redis cannot be reached: {error}")
            }
            Error::Redis(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => format!(
                "Redis: {error}; the user of the connection needs EVALSHA and EVAL, the commands of our scripts, and our keys (ACL)"
            ),
            Error::Redis(error) => format!("Redis: {error}"),
            Error::NoAnswer { waited } => format!(
                "no answer within {waited:?}: Redis or its sentinels are silent, or a slot of the cluster is being moved"
            ),
            Error::InvalidTtl { ttl, min, max } => format!(
                "a lease of {ttl:?} is not allowed: at least {min:?} (200 ms and 20 ticks of the wheel) and at most {max:?}"
            ),
            Error::InvalidName { name, reason } => format!("the name {name:?} is not allowed: {reason}"),
            Error::InvalidSetting {
                setting,
                value,
                allowed,
            } => format!("{setting} of {value} is not allowed: allowed is {allowed}"),
            Error::EvictionPolicy { policy } => format!(
                "Redis may throw away keys that are in use: its maxmemory-policy is {policy:?} with maxmemory set; \
                 allowed is \"noeviction\""
            ),
            Error::WrongType { keys } => {
                let one_of = if keys.len() > 1 { "one of " } else { "" };
                let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                format!(
                    "something else has written to a key of ours, {one_of}{}: it holds a value of another type",
                    keys.join(", ")
                )
            }
            Error::Partitions { given, stored } => format!(
                "the queue has {stored} partitions and cannot be opened with {given}: allowed is {stored}"
            ),
            Error::Undeliverable { id, reason } => {
                format!("the job {id:?} could not be delivered: {reason}")
            }
            Error::Wheel(error) => format!("the wheel refused: {error}"),
            Error::NoRuntime => {
                "the runtime on which it was started has been shut down, or there is no current runtime"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Redis(error) => Some(error),
            Error::Wheel(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        Error::Redis(error)
    }
}

impl From<SleepError> for Error {
    fn from(error: SleepError) -> Error {
        Error::Wheel(error)
    }
}

/// The longest name or id in bytes, because every key of a lease and every answer about a job contains it.
const LONGEST_NAME: usize = 1024;

/// Returns an error if a name or an id is empty, for the given reason, or longer than [`LONGEST_NAME`].
pub(crate) fn check_name(name: &str, if_empty: &'static str) -> Result<(), Error> {
    let reason = match name.len() {
        0 => if_empty,
        1..=LONGEST_NAME => return Ok(()),
        _ => "a name or an id has at most 1024 bytes",
    };
    Err(Error::InvalidName {
        name: name.chars().take(64).collect(),
        reason,
    })
}

/// Returns an error if a lease of a name or a job leaves no room for a round trip and the margin, or lasts
/// for more than a day.
pub(crate) fn check_lease(ttl: Duration, tick: Duration) -> Result<(), Error> {
    let (min, max) = (
        (tick * 20).max(Duration::from_millis(200)),
        Duration::from_secs(24 * 60 * 60),
    );
    if (min..=max).contains(&ttl) {
        Ok(())
    } else {
        Err(Error::InvalidTtl { ttl, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_padded_to_its_width() {
        let error = Error::NoRuntime;
        assert_eq!(format!("{error:>100}|").len(), 101);
        assert_eq!(format!("{error:.11}|"), "the runtime|");
    }
}
