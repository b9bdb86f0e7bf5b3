//! Whether a client keeps up with the bodies of its requests, or with the responses.

use crate::{
    settings::ProgressLimit,
    time::{Moment, Span},
};

/// The time for which the connection has waited for its client, in windows: each lasts until the waits add up
/// to the limit, and in each the client has to move enough bytes. So a client that is slow only once, or that
/// is made to wait itself, is not cut off.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    waiting_since: Option<Moment>,
    /// For how long it waited before, in this window.
    waited: Span,
    /// The bytes that had moved, of all time, when the window began.
    moved_before: u64,
}

/// The client was too slow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooSlow;

impl Progress {
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }

    /// Begins a wait, with `moved` bytes of all time.
    pub(crate) fn begin_wait(&mut self, now: Moment, moved: u64) {
        if self.waited == Span::ZERO {
            self.moved_before = moved;
        }
        self.waiting_since = Some(now);
    }

    pub(crate) fn end_wait(&mut self, now: Moment) {
        self.waited = self.waited_until(now);
        self.waiting_since = None;
    }

    /// Ends the window, and a wait, because what the connection waited for is over.
    pub(crate) fn forget(&mut self) {
        self.waiting_since = None;
        self.waited = Span::ZERO;
    }

    fn waited_until(&self, now: Moment) -> Span {
        let since = self.waiting_since.map_or(Span::ZERO, |since| now.since(since));
        self.waited.plus(since)
    }

    /// Judges the window if it is over, and begins the next. Returns the earliest time at which the window
    /// may be over.
    pub(crate) fn judge(&mut self, now: Moment, moved: u64, limit: ProgressLimit) -> Result<Moment, TooSlow> {
        let waited = self.waited_until(now);
        if waited < limit.span {
            let rest = limit.span.minus(waited);
            if self.is_waiting() {
                return Ok(now.after(rest));
            }
            // Nobody waits, so the window may not end for long. Where little is left of it, that must not be
            // looked at all the time.
            let sixteenth = limit.span.fraction(1 << 12);
            return Ok(now.after(rest.max(sixteenth)));
        }
        if moved.wrapping_sub(self.moved_before) < limit.min_bytes {
            return Err(TooSlow);
        }
        self.waiting_since = self.waiting_since.map(|_| now);
        self.waited = Span::ZERO;
        self.moved_before = moved;
        Ok(now.after(limit.span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::START.after(Span::from_millis(seconds * 1_000))
    }

    fn limit() -> ProgressLimit {
        ProgressLimit {
            span: Span::from_millis(10_000),
            min_bytes: 100,
        }
    }

    #[test]
    fn only_waits_count() {
        let mut progress = Progress::default();
        progress.begin_wait(at(0), 0);
        progress.end_wait(at(6));
        // The handler works for an hour.
        assert_eq!(progress.judge(at(3_606), 0, limit()), Ok(at(3_610)));
        progress.begin_wait(at(3_606), 0);
        assert_eq!(progress.judge(at(3_609), 0, limit()), Ok(at(3_610)));
        assert_eq!(progress.judge(at(3_610), 0, limit()), Err(TooSlow));
    }

    /// The window cannot end before the next wait, and to look for that in each tick would cost the server
    /// more than the client.
    #[test]
    fn a_window_that_is_nearly_over_is_not_looked_at_all_the_time() {
        let mut progress = Progress::default();
        let nearly = Moment::START.after(Span::from_millis(9_999));
        progress.begin_wait(at(0), 0);
        progress.end_wait(nearly);
        let next = progress.judge(at(20), 0, limit()).unwrap();
        assert!(next > Moment::START.after(Span::from_millis(20_500)), "{next:?}");
        progress.begin_wait(at(20), 0);
        let over = progress.judge(at(20), 0, limit()).unwrap();
        assert_eq!(over, Moment::START.after(Span::from_millis(20_001)));
    }

    #[test]
    fn each_window_wants_its_bytes() {
        let mut progress = Progress::default();
        progress.begin_wait(at(0), 5_000);
        assert_eq!(progress.judge(at(10), 5_100, limit()), Ok(at(20)));
        assert_eq!(progress.judge(at(20), 5_200, limit()), Ok(at(30)));
        assert_eq!(progress.judge(at(30), 5_299, limit()), Err(TooSlow));
    }

    #[test]
    fn bytes_that_moved_before_the_wait_do_not_count() {
        let mut progress = Progress::default();
        progress.begin_wait(at(0), 0);
        progress.end_wait(at(1));
        progress.forget();
        progress.begin_wait(at(20), 1_000_000);
        assert_eq!(progress.judge(at(30), 1_000_000, limit()), Err(TooSlow));
    }

    #[test]
    fn without_a_limit_nothing_is_too_slow() {
        let mut progress = Progress::default();
        progress.begin_wait(at(0), 0);
        assert_eq!(
            progress.judge(at(1 << 33), 0, ProgressLimit::NONE),
            Ok(Moment::NEVER)
        );
    }
}
