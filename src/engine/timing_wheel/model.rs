//! The wheel beside a model, a `BTreeMap` that is too plain to be wrong. It takes any operations in any
//! order. After each of them it checks everything that can be observed from outside, and every invariant
//! inside. tests.rs runs it under proptest, and fuzz/ under libFuzzer.

use std::collections::BTreeMap;

use super::{Key, Tick, TimingWheel, Turn};

/// A tick relative to now, so that small numbers reach every level and every edge.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(tickwheel_fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum When {
    Now,
    Past(u8),
    /// This many buckets of a level ahead of now or, if `aligned`, of the start of the current bucket; off by
    /// one or two.
    Ahead {
        level: u8,
        buckets: u8,
        aligned: bool,
        skew: i8,
    },
    At(u64),
    Max,
}

/// An operation. `timer` picks one of the pending timers.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(tickwheel_fuzzing, derive(arbitrary::Arbitrary))]
pub(crate) enum Op {
    Insert(When),
    BringForward { timer: u8, due: When },
    Replace { timer: u8 },
    Remove { timer: u8 },
    Advance { to: When, limit: u8, calls: u8 },
    CatchUp { to: When },
    ReleaseArena,
}

/// Runs `ops` on a new wheel, and on one whose clock jumps, and then empties them. Panics at the first
/// difference from the model.
pub(crate) fn run(ticks_per_wheel: usize, levels: usize, ops: &[Op]) {
    let wheel = || TimingWheel::new(ticks_per_wheel, levels);
    run_on(wheel(), ops);
    run_on(wheel().for_jumps(), ops);
}

fn run_on(wheel: TimingWheel<u64>, ops: &[Op]) {
    let mut model = Model {
        wheel,
        timers: Vec::new(),
        due: BTreeMap::new(),
        values: 0,
        placed: 0,
        cascaded: 0,
    };
    model.check();
    for op in ops {
        model.step(*op);
        model.check();
    }
    model.finish();
}

struct Model {
    wheel: TimingWheel<u64>,
    /// The pending timers.
    timers: Vec<Timer>,
    /// Their values, in the order in which they must expire. A tick that had passed at insertion counts as
    /// the tick of the insertion. All other ticks are later, and entries that were due at once before became so
    /// at that tick or earlier.
    due: BTreeMap<(Tick, u64), u64>,
    values: u64,
    placed: u64,
    cascaded: usize,
}

struct Timer {
    key: Key,
    value: u64,
    /// As given, past or not.
    due: Tick,
    /// Its place in the model.
    place: (Tick, u64),
}

