//! Where Tokio's milliseconds lie between the ticks of a wheel.
//!
//! Tokio's timer counts milliseconds from the start of its runtime, and comes for an instant between two of them at the later one
//! at the earliest; to a thread that sleeps, up to a millisecond after that. To a wheel whose ticks begin shortly after one it always
//! comes nearly a millisecond late. How late it is at least, of many times, tells how far that is, and by so much, or nearly, the
//! ticks may begin later:
//!
//! ```text
//!     Tokio may come at   |         |         |         |         |
//!     a tick begins         x                   x                      0.8 ms before that
//!     moved by 0.6 ms             x                   x                0.2 ms before
//! ```
//!
//! A tick is visited when it was before. But what falls due while a tick waits for Tokio is now of that tick, not of the next.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::clock::Clock;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Times to look. A thread that sleeps again at once comes some 10 or 20 us later in Tokio's millisecond every time, and once
/// around is enough.
const LOOKS: u32 = 128;

/// What is left between the beginning of a tick and Tokio's millisecond: the least lateness seen is more than that distance by what it
/// takes a thread to wake.
const MARGIN: Duration = Duration::from_micros(250);

/// A move by less is not worth it.
const TRIFLE: Duration = Duration::from_micros(100);

/// Looks at so many milliseconds in a row how late Tokio comes.
#[derive(Debug)]
pub(crate) struct Phase {
    interval: Interval,
    looks_left: u32,
    least: Duration,
}

impl Phase {
    /// Of ticks one of which begins at `beginning`; `None` unless they are of whole milliseconds, for others lie now here, now
    /// there.
    pub(crate) fn of(beginning: Instant, tick: Duration) -> Option<Phase> {
        let whole = tick.subsec_nanos() % MILLISECOND.subsec_nanos() == 0;
        whole.then(|| {
            let mut interval = tokio::time::interval_at(beginning + MILLISECOND, MILLISECOND);
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            Phase {
                interval,
                looks_left: LOOKS,
                least: Duration::MAX,
            }
        })
    }

    /// Ready with the clock to go by from now on, when it is known and this is a moment to change it.
    ///
    /// Nothing is early by the change. To whatever has a tick already, one that begins later is a later deadline. And where both
    /// clocks agree on the tick in progress, no shard has reached one that has not begun.
    pub(crate) fn poll_moved(&mut self, clock: Clock, cx: &mut Context<'_>) -> Poll<Clock> {
        let delayed = clock.delayed(ready!(self.poll_delay(cx)));
        let now = Instant::now();
        let [before, after] = [clock, delayed].map(|clock| clock.tick_at(clock.nanos_of(now)));
        match before == after {
            true => Poll::Ready(delayed),
            false => Poll::Pending,
        }
    }

    /// Ready when enough has been seen, with how much later the ticks should begin.
    fn poll_delay(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        while self.looks_left > 0 {
            let planned = ready!(self.interval.poll_tick(cx));
            self.least = self.least.min(planned.elapsed());
            self.looks_left -= 1;
        }
        Poll::Ready(delay(self.least))
    }
}

fn delay(least: Duration) -> Duration {
    let delay = least.saturating_sub(MARGIN);
    // What is a millisecond or more has other reasons than Tokio's rounding.
    match (TRIFLE..MILLISECOND).contains(&delay) {
        true => delay,
        false => Duration::ZERO,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_are_moved_to_shortly_before_tokio_comes() {
        let step = us(37);
        let start = Instant::now();
        for _ in 0..12 {
            tokio::time::advance(us(230)).await;
            let beginning = Instant::now();
            let mut phase = Phase::of(beginning, TICK).unwrap();
            let delay = loop {
                match phase.poll_delay(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(delay) => break delay,
                    Poll::Pending => tokio::time::advance(step).await,
                }
            };
            let into_millisecond = (beginning - start).as_micros() as u64 % 1_000;
            let distance = us((1_000 - into_millisecond) % 1_000);
            if distance >= MARGIN + TRIFLE {
                let seen = delay + MARGIN;
                assert!(
                    (distance..distance + step).contains(&seen),
                    "{seen:?} of {distance:?}"
                );
            } else if distance + step < MARGIN + TRIFLE {
                assert_eq!(delay, Duration::ZERO, "{distance:?}");
            }
        }
    }

    #[test]
    fn a_machine_that_is_always_late_tells_nothing() {
        assert_eq!(delay(us(1_249)), us(999));
        assert_eq!(delay(us(1_250)), Duration::ZERO);
    }

    #[tokio::test]
    async fn ticks_of_other_than_whole_milliseconds_are_left_alone() {
        for tick in [us(500), us(1_500), Duration::from_nanos(10_000_001)] {
            assert!(Phase::of(Instant::now(), tick).is_none());
        }
    }
}
