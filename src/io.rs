//! Read, write and idle timeouts for any [`AsyncRead`] and [`AsyncWrite`], on a wheel.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{error::TimeoutError, sleep::Sleep, wheel::Wheel};

pin_project! {
    /// A stream whose reads and writes fail when nothing moves for too long.
    ///
    /// Three timeouts, all off at first, each to be set, changed and switched off at any time:
    ///
    /// - the **read timeout** fails a read that has waited so long for a byte, as Netty's `ReadTimeoutHandler` does;
    /// - the **write timeout** fails a write, flush or shutdown that has waited so long to get on;
    /// - the **idle timeout** fails whatever waits when no byte has moved in either direction for so long, as Netty's
    ///   `IdleStateHandler` tells. While the peer still reads what is written to it, a read may wait for ever.
    ///
    /// Only waiting counts: the time between two reads, in which nobody asks the stream for anything, is the program's own.
    /// Every byte starts the time over, so slow but steady progress never times out; a deadline for a whole message is what
    /// [`Wheel::timeout`] is for. After a timeout the stream is as it was, and the next read or write waits anew, as with
    /// [`TcpStream::set_read_timeout`](std::net::TcpStream::set_read_timeout).
    ///
    /// Timeouts are never early, and less than one tick late plus what the runtime adds. A byte costs a store, and beside it
    /// a clock reading at most: timers stay where they are in the wheel and re-arm only when their old deadline comes.
    ///
    /// Put it next to the socket, below TLS and buffers: what those move within one flush nobody outside can see.
    ///
    /// # Cancel safety
    ///
    /// As that of the stream inside. A read (or write) given up in the middle, in a `select!` say, counts as waiting until
    /// the next one completes. Dropping the stream cancels its timers at once.
    ///
    /// # Panics
    ///
    /// With a timeout set, the first read or write that has to wait panics outside a Tokio runtime, as the first poll of
    /// [`Wheel::sleep`] does.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut) when the time runs out. Where the wheel is full or has been shut down, a read or
    /// write that has to wait fails with [`Other`](io::ErrorKind::Other); inside either is a [`TimeoutError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use tickwheel::{Wheel, io::TimeoutStream};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> io::Result<()> {
    /// let (mut client, server) = tokio::io::duplex(64);
    /// let mut server = TimeoutStream::new(&Wheel::new(), server);
    /// server.set_read_timeout(Some(Duration::from_millis(20)));
    ///
    /// client.write_all(b"hello").await?;
    /// let mut buffer = [0; 64];
    /// assert_eq!(server.read(&mut buffer).await?, 5);
    /// let error = server.read(&mut buffer).await.unwrap_err();
    /// assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct TimeoutStream<S> {
        #[pin]
        stream: S,
        watch: Watch,
    }
}

/// All that the wrapper knows: who waits since when, and for how long they may.
#[derive(Debug)]
struct Watch {
    wheel: Wheel,
    read: Side,
    write: Side,
    idle_timeout: Option<Duration>,
    /// When a byte last moved; or, later, when somebody began to wait while nobody else did.
    quiet_since: Instant,
}

/// One direction.
#[derive(Debug, Default)]
struct Side {
    timeout: Option<Duration>,
    waiting: Option<Wait>,
    /// Made when first needed; where it is when nobody waits does not matter.
    sleep: Option<Sleep>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    on: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    /// Flush or shutdown: done, it proves no progress of a write that waits.
    Flush,
}

impl Watch {
    /// `operation` is done, after `bytes` have moved.
    #[inline]
    fn completed(&mut self, operation: Operation, bytes: usize) {
        let side = self.side(operation);
        if operation != Operation::Flush || side.waiting.is_some_and(|wait| wait.on == Operation::Flush) {
            side.waiting = None;
        }
        // With a clock to read only where somebody will ask.
        if bytes > 0 && self.idle_timeout.is_some() {
            self.quiet_since = self.wheel.now();
        }
    }

    /// Notes what became of an `operation`, and fails one that has waited too long.
    #[inline]
    fn watched<T>(
        &mut self,
        operation: Operation,
        outcome: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let Poll::Ready(outcome) = outcome else {
            return self.poll_expired(operation, cx).map(Err);
        };
        self.completed(operation, outcome.as_ref().map_or(0, bytes));
        Poll::Ready(outcome)
    }

    /// `operation` has to wait: polls for the end of its patience.
    fn poll_expired(&mut self, operation: Operation, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.side(operation).timeout.or(self.idle_timeout).is_none() {
            return Poll::Pending;
        }
        if self.side(operation).waiting.is_none() {
            let now = self.wheel.now();
            if self.read.waiting.is_none() && self.write.waiting.is_none() {
                self.quiet_since = now;
            }
            self.side(operation).waiting = Some(Wait {
                since: now,
                on: operation,
            });
        }
        let Some(deadline) = self.deadline(operation) else {
            return Poll::Pending;
        };
        let Watch {
            wheel, read, write, ..
        } = self;
        let side = if operation == Operation::Read { read } else { write };
        let sleep = side.sleep.get_or_insert_with(|| wheel.sleep_until(deadline));
        if sleep.deadline() != deadline {
            sleep.reset(deadline);
        }
        // Within the task's budget: a stream that is pending only for want of it must not time out.
        let outcome = ready!(Pin::new(sleep).poll(cx));
        side.waiting = None;
        Poll::Ready(match outcome {
            Ok(()) => TimeoutError::Elapsed.into(),
            Err(refusal) => TimeoutError::from(refusal).into(),
        })
    }

