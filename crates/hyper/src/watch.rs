//! Watches the limits of one connection.

use std::{
    hash::{BuildHasher, RandomState},
    mem,
    sync::Arc,
    task::Context,
};

use crate::{
    alarm::Alarm,
    connection::Connection,
    ended::Ended,
    members::Member,
    progress::{Progress, TooSlow},
    settings::Settings,
    time::{Moment, Span},
};

/// The part of a connection that its task alone knows: in which phase it is, and when a limit is over.
///
/// After each poll of hyper's connection, [`check`](Watch::check) sees whether the phase has changed. It looks
/// at the limits, which takes a reading of the clock, only if [`poll`](Watch::poll) has found that the alarm
/// went off or the settings have changed.
#[derive(Debug)]
pub(crate) struct Watch {
    connection: Arc<Connection>,
    member: Member,
    settings: Arc<Settings>,
    alarm: Alarm,
    phase: Phase,
    /// How many requests there had been at the last check.
    requests: u32,
    /// When the head began that is awaited.
    head_since: Moment,
    responses: Progress,
    /// When nothing had been in flight last, as the client was last found not to read.
    quiet_since: Moment,
    /// The last look, or a later time from which the alarm was brought forward.
    looked: Moment,
    /// By what part of the jitter its lifetime is shorter, in parts of `1 << 16`.
    jitter: u16,
    ending: Option<Ending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first head is awaited, or the rest of a later one.
    Head,
    /// No request is in flight.
    Idle,
    Busy,
}

/// A graceful end that has begun.
#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Ended,
    since: Moment,
    is_told: bool,
}

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until it is polled again.
    Wait,
    /// Tell hyper to end it gracefully.
    EndGracefully,
    /// Drop it.
    CutOff(Ended),
}

impl Watch {
    pub(crate) fn new(connection: Arc<Connection>) -> Watch {
        let control = &connection.control;
        control.members.join();
        Watch {
            member: Member::default(),
            settings: control.settings(),
            alarm: Alarm::new(&connection),
            phase: Phase::Head,
            requests: 0,
            head_since: Moment::START,
            responses: Progress::default(),
            quiet_since: Moment::START,
            looked: Moment::START,
            jitter: RandomState::new().hash_one(()) as u16,
            ending: None,
            connection,
        }
    }

