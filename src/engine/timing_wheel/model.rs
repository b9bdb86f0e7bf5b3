//! The wheel beside a model, a `BTreeMap` that is too plain to be wrong. It takes any operations in any order. After each of them it checks
//! everything that can be observed from outside, and every invariant inside. tests.rs runs it under proptest, and fuzz/ under libFuzzer.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::bucket::Place;
use super::{Deadline, Key, Nanos, Tick, TickDuration, TimingWheel, advance::Advanced};

/// A tick relative to now, so that small numbers reach every level and every edge.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum When {
    Now,
    Past(u8),
    /// This many buckets of a level ahead of now or, if `aligned`, of the start of the current bucket; off by one or two.
    Ahead {
        level: u8,
        buckets: u8,
        aligned: bool,
        skew: i8,
    },
    At(u64),
    Max,
}

/// An operation. `timer` picks one of the timers whose keys are kept, expired ones included.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Op {
    Insert(When),
    InsertIncoming(u16),
    MarkIncoming,
    TransferIncoming { from: When, limit: u8 },
    Reinsert { timer: u8, deadline: When },
    BringForward { timer: u8, deadline: When },
    Remove { timer: u8 },
    GetMut { timer: u8 },
    Advance { to: When, limit: u8, calls: u8 },
    CancelAll,
}

/// Runs `ops` on a new wheel, with a slack in ticks, and then empties it. Panics at the first difference from the model.
pub(crate) fn run(ticks_per_wheel: usize, levels: usize, slack: u64, ops: &[Op]) {
    let mut model = Model::new(ticks_per_wheel, levels, slack);
    model.check();
    for op in ops {
        model.step(*op);
        model.check();
    }
    model.finish();
}

struct Model {
    wheel: TimingWheel<u64>,
    slack: u64,
    timers: Vec<Timer>,
    /// The pending timers, in the order in which they must expire. A deadline that had passed at insertion counts as the tick of
    /// the insertion. All other deadlines are later, and entries that were overdue before became so at that tick or earlier.
    due: BTreeMap<(Tick, u64), u64>,
    /// Delay, value, and whether it is marked to be transferred.
    incoming: VecDeque<(Nanos, u64, bool)>,
    values: u64,
    placed: u64,
    cascaded: usize,
}

struct Timer {
    key: Key,
    value: u64,
    /// The deadline as given, past or not. `None` while the timer is incoming.
    deadline: Option<Deadline>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Incoming,
    Due(Tick, u64),
    Expired,
}

