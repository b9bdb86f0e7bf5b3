//! `TimerFd`: a `timerfd` of Linux in the runtime's I/O driver.
//!
//! # What this requires of Tokio
//!
//! 1. *A waker is called with no lock held*, so it may register itself again: `ScheduledIo::wake` in
//!    `runtime/io/scheduled_io.rs` takes it under the lock of the resource and calls it afterwards. It may
//!    take its time, as in [`super::tokio_timer`].
//! 2. *Readiness is edge-triggered*, and stays until it is cleared, so an expiry need not be read.
//! 3. *A resource that is polled without budget is not registered*, and its waker is woken for nothing. So the
//!    budget of the calling task is ignored, as in [`super::tokio_timer`].
//!
//! Whether the I/O driver wakes its resources as the runtime shuts down does not matter, because an engine
//! that is closing waits on Tokio's timer.
//!
//! # What this requires of Linux
//!
//! Every expiry of a timer is an edge, whether or not the one before was read (`timerfd_triggered` in
//! `fs/timerfd.c`). Setting a timer takes back an expiry that nobody has seen yet (`timerfd_setup`), and one
//! that is set to the past expires at once. So the timer is never read: its readiness is cleared in Tokio, and
//! then it is set.
//!
//! `tests/tokio/kernel_timer.rs` has a test for each.

use std::{
    io, mem,
    os::{
        fd::{AsFd, OwnedFd},
        unix,
    },
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};
use tokio::{io::Interest, net::UnixStream};

use crate::engine::clock::{Moment, Nanos};

/// Setting a timer and waking for it takes some microseconds.
pub(crate) const SHORTEST_TICK: Duration = Duration::from_micros(20);

/// What a panic adds to Tokio's words.
const HINT: &str = "A wheel needs it that waits on the kernel's timer, because its ticks are shorter than 1 ms or its builder asked for it.";

/// Tokio's type for any descriptor, `AsyncFd`, is deprecated since 1.53.3, and its successor is unsafe,
/// because nothing makes a type of the user's return the same open descriptor each time. A `UnixStream` owns
/// its descriptor, as it was made from an `OwnedFd`, which is safe for every kind of descriptor. No socket call
/// is ever made on this one; it would fail with `ENOTSOCK`. Tokio polls it by `epoll`, as it would any other.
pub(super) struct TimerFd {
    stream: Arc<UnixStream>,
    /// The process that has created the timer. A child that it forks shares the timer with it, and the `epoll`
    /// in which that is registered.
    process: u32,
}

impl TimerFd {
    /// Creates a timer in the current runtime. Returns `None` if the process has no descriptor left, the
    /// runtime is shutting down, or moments do not count as the kernel does.
    ///
    /// # Panics
    ///
    /// Panics with Tokio's message if the runtime's I/O is disabled. No Tokio up to 1.54 lets one ask (tokio
    /// #8362).
    #[track_caller]
    pub(super) fn new() -> Option<TimerFd> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
        if !counts_as_moments_do(&timer)? {
            return None;
        }
        let stream = unix::net::UnixStream::from(timer);
        match catch_unwind(AssertUnwindSafe(|| UnixStream::from_std(stream))) {
            Ok(stream) => Some(TimerFd {
                stream: Arc::new(stream.ok()?),
                process: process::id(),
            }),
            Err(panic) => {
                let words = panic.downcast_ref::<&str>().copied();
                let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                match words {
                    Some(words) => panic!("{words} {HINT}"),
                    None => resume_unwind(panic),
                }
            }
        }
    }

    /// Returns whether the timer has expired since that was last cleared, or `false` if nothing is to be
    /// waited for, because the runtime is shutting down. Otherwise registers the waker.
    pub(super) fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.stream.poll_read_ready(cx).map(|outcome| outcome.is_ok())
    }

    pub(super) fn clear_expired(&self) {
        // This is how Tokio is told that nothing is to be read any more.
        let nothing = || Err(io::ErrorKind::WouldBlock.into());
        let _: io::Result<()> = self.stream.try_io(Interest::READABLE, nothing);
    }

    /// Makes the timer expire at `at`, or at once if that has come. Returns whether that was possible. It is not
    /// in a child of the process, which would set its parent's timer.
    pub(super) fn set_time(&self, at: Moment) -> bool {
        !self.is_of_parent() && set_time(&self.stream, at).is_some()
    }

    /// Returns whether this process has forked from the one that has created the timer. That takes a system
    /// call, as setting the timer does, which takes several times as long.
    fn is_of_parent(&self) -> bool {
        self.process != process::id()
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // Tokio would take the timer out of the parent's `epoll`. So the child never closes it.
            mem::forget(self.stream.clone());
        }
    }
}

fn set_time(timer: impl AsFd, at: Moment) -> Option<()> {
    let (tv_sec, tv_nsec) = at.to_kernel();
    let time = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec { tv_sec, tv_nsec },
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &time).ok()?;
    Some(())
}

/// Returns whether the kernel counts the seconds of a moment from where `Moment` does, which rests on how the
/// standard library stores an instant.
fn counts_as_moments_do(timer: &OwnedFd) -> Option<bool> {
    let hour = Duration::from_secs(3_600);
    let before = Moment::machine_now();
    set_time(timer, before.after(Nanos::of(hour)))?;
    let left = timerfd_gettime(timer).ok()?.it_value;
    let left = Duration::new(left.tv_sec.try_into().ok()?, left.tv_nsec.try_into().ok()?);
    let taken = Moment::machine_now().since(before).to_duration();
    Some(left <= hour && hour <= left + taken)
}
