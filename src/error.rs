//! The errors of the wheel's futures.

use std::{error::Error, fmt, io};

use tokio::task::JoinError;

/// The error of a [`TrySleep`](crate::TrySleep), which the wheel refused.
///
/// # Examples
///
/// ```
/// use tickwheel::{SleepError, Wheel};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// wheel.shutdown();
/// assert_eq!(wheel.try_sleep(Duration::from_secs(1)).await, Err(SleepError::Shutdown));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SleepError {
    /// The wheel was full: as many timers were pending as its `max_pending` allows.
    AtCapacity {
        /// The wheel's `max_pending`.
        limit: usize,
    },
    /// The wheel was shut down.
    Shutdown,
}

/// The error of a [`TryTimeout`](crate::TryTimeout) that did not return its future's output.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::{future::pending, io, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let error = Wheel::new().try_timeout(Duration::from_millis(10), pending::<()>()).await.unwrap_err();
/// assert!(error.is_elapsed());
/// assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The time ran out before the future completed.
    Elapsed,
    /// The wheel was full: as many timers were pending as its `max_pending` allows.
    AtCapacity {
        /// The wheel's `max_pending`.
        limit: usize,
    },
    /// The wheel was shut down.
    Shutdown,
}

impl TimeoutError {
    /// Returns `true` if the time ran out, and `false` if the wheel refused the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::TimeoutError;
    ///
    /// assert!(TimeoutError::Elapsed.is_elapsed());
    /// assert!(!TimeoutError::Shutdown.is_elapsed());
    /// ```
    pub fn is_elapsed(&self) -> bool {
        matches!(self, TimeoutError::Elapsed)
    }

    /// Returns the error of a timeout whose timer has ended before its future.
    pub(crate) fn after(waited: Result<(), SleepError>) -> TimeoutError {
        waited.map_or_else(TimeoutError::from, |()| TimeoutError::Elapsed)
    }
}

/// The error of a scheduled task, or of a series of periodic runs, that did not return a result.
///
/// # Examples
///
/// ```
/// use tickwheel::{ScheduleError, Wheel};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let report = wheel.schedule(Duration::from_secs(60), async { "done" });
/// assert!(report.cancel());
/// assert!(matches!(report.await, Err(ScheduleError::Cancelled)));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The wheel was full: as many timers were pending as its `max_pending` allows.
    AtCapacity {
        /// The wheel's `max_pending`.
        limit: usize,
    },
    /// The wheel was shut down before the task started.
    Shutdown,
    /// The task was cancelled before it started, or its runtime has ended.
    Cancelled,
    /// The task panicked with this message.
    Panicked(String),
}

/// The error of a [`timeout`](crate::time::timeout()) that elapsed before its future completed.
///
/// # Examples
///
/// ```
/// use std::{future::pending, io};
/// use tickwheel::time::{Duration, error::Elapsed, timeout};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let error: Elapsed = timeout(Duration::from_millis(10), pending::<()>()).await.unwrap_err();
/// assert_eq!(error.to_string(), "deadline has elapsed");
/// assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed(pub(crate) ());

impl Elapsed {
    /// Returns the error of a timeout that is never refused, whose timer has ended before its future.
    pub(crate) fn after(_: ()) -> Elapsed {
        Elapsed(())
    }
}

impl From<SleepError> for TimeoutError {
    fn from(error: SleepError) -> TimeoutError {
        match error {
            SleepError::AtCapacity { limit } => TimeoutError::AtCapacity { limit },
            SleepError::Shutdown => TimeoutError::Shutdown,
        }
    }
}

impl From<SleepError> for ScheduleError {
    fn from(error: SleepError) -> ScheduleError {
        match error {
            SleepError::AtCapacity { limit } => ScheduleError::AtCapacity { limit },
            SleepError::Shutdown => ScheduleError::Shutdown,
        }
    }
}

impl ScheduleError {
    /// Returns the error of a task that did not complete.
    pub(crate) fn of_task(error: JoinError) -> ScheduleError {
        let Ok(panic) = error.try_into_panic() else {
            return ScheduleError::Cancelled;
        };
        ScheduleError::Panicked(match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"no message").to_string(),
        })
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("deadline has elapsed")
    }
}

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SleepError::AtCapacity { limit } => {
                f.pad(&format!("the wheel is at its capacity of {limit} pending timers"))
            }
            SleepError::Shutdown => f.pad("the wheel has been shut down"),
        }
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TimeoutError::Elapsed => Elapsed(()).fmt(f),
            TimeoutError::AtCapacity { limit } => SleepError::AtCapacity { limit }.fmt(f),
            TimeoutError::Shutdown => SleepError::Shutdown.fmt(f),
        }
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScheduleError::AtCapacity { limit } => SleepError::AtCapacity { limit: *limit }.fmt(f),
            ScheduleError::Shutdown => SleepError::Shutdown.fmt(f),
            ScheduleError::Cancelled => f.pad("the task was cancelled, or its runtime has ended"),
            ScheduleError::Panicked(message) => f.pad(&format!("the task panicked: {message}")),
        }
    }
}

impl Error for Elapsed {}
impl Error for SleepError {}
impl Error for TimeoutError {}
impl Error for ScheduleError {}

impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> io::Error {
        io::ErrorKind::TimedOut.into()
    }
}

impl From<SleepError> for io::Error {
    /// Converts the error into one of kind `Other`, because the wheel refused the timer.
    fn from(error: SleepError) -> io::Error {
        io::Error::other(error)
    }
}

impl From<ScheduleError> for io::Error {
    /// Converts the error into one of kind `Other`, because the task did not run to its end.
    fn from(error: ScheduleError) -> io::Error {
        io::Error::other(error)
    }
}

impl From<TimeoutError> for io::Error {
    /// Converts the error into one of kind `TimedOut` if the timeout elapsed, and of kind `Other` if the
    /// wheel refused it.
    fn from(error: TimeoutError) -> io::Error {
        match error {
            TimeoutError::Elapsed => io::Error::new(io::ErrorKind::TimedOut, error),
            refused => io::Error::other(refused),
        }
    }
}