impl Model {
    fn step(&mut self, op: Op) {
        match op {
            Op::Insert(due) => {
                let (due, value) = (self.resolve(due), self.new_value());
                let key = self.wheel.insert(due, value);
                assert!(
                    self.timers.iter().all(|other| other.key != key),
                    "{key:?} names two timers"
                );
                let place = self.place(due, value);
                self.timers.push(Timer {
                    key,
                    value,
                    due,
                    place,
                });
            }
            Op::BringForward { timer, due } => {
                let Some(index) = self.pick(timer) else { return };
                let due = self.resolve(due);
                let old = &self.timers[index];
                if due >= old.due {
                    return;
                }
                self.wheel.bring_forward(&old.key, due);
                self.due.remove(&old.place);
                let place = self.place(due, old.value);
                let timer = &mut self.timers[index];
                (timer.due, timer.place) = (due, place);
            }
            Op::Replace { timer } => {
                let Some(index) = self.pick(timer) else { return };
                let value = self.new_value();
                let old = &self.timers[index];
                assert_eq!(self.wheel.value(&old.key), &old.value);
                assert_eq!(self.wheel.replace(&old.key, value), old.value);
                self.due.insert(old.place, value);
                self.timers[index].value = value;
            }
            Op::Remove { timer } => {
                let Some(index) = self.pick(timer) else { return };
                let Timer {
                    key, value, place, ..
                } = self.timers.swap_remove(index);
                self.due.remove(&place);
                assert_eq!(self.wheel.remove(key), value);
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
            Op::CatchUp { to } => {
                let (from, to) = (self.wheel.now, self.resolve(to));
                self.wheel.catch_up(to);
                let now = self.wheel.now;
                assert!(from <= now && now <= to.max(from), "arrived at {now:?}");
            }
            Op::ReleaseArena => {
                let released = self.wheel.release_arena(2);
                assert!(released.is_none() || self.timers.is_empty());
            }
        }
    }

    /// Advances the wheel. Whatever the limit, the values that expire must be the next ones due, in the order
    /// of the model.
    fn advance(&mut self, to: Tick, limit: usize) -> Turn {
        let from = self.wheel.now;
        let mut expired = Vec::new();
        let advanced = self.wheel.advance(to, limit, &mut expired);
        let now = self.wheel.now;

        assert_eq!(advanced.expired, expired.len());
        assert!(
            advanced.expired + advanced.cascaded <= limit,
            "{advanced:?} passes the limit of {limit}"
        );
        for value in expired {
            let ((due, _), next) = self.due.pop_first().expect("nothing was left to expire");
            assert_eq!(value, next, "expired out of order");
            assert!(due <= to.max(from), "expired {due:?} at {to:?}");
            self.timers.retain(|timer| timer.value != value);
        }
        assert!(from <= now && now <= to.max(from), "arrived at {now:?}");
        let next = self.due.keys().next().map(|(due, _)| *due);
        if advanced.more {
            assert!(
                next.is_none_or(|next| next >= now || now == from || self.wheel.has_due()),
                "passed {next:?} on the way to {now:?}"
            );
        } else {
            assert_eq!(now, to.max(from));
            assert!(
                next.is_none_or(|next| next > now),
                "passed {next:?} on the way to {now:?}"
            );
        }
        let next_visit = if advanced.more {
            Some(now)
        } else {
            self.wheel.next_visit()
        };
        assert_eq!(advanced.next, next_visit);
        self.cascaded += advanced.cascaded;
        advanced
    }

    fn check(&mut self) {
        self.wheel.assert_consistent();
        assert_eq!(self.wheel.len(), self.due.len());
        self.check_order();
        let (now, next) = (self.wheel.now, self.wheel.next_visit());
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
                assert!(now < next);
                assert!(
                    !self.wheel.dues.is_counting() || next == *earliest,
                    "nothing is due at {next:?}"
                );
            }
            None => assert_eq!(next, None),
        }
    }

    /// Checks invariant 6.
    fn check_order(&self) {
        let now = self.wheel.now;
        let mut found = BTreeMap::<Tick, Vec<u64>>::new();
        for (due, value) in self.wheel.coarsest_first() {
            found.entry(due.max(now)).or_default().push(*value);
        }
        let mut expected = BTreeMap::<Tick, Vec<u64>>::new();
        for ((due, _), value) in &self.due {
            expected.entry((*due).max(now)).or_default().push(*value);
        }
        assert_eq!(found, expected, "6: the timers of each tick in their order");
    }

    /// Empties the wheel, half by time and half by hand.
    fn finish(mut self) {
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
        let cascades = self.placed * (self.wheel.later() as u64 - 1);
        assert!(
            self.cascaded as u64 <= cascades,
            "more than one cascade for each level and timer"
        );
    }

    fn resolve(&self, when: When) -> Tick {
        let now = self.wheel.now.0;
        match when {
            When::Now => Tick(now),
            When::Past(ticks) => Tick(now.saturating_sub(ticks.into())),
            When::Ahead {
                level,
                buckets,
                aligned,
                skew,
            } => {
                let level = u32::from(level) % (self.wheel.later() as u32 + 2);
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

    fn place(&mut self, due: Tick, value: u64) -> (Tick, u64) {
        self.placed += 1;
        let place = (due.max(self.wheel.now), self.placed);
        self.due.insert(place, value);
        place
    }

    fn pick(&self, timer: u8) -> Option<usize> {
        usize::from(timer).checked_rem(self.timers.len())
    }
}
