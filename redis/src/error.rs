//! `Error`.

use std::{error, fmt, time::Duration};

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tickwheel::SleepError;

/// What can go wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Redis could not be asked, or refused: it is away, it is starting, it is out of memory, it does not know us.
    Redis(RedisError),
    /// No answer came for as long as it would have been of use.
    NoAnswer {
        /// How long was waited.
        waited: Duration,
    },
    /// A lease shorter or longer than allowed.
    InvalidTtl {
        /// The duration given.
        ttl: Duration,
        /// The shortest allowed: 200 ms, or 20 ticks of the wheel if that is more.
        min: Duration,
        /// The longest allowed: 24 hours.
        max: Duration,
    },
    /// A name, or an id, that cannot be one.
    InvalidName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting that is not allowed.
    InvalidSetting {
        /// The name of the setting.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The values allowed.
        allowed: &'static str,
    },
    /// Redis is set up to throw away keys that are in use when its memory is full.
    EvictionPolicy {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// A key of ours holds a value that is not ours: something else writes to it.
    WrongType {
        /// The keys of the call, of which it is one.
        keys: Vec<String>,
    },
    /// The queue was made with another number of partitions.
    Partitions {
        /// The number given.
        given: u32,
        /// The number stored with the queue.
        stored: u32,
    },
    /// The wheel refused: it is full, or has been shut down.
    Wheel(SleepError),
    /// The runtime on which it was started has been shut down.
    NoRuntime,
}

impl Error {
    /// Whether the client stopped waiting for an answer: the call may or may not have been carried out.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Error::Redis(error) => error.is_timeout(),
            Error::NoAnswer { .. } => true,
            _ => false,
        }
    }

    /// The error of the last of several attempts, as that of all of them.
    pub(crate) fn after(self, waited: Duration) -> Error {
        match self {
            Error::NoAnswer { .. } => Error::NoAnswer { waited },
            error => error,
        }
    }

    /// Whether the connection ended; another may be there by now.
    pub(crate) fn is_broken_connection(&self) -> bool {
        matches!(self, Error::Redis(error) if error.is_connection_dropped() && !error.is_connection_refusal())
    }

    /// Whether the call was not carried out, unless an earlier one was that the client repeated by itself.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            // A script that failed half way has said so too; ours check before they write.
            Error::Redis(error) => match error.kind() {
                // What a cluster's client says after it has tried for a while; an earlier try may have arrived.
                ErrorKind::Server(_) if error.is_cluster_error() => false,
                ErrorKind::Server(ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly) => false,
                ErrorKind::Server(_) | ErrorKind::Extension => true,
                _ => error.is_connection_refusal(),
            },
            Error::NoAnswer { .. } => false,
            _ => true,
        }
    }

    /// Whether the same call may succeed later with nobody changing a setting or a program.
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
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Redis(error) if error.code() == Some("OOM") => {
                write!(f, "Redis is out of memory: {error}")
            }
            Error::Redis(error) if error.is_connection_refusal() => {
                write!(f, "Redis cannot be reached: {error}")
            }
            Error::Redis(error) => write!(f, "Redis: {error}"),
            Error::NoAnswer { waited } => write!(f, "Redis did not answer within {waited:?}"),
            Error::InvalidTtl { ttl, min, max } => write!(
                f,
                "a lease of {ttl:?} is not allowed: at least {min:?} (200 ms and 20 ticks of the wheel) and at most {max:?}"
            ),
            Error::InvalidName { name, reason } => write!(f, "the name {name:?} is not allowed: {reason}"),
            Error::InvalidSetting {
                setting,
                value,
                allowed,
            } => write!(f, "{setting} of {value} is not allowed: allowed is {allowed}"),
            Error::EvictionPolicy { policy } => write!(
                f,
                "Redis may throw away keys that are in use: its maxmemory-policy is {policy:?} with maxmemory set; \
                 allowed is \"noeviction\""
            ),
            Error::WrongType { keys } => {
                f.write_str("something else has written to a key of ours, one of ")?;
                for (place, key) in keys.iter().enumerate() {
                    let comma = if place == 0 { "" } else { ", " };
                    write!(f, "{comma}{key:?}")?;
                }
                f.write_str(": it holds a value of another type")
            }
            Error::Partitions { given, stored } => write!(
                f,
                "the queue has {stored} partitions and cannot be opened with {given}: allowed is {stored}"
            ),
            Error::Wheel(error) => write!(f, "the wheel refused: {error}"),
            Error::NoRuntime => f.write_str("the runtime on which it was started has been shut down"),
        }
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

/// The shortest lease of a name or a job, so that a round trip and the margin fit into it.
pub(crate) fn shortest_lease(tick: Duration) -> Duration {
    (tick * 20).max(Duration::from_millis(200))
}