    /// When who waits on this side has waited long enough; `None` where nobody does, or may for ever.
    fn deadline(&self, operation: Operation) -> Option<Instant> {
        let side = if operation == Operation::Read {
            &self.read
        } else {
            &self.write
        };
        let since = side.waiting?.since;
        // A time that overflows the clock never comes.
        let own = side.timeout.and_then(|timeout| since.checked_add(timeout));
        let idle = self
            .idle_timeout
            .and_then(|timeout| self.quiet_since.checked_add(timeout));
        match (own, idle) {
            (Some(own), Some(idle)) => Some(own.min(idle)),
            (own, idle) => own.or(idle),
        }
    }

    fn side(&mut self, operation: Operation) -> &mut Side {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Write | Operation::Flush => &mut self.write,
        }
    }

    /// A timeout has changed: timers that are too late now are moved, and those of nobody ended.
    fn rearm(&mut self) {
        for operation in [Operation::Read, Operation::Write] {
            let deadline = self.deadline(operation);
            let off = self.side(operation).timeout.or(self.idle_timeout).is_none();
            let side = self.side(operation);
            match (&mut side.sleep, deadline) {
                (sleep, _) if off => *sleep = None,
                (Some(sleep), Some(deadline)) => sleep.reset(deadline),
                _ => {}
            }
        }
    }
}

impl<S> TimeoutStream<S> {
    /// Wraps `stream`; no timeout is set yet.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, io::TimeoutStream};
    ///
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// assert_eq!(stream.read_timeout(), None);
    /// ```
    pub fn new(wheel: &Wheel, stream: S) -> TimeoutStream<S> {
        TimeoutStream {
            stream,
            watch: Watch {
                quiet_since: wheel.now(),
                wheel: wheel.clone(),
                read: Side::default(),
                write: Side::default(),
                idle_timeout: None,
            },
        }
    }

    /// Returns how long a read may wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_read_timeout(Some(Duration::from_secs(30)));
    /// assert_eq!(stream.read_timeout(), Some(Duration::from_secs(30)));
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.watch.read.timeout
    }

    /// Sets how long a read may wait for a byte, or switches that off.
    ///
    /// A read that waits already is measured by the new timeout, from when it began to wait; where it had none, from its
    /// next poll.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_read_timeout(Some(Duration::from_secs(30)));
    /// stream.set_read_timeout(None);
    /// ```
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.watch.read.timeout = timeout;
        self.watch.rearm();
    }

    /// Returns how long a write, flush or shutdown may wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::sink());
    /// assert_eq!(stream.write_timeout(), None);
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.watch.write.timeout
    }

    /// Sets how long a write, flush or shutdown may wait to get on, or switches that off.
    ///
    /// One that waits already is measured by the new timeout, from when it began to wait; where it had none, from its next
    /// poll.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::sink());
    /// stream.set_write_timeout(Some(Duration::from_secs(30)));
    /// ```
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.watch.write.timeout = timeout;
        self.watch.rearm();
    }

    /// Returns how long no byte may move in either direction while somebody waits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// assert_eq!(stream.idle_timeout(), None);
    /// ```
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.watch.idle_timeout
    }

    /// Sets how long no byte may move in either direction while somebody waits, or switches that off.
    ///
    /// Switched on, it counts from now. Changed, it counts from the last byte, also for who waits already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let mut stream = TimeoutStream::new(&Wheel::new(), tokio::io::empty());
    /// stream.set_idle_timeout(Some(Duration::from_secs(30)));
    /// ```
    pub fn set_idle_timeout(&mut self, timeout: Option<Duration>) {
        if self.watch.idle_timeout.is_none() {
            self.watch.quiet_since = self.watch.wheel.now();
        }
        self.watch.idle_timeout = timeout;
        self.watch.rearm();
    }

    /// Returns the stream inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// assert_eq!(*TimeoutStream::new(&Wheel::new(), "a stream").get_ref(), "a stream");
    /// ```
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the stream inside, to be changed; what is read and written there counts as nothing here.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// *TimeoutStream::new(&Wheel::new(), "a stream").get_mut() = "another";
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Returns the stream inside, pinned as this one is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::pin::pin;
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// let stream = pin!(TimeoutStream::new(&Wheel::new(), "a stream"));
    /// assert_eq!(*stream.get_pin_mut(), "a stream");
    /// ```
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().stream
    }

    /// Gives back the stream inside, and cancels the timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, io::TimeoutStream};
    /// assert_eq!(TimeoutStream::new(&Wheel::new(), "a stream").into_inner(), "a stream");
    /// ```
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buffer.filled().len();
        let outcome = this.stream.poll_read(cx, buffer);
        let bytes = |_: &()| buffer.filled().len() - before;
        this.watch.watched(Operation::Read, outcome, bytes, cx)
    }
}

impl<S: AsyncWrite> AsyncWrite for TimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let outcome = this.stream.poll_write(cx, buffer);
        this.watch.watched(Operation::Write, outcome, |&bytes| bytes, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let outcome = this.stream.poll_write_vectored(cx, buffers);
        this.watch.watched(Operation::Write, outcome, |&bytes| bytes, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let outcome = this.stream.poll_flush(cx);
        this.watch.watched(Operation::Flush, outcome, |()| 0, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let outcome = this.stream.poll_shutdown(cx);
        this.watch.watched(Operation::Flush, outcome, |()| 0, cx)
    }
}
