//! Where Tokio's milliseconds lie between the ticks of a wheel.
//!
//! Tokio's timer counts milliseconds from the start of its runtime, and comes for an instant between two of them at the later one
//! at the earliest; to a thread that sleeps up to a millisecond after that. To a wheel whose ticks begin shortly after one it always
//! comes nearly a millisecond late. How late it is at least, over many ticks, tells how far that is, and by so much, or nearly, the
//! ticks may begin later:
//!
//! ```text
//!     Tokio may come at   |         |         |         |         |
//!     a tick begins         x                   x                      0.8 ms before that
//!     moved by 0.6 ms             x                   x                0.2 ms before
//! ```
//!
//! A tick is visited when it was before, if the estimate is right, or else up to a millisecond later until that is mended. But what
//! falls due while a tick waits for Tokio is now of that tick, not of the next.
//!
//! Nothing is early by it: a tick that begins later is a later deadline to all that have it already, and a tick that a shard has
//! reached has begun by the moved clock, too. For that, ticks are moved at one visited within its first millisecond, when
//! none after it has begun.

use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// What is left between the beginning of a tick and Tokio's millisecond, for the least lateness seen is more than that distance.
const MARGIN: Duration = Duration::from_micros(150);

/// Ticks looked at before the first move, and twice as many before each that follows, up to the last.
const FIRST: u32 = 32;
const LAST: u32 = 1024;

/// What a driver has learnt of it.
#[derive(Debug)]
pub(crate) struct Phase {
    /// Ticks to look at; zero when enough is known.
    window: u32,
    seen: u32,
    least: Duration,
}

impl Phase {
    /// Ticks of anything but whole milliseconds lie now here, now there.
    pub(crate) fn new(tick: Duration) -> Phase {
        let whole = tick.subsec_nanos() % MILLISECOND.subsec_nanos() == 0;
        Phase {
            window: if whole { FIRST } else { 0 },
            seen: 0,
            least: Duration::MAX,
        }
    }

    /// Takes in how late a tick was visited, and says by how much ticks should begin later, when that has been learnt.
    pub(crate) fn learn(&mut self, lag: Duration) -> Option<Duration> {
        if self.window == 0 {
            return None;
        }
        self.seen += 1;
        self.least = self.least.min(lag);
        if self.seen < self.window || lag >= MILLISECOND {
            return None;
        }
        let by = self.least.saturating_sub(MARGIN);
        self.least = Duration::MAX;
        self.seen = 0;
        self.window = if self.window < LAST { 2 * self.window } else { 0 };
        (by > MARGIN).then_some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn learn(phase: &mut Phase, lags: impl IntoIterator<Item = Duration>) -> Vec<Duration> {
        lags.into_iter().filter_map(|lag| phase.learn(lag)).collect()
    }

    #[test]
    fn the_least_lag_of_a_window_says_by_how_much() {
        let mut phase = Phase::new(Duration::from_millis(10));
        let lags = (0..FIRST).map(|n| us(800 + 7 * u64::from(n * 7 % 20)));
        assert_eq!(learn(&mut phase, lags), [us(650)]);
    }

    #[test]
    fn ticks_are_moved_at_one_that_is_not_late() {
        let mut phase = Phase::new(Duration::from_millis(1));
        let late = [us(800)].into_iter().chain([us(1_000); FIRST as usize]);
        assert_eq!(learn(&mut phase, late), []);
        assert_eq!(phase.learn(us(999)), Some(us(650)));
    }

    #[test]
    fn learning_ends() {
        let mut phase = Phase::new(Duration::from_millis(1));
        let moves = learn(&mut phase, [us(900); 10_000]);
        assert_eq!(moves, [us(750); 6]);
    }

    #[test]
    fn a_wheel_in_phase_stays_there() {
        let mut phase = Phase::new(Duration::from_millis(1));
        assert_eq!(learn(&mut phase, [us(180); 10_000]), []);
    }

    #[test]
    fn what_was_overestimated_is_mended_and_that_ends() {
        // Tokio comes at every whole millisecond; a tick begins at `begin`, and the driver takes 20 us to wake.
        let mut phase = Phase::new(Duration::from_millis(1));
        let mut begin = us(300);
        let mut moves = 0;
        for n in 0..100_000 {
            // Late by more than its rounding for as long as the first window lasts.
            let busy = us(if n < FIRST { 250 } else { 0 });
            let comes = us((begin + us(1)).as_micros().div_ceil(1_000) as u64 * 1_000);
            if let Some(by) = phase.learn(comes - begin + us(20) + busy) {
                begin += by;
                moves += 1;
            }
        }
        let before_tokio = 1_000 - begin.as_micros() % 1_000;
        assert!(before_tokio <= 300, "{before_tokio} us");
        assert!((1..=6).contains(&moves), "{moves} moves");
    }

    #[test]
    fn a_machine_that_is_always_late_tells_nothing() {
        let mut phase = Phase::new(Duration::from_millis(10));
        assert_eq!(learn(&mut phase, [us(1_000); 10_000]), []);
    }

    #[test]
    fn ticks_of_other_than_whole_milliseconds_are_left_alone() {
        for tick in [us(500), us(1_500), Duration::from_nanos(10_000_001)] {
            assert_eq!(learn(&mut Phase::new(tick), [us(900); 10_000]), []);
        }
    }
}