impl Model {
    fn new(ticks_per_wheel: usize, levels: usize, slack: u64) -> Model {
        Model {
            wheel: TimingWheel::new(ticks_per_wheel, levels),
            slack,
            timers: Vec::new(),
            due: BTreeMap::new(),
            incoming: VecDeque::new(),
            values: 0,
            placed: 0,
            cascaded: 0,
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Insert(deadline) => {
                let deadline = self.deadline(self.resolve(deadline));
                let value = self.new_value();
                let key = self.wheel.insert(deadline, value);
                let state = self.place(deadline, value);
                self.add(Timer {
                    key,
                    value,
                    deadline: Some(deadline),
                    state,
                });
            }
            Op::InsertIncoming(delay) => {
                let delay = Nanos(u64::from(delay));
                let value = self.new_value();
                let key = self.wheel.insert_incoming(delay, value);
                self.incoming.push_back((delay, value, false));
                self.add(Timer {
                    key,
                    value,
                    deadline: None,
                    state: State::Incoming,
                });
            }
            Op::MarkIncoming => {
                self.wheel.mark_incoming();
                self.incoming.iter_mut().for_each(|(_, _, marked)| *marked = true);
            }
            Op::TransferIncoming { from, limit } => {
                let from = self.resolve(from);
                let (now, slack) = (self.wheel.now(), self.slack);
                let deadline_of = |delay: Nanos| rounded(Tick(from.0.saturating_add(delay.0)), now, slack);
                let transferred = self.wheel.transfer_incoming(limit.into(), deadline_of);
                for _ in 0..limit {
                    let Some((delay, value, true)) = self.incoming.front().copied() else {
                        break;
                    };
                    self.incoming.pop_front();
                    let deadline = deadline_of(delay);
                    let state = self.place(deadline, value);
                    let timer = self.timer_of(value);
                    (timer.deadline, timer.state) = (Some(deadline), state);
                }
                assert_eq!(transferred, !self.incoming.iter().any(|(_, _, marked)| *marked));
            }
            Op::Reinsert { timer, deadline } => {
                let Some(index) = self.pick(timer) else {
                    return;
                };
                let deadline = self.deadline(self.resolve(deadline));
                let value = self.new_value();
                let old = self.wheel.reinsert(&self.timers[index].key, deadline, value);
                assert_eq!(old, self.forget(index));
                let state = self.place(deadline, value);
                let timer = &mut self.timers[index];
                (timer.value, timer.deadline, timer.state) = (value, Some(deadline), state);
            }
            Op::BringForward { timer, deadline } => {
                let Some(index) = self.pick(timer) else {
                    return;
                };
                let deadline = self.deadline(self.resolve(deadline));
                let Timer {
                    ref key,
                    value,
                    deadline: old,
                    state,
                } = self.timers[index];
                // An incoming timer has no deadline to compare.
                let Some(old) = old else { return };
                let forward = state != State::Expired && deadline.due() < old.due();
                let place = self.wheel.entries[key.index() as usize].place;
                assert_eq!(self.wheel.bring_forward(key, deadline), forward);
                let stays =
                    self.wheel.entries[key.index() as usize].place == place && place != Place::OVERDUE;
                if forward {
                    self.forget(index);
                    let state = match state {
                        State::Due(_, placed) if stays => self.place_at(deadline.due(), placed, value),
                        _ => self.place(deadline, value),
                    };
                    let timer = &mut self.timers[index];
                    (timer.deadline, timer.state) = (Some(deadline), state);
                }
            }
            Op::Remove { timer } => {
                let Some(index) = self.pick(timer) else {
                    return;
                };
                let pending = self.forget(index);
                assert_eq!(self.wheel.remove(self.timers.swap_remove(index).key), pending);
            }
            Op::GetMut { timer } => {
                let Some(index) = self.pick(timer) else {
                    return;
                };
                let timer = &self.timers[index];
                let pending = (timer.state != State::Expired).then_some(timer.value);
                assert_eq!(self.wheel.get_mut(&timer.key).copied(), pending);
                if let Some(deadline) = timer.deadline {
                    assert_eq!(self.wheel.deadline(&timer.key), deadline.tick);
                    assert_eq!(self.wheel.due(&timer.key), deadline.due());
                }
            }
            Op::Advance { to, limit, calls } => {
                let to = self.resolve(to);
                for _ in 0..=calls {
                    if !self.advance(to, limit.into()).more {
                        break;
                    }
                    self.check();
                }
            }
            Op::CancelAll => {
                let mut cancelled = Vec::new();
                self.wheel.cancel_all(&mut cancelled);
                let mut pending = Vec::new();
                for index in 0..self.timers.len() {
                    if let Some(value) = self.forget(index) {
                        pending.push(value);
                        self.timers[index].deadline.get_or_insert(Tick::MAX.into());
                        self.timers[index].state = State::Expired;
                    }
                }
                cancelled.sort_unstable();
                pending.sort_unstable();
                assert_eq!(cancelled, pending);
            }
        }
    }

    /// Advances the wheel. Whatever the limit, the values that expire must be the next ones due, in the order of the model.
    fn advance(&mut self, to: Tick, limit: usize) -> Advanced {
        let from = self.wheel.now();
        let mut expired = Vec::new();
        let advanced = self.wheel.advance(to, limit, &mut expired);
        let now = self.wheel.now();

        assert_eq!(advanced.expired, expired.len());
        assert!(
            advanced.expired + advanced.cascaded <= limit,
            "{advanced:?} passes the limit of {limit}"
        );
        for value in expired {
            let ((deadline, _), next) = self.due.pop_first().expect("nothing was left to expire");
            assert_eq!(value, next, "expired out of order");
            assert!(deadline <= to.max(from), "expired {deadline:?} at {to:?}");
            self.timer_of(value).state = State::Expired;
        }
        assert!(from <= now && now <= to.max(from), "arrived at {now:?}");
        let next = self.due.keys().next().map(|(deadline, _)| *deadline);
        if advanced.more {
            assert!(
                next.is_none_or(|next| next >= now || now == from || !self.wheel.overdue.is_empty()),
                "passed {next:?} on the way to {now:?}"
            );
        } else {
            assert_eq!(now, to.max(from));
            assert!(
                next.is_none_or(|next| next > now),
                "passed {next:?} on the way to {now:?}"
            );
        }
        self.cascaded += advanced.cascaded;
        advanced
    }

    fn check(&self) {
        self.wheel.assert_consistent();
        assert_eq!(self.wheel.len(), self.due.len() + self.incoming.len());
        self.check_order();
        let (now, next) = (self.wheel.now(), self.wheel.next_deadline());
        match self.due.keys().next() {
            Some((earliest, _)) if *earliest <= now => {
                assert_eq!(next, Some(now), "something is due")
            }
            Some((earliest, _)) => {
                let next = next.expect("something is due");
                assert!(
                    now <= next && next <= *earliest,
                    "at {now:?} the next visit is at {next:?}, not {earliest:?}"
                );
                // With one level, the next bucket may contain only timers of later rounds.
                assert!(now < next || self.wheel.levels.len() == 1);
            }
            None => assert_eq!(next, None),
        }
    }