    /// Makes the alarm and changes of the settings wake the task. Returns whether the limits are to be looked
    /// at after the poll of hyper's connection that follows, which may use up the task's budget.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let control = &self.connection.control;
        control.members.register(&mut self.member, cx);
        let has_changed = control.has_changed_since(self.settings.version);
        if has_changed {
            self.settings = control.settings();
        }
        self.alarm.poll(cx).is_ready() || has_changed
    }

    /// Finds out what is to be done after a poll of hyper's connection. Unless that is to wait, the
    /// connection is to be polled again, and then the limits are to be looked at.
    #[inline]
    pub(crate) fn check(&mut self, must_look: bool, cx: &mut Context<'_>) -> Step {
        self.observe();
        if must_look || self.must_tell() {
            self.look_until_none_is_over(cx)
        } else {
            Step::Wait
        }
    }

    #[cold]
    fn look_until_none_is_over(&mut self, cx: &mut Context<'_>) -> Step {
        loop {
            match self.look() {
                Ok(next) => self.alarm.set(&self.connection, next),
                Err(step) => return step,
            }
            if self.alarm.poll_without_budget(cx).is_pending() {
                return Step::Wait;
            }
        }
    }

    /// Notes what has begun or ended, and brings the alarm forward if a limit may be over before it.
    fn observe(&mut self) {
        let (phase, requests) = (self.phase_now(), self.connection.requests());
        self.time_responses(phase);
        match phase {
            Phase::Head if self.phase == Phase::Head && self.requests == requests => {}
            Phase::Head => {
                self.head_since = self.connection.now();
                self.bring_alarm_forward(self.head_since.after(self.settings.header));
            }
            Phase::Idle => {
                self.bring_alarm_forward(self.connection.quiet_since().after(self.settings.idle));
            }
            Phase::Busy => self.limit_wait_while_busy(),
        }
        (self.phase, self.requests) = (phase, requests);
    }

    fn phase_now(&self) -> Phase {
        if self.connection.is_busy() {
            Phase::Busy
        } else if self.connection.awaits_head() && self.settings.limits_heads() {
            Phase::Head
        } else {
            Phase::Idle
        }
    }

    /// Times the waits for a client that does not read.
    fn time_responses(&mut self, phase: Phase) {
        let connection = &self.connection;
        let waits = connection.waits_for_reader();
        if waits == self.responses.is_waiting() {
            return;
        }
        if waits {
            let quiet_since = connection.quiet_since();
            if mem::replace(&mut self.quiet_since, quiet_since) != quiet_since {
                // The former waits were for other responses.
                self.responses.forget();
            }
            self.responses.begin_wait(connection.now(), connection.sent());
        } else {
            self.responses.end_wait(connection.now());
            if phase != Phase::Busy && !connection.is_http2() {
                // The end of a response of HTTP/1 was in hyper's own buffer, where nothing counts it.
                connection.fall_quiet();
            }
        }
    }

    /// Has the alarm go off in time for the limits of a busy connection.
    fn limit_wait_while_busy(&mut self) {
        let limit = self
            .settings
            .body_progress
            .span
            .min(self.longest_wait_for_quiet());
        // Neither is after the moment at which the connection got busy, or the alarm was brought forward
        // since. So if the alarm goes off by then, the clock need not be read.
        let known = self.connection.quiet_since().max(self.looked);
        if self.alarm.at() > known.after(limit) {
            self.looked = self.connection.now();
            self.bring_alarm_forward(self.looked.after(limit));
        }
    }

    /// Returns how long to wait before looking whether a busy connection has fallen quiet. It may do so in
    /// another task, which does not wake this one.
    fn longest_wait_for_quiet(&self) -> Span {
        /// Where connections are to end as soon as they are idle, the busy ones must not be looked at all the
        /// time.
        const AT_LEAST: Span = Span::from_millis(10);
        self.settings.idle.max(AT_LEAST)
    }

    fn bring_alarm_forward(&mut self, at: Moment) {
        if at < self.alarm.at() {
            self.alarm.set(&self.connection, at);
        }
    }

    /// Looks at all limits. Returns when to look again, or what is to be done because one is over.
    fn look(&mut self) -> Result<Moment, Step> {
        let now = self.connection.now();
        self.looked = now;
        let end = self.look_at_end(now)?;
        let limit = match self.phase {
            Phase::Head => self.look_at_head(now)?,
            Phase::Idle => end,
            Phase::Busy => self.look_at_bodies(now)?,
        };
        Ok(end.min(limit))
    }

    /// Looks at whether a graceful end is to begin and, if one has begun, at the grace period.
    fn look_at_end(&mut self, now: Moment) -> Result<Moment, Step> {
        if self.ending.is_none() {
            let (why, at) = self.next_end();
            if now < at {
                return Ok(at);
            }
            self.begin_end(why, now);
        }
        let (must_tell, is_cut) = (self.must_tell(), self.connection.is_responding());
        let Some(ending) = &mut self.ending else {
            return Ok(Moment::NEVER);
        };
        let grace = ending.since.after(self.settings.grace);
        if must_tell {
            ending.is_told = true;
            self.bring_alarm_forward(grace);
            return Err(Step::EndGracefully);
        }
        let why = if is_cut { Ended::Grace } else { ending.why };
        not_before(grace, now, why)
    }

    /// Returns why the connection is to end gracefully, and when.
    fn next_end(&self) -> (Ended, Moment) {
        let settings = &self.settings;
        if settings.is_shut_down {
            return (Ended::Shutdown, Moment::START);
        }
        let jitter = settings.jitter.fraction(self.jitter);
        let lifetime = Moment::START.after(settings.lifetime.minus(jitter));
        let idle = self.connection.quiet_since().after(settings.idle);
        if self.phase == Phase::Idle && idle < lifetime {
            (Ended::Idle, idle)
        } else {
            (Ended::Lifetime, lifetime)
        }
    }

    /// Returns whether hyper has to be told of a graceful end. When the lifetime of HTTP/1 is over, it is not:
    /// hyper would close an idle connection at once, while a request may be on its way. Instead the next
    /// response says that it is the last, or the grace period ends the connection.
    fn must_tell(&self) -> bool {
        let can_close = || self.connection.is_http2() || self.settings.is_shut_down;
        let is_to_be_told =
            |ending: &Ending| !ending.is_told && (ending.why != Ended::Lifetime || can_close());
        self.ending.as_ref().is_some_and(is_to_be_told)
    }

    fn begin_end(&mut self, why: Ended, now: Moment) {
        if why == Ended::Lifetime {
            self.connection.close_after_response();
        }
        self.ending = Some(Ending {
            why,
            since: now,
            is_told: false,
        });
    }

    fn look_at_head(&self, now: Moment) -> Result<Moment, Step> {
        not_before(self.head_since.after(self.settings.header), now, Ended::Header)
    }

    fn look_at_bodies(&mut self, now: Moment) -> Result<Moment, Step> {
        let limit = self.settings.body_progress;
        let too_slow = |TooSlow| Step::CutOff(Ended::BodyProgress);
        let uploads = self.connection.uploads.judge(now, limit).map_err(too_slow)?;
        let sent = self.connection.sent();
        let responses = self.responses.judge(now, sent, limit).map_err(too_slow)?;
        let quiet = now.after(self.longest_wait_for_quiet());
        Ok(uploads.min(responses).min(quiet))
    }

    /// Notes that hyper is told now to end the connection gracefully, whatever the limits say.
    pub(crate) fn shut_down(&mut self) {
        let now = self.connection.now();
        if self.ending.is_none() {
            self.begin_end(Ended::Shutdown, now);
        }
        if let Some(ending) = &mut self.ending {
            ending.is_told = true;
        }
        self.bring_alarm_forward(now.after(self.settings.grace));
    }

    /// Notes how the connection has ended.
    pub(crate) fn finish<E>(&self, result: Result<(), E>) -> Result<Ended, E> {
        let ended = match (self.ending, result) {
            (_, Ok(())) if self.connection.is_upgraded() => Ended::Upgraded,
            (Some(ending), _) => ending.why,
            (None, Ok(())) => Ended::Done,
            (None, Err(error)) => return Err(error),
        };
        self.count(ended);
        Ok(ended)
    }

    pub(crate) fn count(&self, ended: Ended) {
        self.connection.control.counters.count(ended);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.connection.control.members.leave(&self.member);
    }
}

/// Returns `limit` if it is still to come, or else that it ends the connection.
fn not_before(limit: Moment, now: Moment, ended: Ended) -> Result<Moment, Step> {
    if now < limit {
        Ok(limit)
    } else {
        Err(Step::CutOff(ended))
    }
}
