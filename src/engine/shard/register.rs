//! How a timer begins to wait: it takes over the timer that its thread keeps, without the lock, or is registered.
//!
//! A timer with a deadline goes into the bucket of that deadline. A timer with a delay that counts from its registration needs no clock in
//! a ticking shard if the delay is long: its entry is incoming, with its delay, and the next full visit counts from its own reading. If the
//! delay is short, or the shard dozes, the clock is read, and the timer has a deadline from then on.

use std::task::{Poll, Waker};

use super::{
    Mode, Shard, State, Timer,
    claim::{Claim, Due, Progress},
    reuse::{Candidate, Pace, WakerId},
};
use crate::{
    engine::{
        clock::{Moment, Source},
        sync::{lock, planted},
        timing_wheel::Nanos,
    },
    error::SleepError,
};

impl Timer {
    /// Makes the timer wait if that needs no lock, by taking over the timer that the thread keeps.
    #[inline(always)]
    pub(crate) fn takes_over(&mut self, waker: &Waker) -> bool {
        match (&self.claim.key, self.claim.progress) {
            (None, Progress::New | Progress::Waiting) => self.take_over(waker),
            (None, Progress::Counting) => self.take_over_counting(waker),
            _ => false,
        }
    }

    /// Moves a timer that is to be registered to the shard of the current thread.
    pub(crate) fn follow_thread(&mut self) {
        if self.claim.key.is_none() {
            self.shard.follow_thread();
        }
    }

    /// Takes over the timer that this thread keeps, if that timer's deadline is no later than this one's.
    #[inline(always)]
    fn take_over(&mut self, waker: &Waker) -> bool {
        self.shard.follow_thread();
        let Timer { shard, claim } = self;
        let fits = |claim: &mut Claim, kept: &Candidate, _: &mut Pace| {
            let deadline = claim.settle(shard).filter(|deadline| deadline.is_wheel_time());
            kept.delay == Nanos::ZERO
                && deadline.is_some_and(|deadline| kept.is_due_by(deadline.wheel_time(), shard.tick))
        };
        let taken = shard.reuse.take(waker, claim, fits, Claim::take_over);
        if taken {
            claim.power = 0;
            claim.progress = Progress::Waiting;
        }
        taken
    }

    /// Takes over the timer that this thread keeps, if that timer has the same delay, or a deadline no later than this one's.
    #[inline(always)]
    pub(super) fn take_over_counting(&mut self, waker: &Waker) -> bool {
        let delay = self.claim.incoming_delay();
        if delay == Nanos::ZERO {
            return false;
        }
        self.shard.follow_thread();
        let Timer { shard, claim } = self;
        let mut needs_lock = false;
        let fits = |claim: &mut Claim, kept: &Candidate, pace: &mut Pace| {
            if kept.delay == delay {
                return true;
            }
            // An incoming timer is of a shard that ticks, as far as is known.
            needs_lock = kept.delay != Nanos::ZERO && shard.tick.is_long(delay);
            if kept.delay != Nanos::ZERO {
                return false;
            }
            let deadline = shard.deadline_after(delay, kept, pace);
            if let Some(deadline) = deadline {
                claim.power = 0;
                claim.set_deadline(deadline);
            }
            deadline.is_some()
        };
        let taken = shard.reuse.take(waker, claim, fits, Claim::take_over);
        taken || (needs_lock && self.take_over_locked(waker))
    }

    /// Takes over the timer that this thread keeps, whatever its delay or deadline, in a ticking shard, and gives it this timer's
    /// delay. This needs the lock, because a visit may be about to transfer the timer, but no clone of the waker, which would
    /// cost as much.
    #[inline(never)]
    fn take_over_locked(&mut self, waker: &Waker) -> bool {
        let Timer { shard, claim } = self;
        let mut state = shard.lock_to_register();
        if state.mode != Mode::Ticking || !shard.reuse.take(waker, claim, |_, _, _| true, Claim::take_over) {
            return false;
        }
        if let Some(key) = &claim.key {
            state.wheel.reinsert_incoming(key, claim.incoming_delay());
        }
        claim.until = state.until_full_visit();
        true
    }