    /// Checks invariant 8.
    fn check_order(&self) {
        let now = self.wheel.now();
        let mut found = BTreeMap::<Tick, Vec<u64>>::new();
        for (deadline, value) in self.wheel.coarsest_first() {
            found.entry(deadline.max(now)).or_default().push(*value);
        }
        let mut expected = BTreeMap::<Tick, Vec<u64>>::new();
        for ((deadline, _), value) in &self.due {
            expected.entry((*deadline).max(now)).or_default().push(*value);
        }
        assert_eq!(found, expected, "8: the timers of each deadline in their order");
    }

    /// Empties the wheel, half by time and half by hand.
    fn finish(mut self) {
        self.step(Op::TransferIncoming {
            from: When::Now,
            limit: 255,
        });
        self.step(Op::Advance {
            to: When::Max,
            limit: 64,
            calls: 16,
        });
        self.check();
        while !self.timers.is_empty() {
            self.step(Op::Remove { timer: 0 });
        }
        self.check();
        assert!(self.wheel.entries.is_empty());
        let cascades = self.placed * (self.wheel.levels.len() as u64 - 1);
        assert!(
            self.cascaded as u64 <= cascades,
            "more than one cascade for each level and timer"
        );
    }

    fn resolve(&self, when: When) -> Tick {
        let now = self.wheel.now().0;
        match when {
            When::Now => Tick(now),
            When::Past(ticks) => Tick(now.saturating_sub(ticks.into())),
            When::Ahead {
                level,
                buckets,
                aligned,
                skew,
            } => {
                let level = u32::from(level) % (self.wheel.levels.len() as u32 + 2);
                let span = 1_i128 << (level * (self.wheel.ring_bits - 1)).min(64);
                let now = i128::from(now);
                let start = if aligned { now / span * span } else { now };
                let tick = start + i128::from(buckets) * span + i128::from(skew % 3);
                Tick(tick.clamp(0, u64::MAX.into()) as u64)
            }
            When::At(tick) => Tick(tick),
            When::Max => Tick::MAX,
        }
    }

    fn new_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    fn deadline(&self, tick: Tick) -> Deadline {
        rounded(tick, self.wheel.now(), self.slack)
    }

    fn place(&mut self, deadline: Deadline, value: u64) -> State {
        self.placed += 1;
        self.place_at(deadline.due().max(self.wheel.now()), self.placed, value)
    }

    fn place_at(&mut self, due: Tick, placed: u64, value: u64) -> State {
        self.due.insert((due, placed), value);
        State::Due(due, placed)
    }

    fn add(&mut self, timer: Timer) {
        assert!(
            self.timers.iter().all(|other| other.key != timer.key),
            "{:?} names two timers",
            timer.key
        );
        self.timers.push(timer);
    }

    fn pick(&self, timer: u8) -> Option<usize> {
        usize::from(timer).checked_rem(self.timers.len())
    }

    fn timer_of(&mut self, value: u64) -> &mut Timer {
        self.timers
            .iter_mut()
            .find(|timer| timer.value == value)
            .expect("a value of some timer")
    }

    /// Removes a timer from the model's lists. Returns its value if it was pending.
    fn forget(&mut self, index: usize) -> Option<u64> {
        let Timer { value, state, .. } = self.timers[index];
        match state {
            State::Incoming => self.incoming.retain(|(_, other, _)| *other != value),
            State::Due(deadline, placed) => drop(self.due.remove(&(deadline, placed))),
            State::Expired => return None,
        }
        Some(value)
    }
}

/// Returns the deadline of a timer that waits for `tick` from `now` on, after checking how it is rounded.
fn rounded(tick: Tick, now: Tick, slack: u64) -> Deadline {
    let nanosecond = TickDuration::new(Duration::from_nanos(1)).with_slack(Duration::from_nanos(slack));
    let deadline = nanosecond.slack_until(tick, Nanos(now.0));
    let slack = slack.min(tick.0.saturating_sub(now.0) / 100);
    let due = deadline.due().0;
    let unit = 1_u64 << deadline.power;
    assert!(
        tick.0 <= due && due - tick.0 <= slack,
        "{tick:?} at {now:?} becomes {due}"
    );
    assert_eq!((deadline.tick, due % unit), (tick, 0));
    let at_the_end = tick.0 > u64::MAX - (unit << 1).max(slack);
    assert!(
        unit * 2 > slack || at_the_end,
        "{tick:?} at {now:?} could have had more company"
    );
    deadline
}
