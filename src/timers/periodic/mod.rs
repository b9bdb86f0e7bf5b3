//! `Periodic`: runs a future again and again, at a fixed rate or with a fixed delay.

mod builder;
mod series;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::task::JoinHandle;

use crate::error::ScheduleError;

pub use builder::PeriodicBuilder;

use series::Series;

/// The handle to a series of runs, and a future that completes when the series ends.
///
/// Dropping the handle detaches the series and does not stop it. The series then runs until the wheel is shut down, a run panics
/// or the runtime ends. Dropping every handle of the wheel does not end it either. To end the series by dropping its handle, use
/// [`abort_on_drop`](Periodic::abort_on_drop).
///
/// # Panics
///
/// Panics if it is polled again after it has completed, as a `JoinHandle` does.
///
/// # Errors
///
/// Resolves to a [`ScheduleError`] when the wheel refuses the series or is shut down, or when a run panics.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = tickwheel::Wheel::new();
/// let heartbeat = wheel.periodic(Duration::from_millis(10)).spawn_at_fixed_rate(|| async {});
/// heartbeat.stop();
/// assert_eq!(heartbeat.await, Ok(()));
/// # }
/// ```
///
/// A heartbeat that ends with its connection, however the connection ends:
///
/// ```
/// use std::{io, sync::Arc, time::Duration};
/// use tickwheel::Wheel;
/// use tokio::{io::{AsyncReadExt, AsyncWriteExt, DuplexStream, split}, sync::Mutex};
///
/// async fn serve(wheel: Wheel, stream: DuplexStream) -> io::Result<()> {
///     let (mut read, write) = split(stream);
///     let write = Arc::new(Mutex::new(write));
///     let _heartbeat = wheel
///         .periodic(Duration::from_millis(20))
///         .spawn_at_fixed_rate(move || {
///             let write = write.clone();
///             async move { drop(write.lock().await.write_all(b"beat").await) }
///         })
///         .abort_on_drop();
///     loop {
///         println!("heard {}", read.read_u8().await?);
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let wheel = Wheel::new();
/// # let (mut client, server) = tokio::io::duplex(64);
/// # let serving = tokio::spawn(serve(wheel.clone(), server));
/// # let mut beat = [0; 4];
/// # client.read_exact(&mut beat).await.unwrap();
/// # assert_eq!(&beat, b"beat");
/// # drop(client);
/// # assert!(serving.await.unwrap().is_err());
/// # tokio::task::yield_now().await;
/// # assert_eq!(wheel.pending(), 0);
/// # }
/// ```
#[must_use = "dropping it detaches the series: say so with `drop`, or keep it to stop or await the series"]
pub struct Periodic {
    series: Arc<Series>,
    task: JoinHandle<Result<(), ScheduleError>>,
    abort_on_drop: bool,
}

impl Periodic {
    /// Ends the series, after the run in progress if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// heartbeat.stop();
    /// assert!(heartbeat.is_finished());
    /// # }
    /// ```
    pub fn stop(&self) {
        self.series.stop();
    }

    /// Makes dropping the handle end the series, as tokio-util's `AbortOnDropHandle` does for a task.
    ///
    /// A run in progress is aborted at its next `.await`, and no other run starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel
    ///     .periodic(Duration::from_secs(30))
    ///     .spawn_at_fixed_rate(|| async {})
    ///     .abort_on_drop();
    /// drop(heartbeat); // no run starts from now on
    /// # }
    /// ```
    #[must_use = "dropping it ends the series"]
    pub fn abort_on_drop(mut self) -> Periodic {
        self.abort_on_drop = true;
        self
    }

    /// Returns the number of completed runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// assert_eq!(heartbeat.runs(), 0);
    /// # }
    /// ```
    pub fn runs(&self) -> u64 {
        self.series.runs()
    }

    /// Returns `true` if the series has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// assert!(!heartbeat.is_finished());
    /// # }
    /// ```
    pub fn is_finished(&self) -> bool {
        self.series.has_stopped() || self.task.is_finished()
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        if self.abort_on_drop {
            // Aborting alone would not do: the task may be just about to start a run.
            self.series.stop();
            self.task.abort();
        }
    }
}

impl Future for Periodic {
    type Output = Result<(), ScheduleError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.task).poll(cx));
        Poll::Ready(ended.unwrap_or_else(|error| Err(error.into())))
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("runs", &self.runs())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}