    /// Registers the timer, unless it is already due.
    #[inline(never)]
    pub(super) fn register(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        let delay = match self.claim.due() {
            Due::In(Nanos::ZERO) => {
                self.claim.set_deadline(self.shard.now());
                self.claim.progress = Progress::Immediate;
                return self.poll_locked(waker);
            }
            Due::In(delay) => Some(delay),
            Due::At(_) => None,
        };
        let (waker, id) = WakerId::of_clone(waker);
        let shard: &Shard = &self.shard;
        let mut state = shard.lock_to_register();
        let is_long = delay.is_some_and(|delay| shard.tick.is_long(delay));
        if let Some(delay) = delay.filter(|_| is_long && state.mode == Mode::Ticking) {
            shard.admit(&mut state, self.claim.admission)?;
            let until = state.until_full_visit();
            let key = state.wheel.insert_incoming(delay, waker);
            self.claim.set_entry(key, until, id);
            let spent = shard.make_room(&mut state);
            drop(state);
            drop(spent);
            return Poll::Pending;
        }
        let mut state = shard.ensure_driven(state)?;
        let shift = state.clock.shift;
        let (counts_from, deadline) = match self.claim.due() {
            Due::In(delay) => {
                let now = shift.moment(shard.read_clock());
                (Some(now), now.after(delay))
            }
            Due::At(deadline) => (None, shift.to_wheel(deadline)),
        };
        let tick = state.tick_of(deadline);
        if counts_from.is_none() {
            self.claim.settle_at(deadline);
            if tick <= shard.reached(&state) {
                self.claim.progress = Progress::Elapsed;
                return Poll::Ready(Ok(()));
            }
        }
        shard.admit(&mut state, self.claim.admission)?;
        let slack = shard.with_slack(&state, tick, 0);
        let due = slack.due();
        let until = state.until(due);
        let (source, driver) = (state.clock.source, state.driver);
        let key = state.wheel.insert(slack, waker);
        if planted("late_owner") {
            shard.driver.wake_by(state.clock.instant_of(due));
        }
        // The entry has its owner before anything else can panic.
        self.claim.set_entry(key, until, id);
        self.claim.power = slack.power;
        self.claim.set_deadline(deadline);
        let mut wake_at = due;
        let mut emptied = Vec::new();
        // `ensure_driven` may have let another thread make the shard tick.
        if let Some(now) = counts_from.filter(|_| is_long && state.mode != Mode::Ticking) {
            let now = shard.tick.tick_at(now.wheel_time());
            if state.count_registration(now, shard.reuse.were_many()) {
                wake_at = due.min(state.cadence.end);
                // The last visit may be long ago. The clock of a ticking shard is its generation, and starts here.
                let begins = shard.generation_at(&state, now);
                shard.end_generation(&mut state, begins, now, &mut emptied);
            }
        }
        let spent = shard.make_room(&mut state);
        let has_come = shard.wake_driver_by(state, wake_at);
        // Dropped last, because a waker may panic as it is dropped.
        drop(spent);
        drop(emptied);
        if has_come && delay.is_none() && source == Source::Pausable {
            // A test may have paused the clock, and then no task should have to wait for the driver. But if another driver has come
            // in between, it may be by that one's clock that the deadline has come.
            let state = lock(&shard.state);
            if state.mode != Mode::Driverless && state.driver == driver {
                drop(state);
                self.claim.expire(&self.shard);
                self.claim.progress = Progress::Elapsed;
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }
}

impl Shard {
    /// Returns the deadline of a timer whose delay begins now, if the timer that this thread keeps is due no later. This reads the
    /// clock.
    #[inline(never)]
    fn deadline_after(&self, delay: Nanos, kept: &Candidate, pace: &mut Pace) -> Option<Moment> {
        let now = self.now();
        if !now.is_wheel_time() {
            return None;
        }
        let deadline = now.after(delay);
        let latest = deadline.wheel_time().saturating_add(self.tick.slack_of(delay));
        let fits = kept.is_due_by(latest, self.tick) && pace.allows(delay, now, self.tick);
        fits.then_some(deadline)
    }

    /// Removes the timer that this thread keeps, which is of another task, so that the next one can be kept. The caller drops the
    /// waker with no lock held.
    #[inline(always)]
    fn make_room(&self, state: &mut State) -> Option<Waker> {
        let waker = state.wheel.remove(self.reuse.make_room()?)?;
        state.counters.cancelled += 1;
        Some(waker)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{Arc, OnceLock, Weak},
        task::Wake,
        time::Duration,
    };

    use tokio::time::Instant;

    use super::*;
    use crate::engine::{
        clock::{Clock, MILLISECOND},
        shard::{
            Drive, Reading, Wakers,
            drive::fixture::{StandIn, no_driver, shard_of},
        },
        timing_wheel::{TickDuration, TimingWheel},
    };

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn shard(clock: Clock, driver: Arc<dyn Drive>) -> Arc<Shard> {
        let shard = Arc::new(shard_of(clock, TimingWheel::new(512, 4), driver));
        shard.attach(clock, Instant::now(), 1);
        shard
    }

    /// A timeout of 50 ms may be half a millisecond late, which is less than a tick.
    #[test]
    fn a_timer_that_took_another_over_has_no_more_slack_than_one_that_was_registered() {
        let tick = TickDuration::new(MILLISECOND).with_slack(Duration::from_secs(1));
        let clock = Clock::new(Instant::now(), Nanos::ZERO, tick, Source::Machine);
        let shard = shard(clock, no_driver());
        let waker = Waker::from(Arc::new(Task));
        let begin = || {
            let mut timer = Timer::counting(&shard, 50 * MILLISECOND);
            assert!(timer.poll(&waker).is_pending());
            timer
        };
        drop(begin());
        let timer = begin();
        assert_eq!(lock(&shard.state).counters.registered, 1, "it took none over");
        assert_eq!(timer.claim.power, 0);
    }

    /// A timer of 100,000 s, on a wheel with ticks of 10 s and a slack of 1,000 s, that has expired 1,000 s late. It was rounded up to
    /// 64 ticks.
    fn expired_with_slack(waker: &Waker) -> Timer {
        let tick = TickDuration::new(Duration::from_secs(10)).with_slack(Duration::from_secs(1_000));
        let start = Instant::now();
        let shard = shard(Clock::new(start, Nanos::ZERO, tick, Source::Machine), no_driver());
        let mut timer = Timer::after(&shard, shard.now(), Duration::from_secs(100_000));
        assert!(timer.poll(waker).is_pending());
        assert_eq!(timer.claim.power, 6);
        let now = Nanos::from_duration(Duration::from_secs(101_000));
        let clock = Clock::new(start, now, tick, Source::Machine);
        shard.follow(clock, start);
        shard.visit(Reading::new(&clock, now, 1), true, 256, &mut Wakers::default());
        timer
    }

    #[test]
    fn a_timer_that_has_elapsed_and_is_reset_to_this_instant_has_no_slack() {
        let waker = Waker::from(Arc::new(Task));
        let mut timer = expired_with_slack(&waker);
        assert!(timer.poll(&waker).is_ready());
        timer.reset_at(Instant::now());
        assert!(timer.poll(&waker).is_pending(), "the tick is not over");
        assert_eq!(timer.claim.power, 0);
    }

    #[test]
    fn a_timer_that_has_come_and_is_reset_has_the_slack_of_the_rest() {
        let waker = Waker::from(Arc::new(Task));
        for (rest, power) in [(2_000, 1), (20_000, 4), (1_000_000, 6)] {
            let mut timer = expired_with_slack(&waker);
            timer.reset_at(Instant::now() + Duration::from_secs(rest));
            assert!(!timer.is_elapsed());
            assert!(timer.poll(&waker).is_pending());
            assert_eq!(timer.claim.power, power, "a rest of {rest} s");
            let counters = &lock(&timer.shard.state).counters;
            assert_eq!(
                (counters.registered, counters.expired),
                (2, 1),
                "it is re-armed once"
            );
        }
    }

    #[test]
    fn what_has_come_by_the_clock_of_the_next_driver_has_not_come() {
        const AHEAD: Duration = Duration::from_secs(3_600);
        let clock_from = |start| {
            let tick = TickDuration::new(MILLISECOND);
            Clock::new(start, Nanos::ZERO, tick, Source::Pausable)
        };
        let woken = Arc::new(OnceLock::<Weak<Shard>>::new());
        let shard_of_woken = woken.clone();
        // The driver ends as it is woken, in favour of one whose clock is an hour ahead.
        let wake = move || {
            let shard = shard_of_woken.get().and_then(Weak::upgrade).unwrap();
            shard.detach(Nanos::ZERO, &mut Wakers::default());
            let now = Instant::now() + AHEAD;
            shard.attach(clock_from(now), now, 2);
            true
        };
        let shard = shard(
            clock_from(Instant::now()),
            Arc::new(StandIn { ahead: AHEAD, wake }),
        );
        woken.get_or_init(|| Arc::downgrade(&shard));
        let mut timer = Timer::after(&shard, shard.now(), Duration::from_secs(60));
        assert!(timer.poll(Waker::noop()).is_pending());
        assert_eq!(shard.pending(), 1);
    }
}
