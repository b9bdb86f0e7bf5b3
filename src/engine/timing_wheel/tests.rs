use std::{mem, ptr};

use proptest::{
    collection::{btree_set, vec},
    prelude::*,
};

use super::{
    Entry, Key, Place, Tick, TimingWheel, Turn,
    arena::Arena,
    level::{Bitmap, NIL},
    model::{self, Op, When},
};

const NO_LIMIT: usize = usize::MAX;

/// A wheel whose values are their deadlines, each numbered by the order of insertion.
fn wheel_of(ticks_per_wheel: usize, levels: usize, deadlines: &[u64]) -> TimingWheel<(u64, usize)> {
    let mut wheel = TimingWheel::new(ticks_per_wheel, levels);
    for (number, deadline) in deadlines.iter().enumerate() {
        wheel.insert(Tick(*deadline), (*deadline, number));
    }
    wheel.assert_consistent();
    wheel
}

/// Returns what a turn did, and whether there is more.
fn counts(turn: Turn) -> (usize, usize, bool) {
    (turn.expired, turn.cascaded, turn.more)
}

impl<T> TimingWheel<T> {
    fn expire_until(&mut self, now: u64) -> Vec<T> {
        let mut expired = Vec::new();
        let advanced = self.advance(Tick(now), NO_LIMIT, &mut expired);
        self.assert_consistent();
        assert!(!advanced.more);
        expired
    }

    /// Returns how many timers an `advance` to `now` looks at.
    fn looks_until(&mut self, now: u64) -> usize {
        let mut looks = 0;
        while self.advance(Tick(now), 1, &mut Vec::new()).more {
            looks += 1;
            self.assert_consistent();
        }
        looks + 1
    }
}

impl<T: Copy> TimingWheel<T> {
    /// Calls `ask` while the arena has one entry, far from all that lists link to, so that the wheel has only
    /// heads, bits and counts, and any step along a list would panic.
    fn without_entries(&mut self, ask: impl FnOnce(&mut Self)) {
        let (_, any) = self.entries.iter().next().unwrap();
        let (due, value) = (any.due, any.value);
        let mut elsewhere = Arena::new();
        elsewhere.reserve(self.entries.capacity());
        for _ in 0..=self.entries.capacity() {
            let (prev, next, place) = (NIL, NIL, Place::new(0, 0));
            elsewhere.insert(Entry {
                due,
                value,
                prev,
                next,
                place,
            });
        }
        for index in 0..self.entries.capacity() as u32 {
            elsewhere.remove(index);
        }
        let entries = mem::replace(&mut self.entries, elsewhere);
        ask(self);
        self.entries = entries;
    }
}

// The model.

fn when() -> impl Strategy<Value = When> {
    let ahead =
        (any::<u8>(), 0..10_u8, any::<bool>(), -2..=2_i8).prop_map(|(level, buckets, aligned, skew)| {
            When::Ahead {
                level,
                buckets,
                aligned,
                skew,
            }
        });
    prop_oneof![
        2 => Just(When::Now),
        2 => (1..20_u8).prop_map(When::Past),
        20 => ahead,
        1 => any::<u64>().prop_map(When::At),
        1 => (0..4_u64).prop_map(|before| When::At(u64::MAX - before)),
        1 => Just(When::Max),
    ]
}

fn limit() -> impl Strategy<Value = u8> {
    prop_oneof![0..6_u8, Just(u8::MAX)]
}

fn op() -> impl Strategy<Value = Op> {
    let small_step = (0..5_u8, limit(), 0..3_u8).prop_map(|(buckets, limit, calls)| Op::Advance {
        to: When::Ahead {
            level: 0,
            buckets,
            aligned: false,
            skew: 0,
        },
        limit,
        calls,
    });
    let step = (when(), limit(), 0..20_u8).prop_map(|(to, limit, calls)| Op::Advance { to, limit, calls });
    prop_oneof![
        10 => when().prop_map(Op::Insert),
        3 => (any::<u8>(), when()).prop_map(|(timer, due)| Op::BringForward { timer, due }),
        1 => any::<u8>().prop_map(|timer| Op::Replace { timer }),
        5 => any::<u8>().prop_map(|timer| Op::Remove { timer }),
        6 => small_step,
        4 => step,
        3 => when().prop_map(|to| Op::CatchUp { to }),
        1 => Just(Op::ReleaseArena),
    ]
}

proptest! {
    #[test]
    fn a_small_wheel_does_as_the_model(
        ticks_per_wheel in 2..=8_usize,
        levels in 1..=4_usize,
        ops in vec(op(), 1..120),
    ) {
        model::run(ticks_per_wheel, levels, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn the_default_wheel_does_as_the_model(ops in vec(op(), 1..60)) {
        model::run(512, 4, &ops);
    }
}

// The shape.

#[test]
fn ticks_per_wheel_are_rounded_up_to_a_power_of_two() {
    for (asked, got) in [
        (0, 4),
        (1, 4),
        (2, 4),
        (3, 4),
        (4, 4),
        (5, 8),
        (512, 512),
        (513, 1024),
        (1 << 20, 1 << 20),
    ] {
        let wheel = TimingWheel::<()>::new(asked, 2);
        assert_eq!(wheel.levels[0].len, got, "{asked} ticks per wheel");
    }
    for asked in 0..=2 {
        let wheel = TimingWheel::<()>::new(asked, 1);
        assert_eq!(wheel.levels[0].len, 2, "{asked} ticks per wheel, on one level");
    }
}

#[test]
fn levels_that_no_deadline_could_reach_are_left_out() {
    for (ticks_per_wheel, asked, got) in [(512, 0, 1), (512, 8, 8), (1 << 20, 8, 4), (2, 8, 8), (2, 100, 63)]
    {
        let mut wheel = TimingWheel::new(ticks_per_wheel, asked);
        assert_eq!(wheel.later(), got, "{asked} levels of {ticks_per_wheel}");
        wheel.insert(Tick::MAX, ());
        wheel.insert(Tick(u64::MAX - 1), ());
        wheel.assert_consistent();
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_cell_takes_at_most_40_bytes() {
    // slab's own enum is private, but a copy of it has the same layout, as the second half of this test
    // shows.
    #[expect(dead_code, reason = "only its size matters")]
    enum Cell<T> {
        Vacant(usize),
        Occupied(T),
    }
    // Two words, one of which is never null: as large as a waker, which this module does not know.
    type Value = &'static str;
    let cell = size_of::<Cell<Entry<Value>>>();
    assert!(cell <= 40, "{cell} bytes");

    // The distance between two neighbours is the size of slab's own enum.
    let mut wheel = TimingWheel::<Value>::new(2, 1);
    wheel.insert(Tick(1), "first");
    wheel.insert(Tick(1), "second");
    let [first, second] = [0, 1].map(|index| ptr::from_ref(&wheel.entries[index]).addr());
    assert_eq!(second - first, cell);
}

#[test]
fn the_worked_example_of_the_essay() {
    let mut wheel = TimingWheel::new(8, 2);
    wheel.expire_until(6);
    for (deadline, name) in [(7, "7"), (9, "9"), (21, "21"), (21, "21'"), (40, "40")] {
        wheel.insert(Tick(deadline), name);
    }
    for (tick, names, cascaded) in [
        (7, &["7"][..], 0),
        (9, &["9"], 0),
        (18, &[], 2),
        (21, &["21", "21'"], 0),
        (24, &[], 0),
        (38, &[], 1),
        (40, &["40"], 0),
    ] {
        assert_eq!(wheel.next_visit(), Some(Tick(tick)));
        let mut expired = Vec::new();
        let advanced = wheel.advance(Tick(tick), NO_LIMIT, &mut expired);
        wheel.assert_consistent();
        assert_eq!(expired, names);
        assert_eq!(counts(advanced), (names.len(), cascaded, false));
    }
    assert_eq!(wheel.next_visit(), None);
}

proptest! {
    #[test]
    fn the_next_used_bucket_is_found_across_words_and_their_summaries(
        members in btree_set(bucket(), 1..20),
        removed in vec(any::<prop::sample::Index>(), 0..20),
        from in vec(bucket(), 1..20),
    ) {
        let mut used = Bitmap::new(LARGEST);
        let mut left = members.clone();
        members.iter().for_each(|member| used.insert(*member));
        let members = Vec::from_iter(members);
        for member in removed.iter().map(|index| index.get(&members)) {
            used.remove(*member);
            left.remove(member);
        }
        prop_assert_eq!(used.next(0), left.first().copied());
        for from in from.into_iter().chain(members) {
            prop_assert_eq!(used.next(from), left.range(from..).next().copied());
        }
    }
}

const LARGEST: usize = 1 << 20;

/// A bucket, often at the edge of a word of the bitmap or of its summary.
fn bucket() -> impl Strategy<Value = usize> {
    let edge = (0..=LARGEST / 64, prop_oneof![Just(64), Just(4096)], 0..3_usize)
        .prop_map(|(word, bits, off)| (word * bits % LARGEST + off).saturating_sub(1) % LARGEST);
    prop_oneof![edge, 0..200_usize, 0..LARGEST]
}

// The next deadline.

#[test]
fn the_next_visit_is_found_without_a_look_at_any_entry() {
    let later_rounds: Vec<u64> = (1..1_000).map(|round| 5 + 8 * round).collect();
    let one_coarse_bucket: Vec<u64> = (64..80).chain([79, 70, 64]).collect();
    for (levels, deadlines, next) in [
        (1, later_rounds, 1),
        (4, one_coarse_bucket, 56),
        (2, vec![500, 99], 4),
    ] {
        let mut wheel = wheel_of(8, levels, &deadlines);
        wheel.without_entries(|wheel| assert_eq!(wheel.next_visit(), Some(Tick(next))));
        assert_eq!(wheel.len(), deadlines.len());
    }
}

/// A paused clock jumps to the earliest timer. Of 10,240 timers in one bucket, each is cancelled
/// while it is the earliest, one at each tick.
#[test]
fn the_earliest_timer_is_found_without_a_look_at_the_others() {
    let (begin, crowd) = (3 * 65_536, 10_240);
    let mut wheel = TimingWheel::new(512, 4).for_jumps();
    let keys = (0..crowd).map(|timer| wheel.insert(Tick(begin + timer), timer));
    let mut keys = Vec::from_iter(keys).into_iter();
    assert_eq!(wheel.next_visit(), Some(Tick(begin)));
    for timer in 0..crowd {
        if timer % 100 == 0 {
            wheel.without_entries(|wheel| assert_eq!(wheel.next_visit(), Some(Tick(begin + timer))));
        }
        wheel.advance(Tick(timer + 1), NO_LIMIT, &mut Vec::new());
        wheel.remove(keys.next().unwrap());
    }
    assert_eq!(wheel.next_visit(), None);
}

// Jumps.

#[test]
fn a_jump_costs_the_timers_on_its_way_and_no_empty_tick() {
    let far = u64::MAX / 2;
    for jump in [1, 1_000_000, far, u64::MAX] {
        let mut wheel = TimingWheel::<()>::new(512, 4);
        let advanced = wheel.advance(Tick(jump), 0, &mut Vec::new());
        assert_eq!(
            (advanced, wheel.now),
            (Turn::default(), Tick(jump)),
            "an empty wheel has nothing to look at"
        );
    }
    for (levels, deadline) in [(4, 1_000_000), (4, (1 << 36) - 1), (8, far), (8, u64::MAX)] {
        let mut wheel = wheel_of(512, levels, &[deadline]);
        assert!(
            wheel.looks_until(deadline - 1) <= levels,
            "a look at each coarse level, and one at the ring of later rounds"
        );
        assert_eq!(wheel.looks_until(deadline), 1);
        assert_eq!(wheel.len(), 0);
    }
    let mut wheel = wheel_of(512, 4, &[1_000_000, 1 << 35]);
    assert!(wheel.looks_until((1 << 35) + 5) <= 8);
    assert_eq!((wheel.len(), wheel.now), (0, Tick((1 << 35) + 5)));
}

#[test]
fn the_last_tick_of_all_is_a_deadline_like_any_other() {
    for (ticks_per_wheel, levels) in [(2, 1), (2, 64), (4, 3), (512, 4), (512, 8), (1 << 20, 4)] {
        let mut wheel = TimingWheel::new(ticks_per_wheel, levels);
        wheel.advance(Tick(u64::MAX - 3), NO_LIMIT, &mut Vec::new());
        for before in [0, 2, 1] {
            wheel.insert(Tick(u64::MAX - before), before);
        }
        assert_eq!(wheel.expire_until(u64::MAX - 1), [2, 1]);
        assert_eq!(wheel.expire_until(u64::MAX), [0]);
        wheel.insert(Tick::MAX, 7);
        assert_eq!(wheel.next_visit(), Some(Tick::MAX));
        assert_eq!(wheel.expire_until(u64::MAX), [7]);
    }
}

#[test]
fn one_level_works_in_rounds() {
    let mut wheel = wheel_of(8, 1, &[3 + 2 * 8, 3, 3 + 8]);
    // Half a round before each timer is due, its bucket of later rounds is looked at, as a whole.
    for (tick, looks, left) in [(3, 1, 2), (7, 1, 2), (11, 1, 1), (15, 1, 1), (19, 1, 0)] {
        assert_eq!(wheel.next_visit(), Some(Tick(tick)));
        assert_eq!(wheel.looks_until(tick), looks, "{tick}");
        assert_eq!(wheel.len(), left);
    }
    let advanced = wheel_of(8, 1, &[3 + 2 * 8]).advance(Tick(19), NO_LIMIT, &mut Vec::new());
    assert_eq!(advanced.cascaded, 0, "a timer of a later round stays where it is");
}

/// The timers are a day apart. Advancing round by round, the hand would pass 43 million buckets for each of
/// them.
#[test]
fn a_jump_over_many_rounds_costs_no_more_than_its_timers() {
    let day = 86_400_000;
    for (ticks_per_wheel, levels) in [(2, 1), (4, 2)] {
        let deadlines: Vec<u64> = (1..500).rev().flat_map(|days| [days * day; 2]).collect();
        let mut wheel = wheel_of(ticks_per_wheel, levels, &deadlines);
        let looks = wheel.looks_until(400 * day);
        // Each of the 800 comes within reach, cascades and expires.
        assert!(looks <= 3 * 800, "{looks} looks");
        assert_eq!((wheel.len(), wheel.now), (198, Tick(400 * day)));
        let expired = wheel.expire_until(u64::MAX);
        assert!(expired.is_sorted(), "{levels} levels: {expired:?}");
        assert_eq!(expired.len(), 198);
    }
}

/// One of the timers was to be spread when the clock jumped, and another had been inserted after it.
#[test]
fn a_jump_over_many_rounds_keeps_the_order_within_a_tick() {
    let mut wheel = wheel_of(4, 2, &[7, 7]);
    assert!(
        wheel.advance(Tick(4), 0, &mut Vec::new()).more,
        "the limit allows no look"
    );
    wheel.insert(Tick(7), (7, 2));
    assert!(wheel.levels[..2].iter().all(|level| level.used.next(0).is_some()));
    assert_eq!(wheel.expire_until(1_000), [(7, 0), (7, 1), (7, 2)]);
}

// Ahead of time.

/// A driver that visits at every tick, and takes as many timers as the limit allows.
fn tick_on<T>(wheel: &mut TimingWheel<T>, now: u64, expired: &mut Vec<T>) -> usize {
    let mut cascaded = 0;
    loop {
        let before = expired.len();
        let advanced = wheel.advance(Tick(now), 256, expired);
        cascaded += advanced.cascaded;
        assert!(
            advanced.cascaded == 0 || wheel.next_visit().is_none_or(|next| next.0 > now),
            "due timers come first"
        );
        assert_eq!(advanced.expired, expired.len() - before);
        if !advanced.more {
            return cascaded;
        }
    }
}

/// 100,000 timers are too many for half of the time in small steps, and few enough for all of it.
#[test]
fn a_bucket_is_spread_in_steps_before_it_begins_and_no_due_timer_waits_for_that() {
    let (begin, span, crowd) = (1024, 256, 100_000_u64);
    let mut wheel = TimingWheel::new(512, 4);
    // The deadlines are in no order, and the timers of a tick are spread over the insertion order.
    let deadline = |timer| begin + (timer * 7919) % span;
    for timer in 0..crowd {
        wheel.insert(Tick(deadline(timer)), (deadline(timer), timer));
    }
    // One timer for each tick before them.
    for tick in 1..begin {
        wheel.insert(Tick(tick), (tick, crowd));
    }
    assert_eq!(wheel.next_visit(), Some(Tick(1)));
    let mut steps = Vec::new();
    for tick in 1..begin {
        let mut expired = Vec::new();
        steps.push(tick_on(&mut wheel, tick, &mut expired));
        assert_eq!(expired, [(tick, crowd)]);
    }
    let steps = steps.split_off((begin - span) as usize - 1);
    assert_eq!(steps.iter().sum::<usize>(), crowd as usize);
    assert!(steps.iter().all(|step| *step <= 1_600), "{steps:?}");
    wheel.assert_consistent();
    let mut expired = Vec::new();
    for tick in begin..begin + span {
        assert_eq!(tick_on(&mut wheel, tick, &mut expired), 0, "all had been spread");
    }
    assert_eq!(expired.len(), crowd as usize);
    assert!(expired.is_sorted(), "within a tick, first in, first out");
}

/// The driver's runtime is busy.
#[test]
fn a_driver_that_comes_at_every_fifth_tick_spreads_a_bucket_in_time() {
    let (begin, crowd) = (1024, 100_000_u64);
    let mut wheel = TimingWheel::new(512, 4);
    for timer in 0..crowd {
        wheel.insert(Tick(begin + timer % 256), timer);
    }
    let steps = (0..begin)
        .step_by(5)
        .map(|tick| tick_on(&mut wheel, tick, &mut Vec::new()));
    let steps: Vec<usize> = steps.collect();
    assert_eq!(steps.iter().sum::<usize>(), crowd as usize);
    assert!(steps.iter().all(|step| *step <= 8_000), "{steps:?}");
    let mut expired = Vec::new();
    assert_eq!(wheel.advance(Tick(begin), 1_000, &mut expired).cascaded, 0);
    assert!(expired.into_iter().eq((0..crowd).step_by(256)));
}

/// The driver runs when the wheel requests it: the first time it makes up for eight steps, because it has not
/// run for long, and then it makes one step in each tick. There is no hurry, because the bucket is a minute
/// long.
#[test]
fn a_minute_long_bucket_takes_as_many_visits_as_there_are_steps() {
    let (begin, crowd) = (3 * 65_536, 20_000);
    let mut wheel = TimingWheel::new(512, 4);
    for timer in 0..crowd {
        wheel.insert(Tick(begin + timer * 3), timer);
    }
    let mut visits = 0;
    while let Some(Tick(next)) = wheel.next_visit().filter(|next| next.0 < begin - 1_000) {
        let mut expired = Vec::new();
        let step = if visits == 0 { 8 * 256 } else { 256 };
        assert!(tick_on(&mut wheel, next, &mut expired) <= step);
        assert!(expired.is_empty());
        visits += 1;
    }
    wheel.assert_consistent();
    assert_eq!(visits, 1 + (crowd - 8 * 256).div_ceil(256));
    assert!(wheel.levels[2].used.next(0).is_none());
}

/// For 140 s nobody has moved the hand. Then many timers are started, for 30 s or all for one bucket, and the
/// driver comes when they ask for it, and then at each tick.
#[test]
fn nothing_cascades_before_the_first_due_timer_after_some_quiet() {
    let (now, crowd) = (140_000, 100_000);
    for (far, span) in [(None, 30_000), (Some(now + 3_600_000), 30_000), (None, 100)] {
        let mut wheel = TimingWheel::new(512, 4);
        wheel.insert(Tick(1), 0);
        assert_eq!(wheel.expire_until(1), [0]);
        if let Some(due) = far {
            wheel.insert(Tick(due), due);
        }
        let mut visit = Tick::MAX;
        for timer in 0..crowd {
            if wheel.stale_at() <= Tick(now) {
                wheel.catch_up(Tick(now));
                wheel.assert_consistent();
            }
            let due = now + 2_000 + timer * 7919 % span;
            wheel.insert(Tick(due), due);
            visit = visit.min(wheel.visit_before(Tick(due)).unwrap_or(Tick(due)));
        }
        let mut expired = Vec::new();
        for tick in visit.0..now + 2_000 {
            tick_on(&mut wheel, tick, &mut expired);
            assert!(expired.is_empty());
        }
        let turn = wheel.advance(Tick(now + 2_000), 256, &mut expired);
        assert_eq!(turn.cascaded, 0, "moved before the first timer expired");
        assert_eq!(expired[0], now + 2_000);
    }
}

#[test]
fn a_hand_that_catches_up_passes_nothing_that_has_to_be_done() {
    for (levels, deadline, stops_at) in [(2, 6, 5), (2, 30, 27), (2, 40, 30), (1, 20, 19), (2, 500, 30)] {
        let mut wheel = wheel_of(8, levels, &[deadline]);
        wheel.catch_up(Tick(30));
        wheel.assert_consistent();
        assert_eq!(wheel.now, Tick(stops_at), "{levels} levels");
        wheel.catch_up(Tick(2));
        assert_eq!(wheel.now, Tick(stops_at), "the hand never goes back");
        assert_eq!(wheel.expire_until(deadline), [(deadline, 0)]);
    }
}

/// No visit came while there was time to spread the bucket. The timers in the bucket are handled before those
/// that are due when it begins, and after those that are due earlier.
#[test]
fn a_late_driver_spreads_what_is_due_in_between() {
    let mut wheel = wheel_of(8, 2, &[12, 12, 15, 13, 20]);
    let young = wheel.advance(Tick(9), NO_LIMIT, &mut Vec::new());
    assert_eq!(young.cascaded, 4, "12 to 15 are in the next bucket");
    let mut wheel = wheel_of(8, 2, &[12, 12, 15, 13, 20, 7]);
    wheel.advance(Tick(3), NO_LIMIT, &mut Vec::new());
    let mut expired = Vec::new();
    let advanced = wheel.advance(Tick(14), 4, &mut expired);
    assert_eq!((advanced.expired, advanced.cascaded, advanced.more), (1, 3, true));
    assert_eq!((wheel.now, expired.len()), (Tick(11), 1));
    wheel.assert_consistent();
    wheel.insert(Tick(12), (12, 9));
    expired.extend(wheel.expire_until(14));
    assert_eq!(expired, [(7, 5), (12, 0), (12, 1), (12, 9), (13, 3)]);
    assert_eq!(wheel.len(), 2);
}

#[test]
fn a_timer_that_goes_while_its_bucket_is_spread_takes_no_other_along() {
    for gone in 0..6 {
        let mut wheel = TimingWheel::new(4, 2);
        // Two timers of each round in bucket [4..5] of the top level, which has 4 buckets.
        let mut keys: Vec<_> = [4, 12, 5, 13, 4, 12]
            .map(|deadline| wheel.insert(Tick(deadline), deadline))
            .into();
        wheel.advance(Tick(2), 3, &mut Vec::new());
        wheel.assert_consistent();
        let deadline = wheel.remove(keys.remove(gone));
        wheel.assert_consistent();
        let mut left = vec![4, 4, 5, 12, 12, 13];
        left.remove(left.iter().position(|other| *other == deadline).unwrap());
        assert_eq!(wheel.expire_until(20), left);
    }
}

// Order.

#[test]
fn a_timer_that_is_brought_forward_within_its_bucket_goes_behind_those_of_its_tick() {
    let mut wheel = TimingWheel::new(8, 2);
    let [moved, _] =
        [("moved", 15), ("stays", 13)].map(|(name, deadline)| wheel.insert(Tick(deadline), name));
    let place = wheel.entries[moved.index()].place;
    wheel.bring_forward(&moved, Tick(13));
    wheel.assert_consistent();
    assert_eq!(wheel.entries[moved.index()].place, place);
    assert_eq!(wheel.expire_until(12), [""; 0]);
    assert_eq!(wheel.expire_until(13), ["stays", "moved"]);
}

#[test]
fn a_timer_of_a_later_round_that_is_brought_forward_to_now_is_not_missed() {
    let mut wheel = TimingWheel::new(4, 1);
    let [later, ..] =
        [("later", 6), ("one", 2), ("two", 2)].map(|(name, deadline)| wheel.insert(Tick(deadline), name));
    let mut expired = Vec::new();
    assert!(wheel.advance(Tick(2), 1, &mut expired).more);
    wheel.bring_forward(&later, Tick(2));
    wheel.assert_consistent();
    expired.extend(wheel.expire_until(2));
    assert_eq!(expired, ["one", "two", "later"]);
}

// The limit.

#[test]
fn the_limit_bounds_one_call_and_more_tells_that_it_did() {
    let mut wheel = wheel_of(4, 2, &[2, 2, 2, 5, 6]);
    let mut expired = Vec::new();
    let calls = [0, 2, 2, 1].map(|limit| {
        let turn = wheel.advance(Tick(6), limit, &mut expired);
        wheel.assert_consistent();
        turn
    });
    assert_eq!(
        calls.map(counts),
        [(0, 0, true), (2, 0, true), (1, 1, true), (1, 0, true)]
    );
    assert_eq!(wheel.now, Tick(3), "it moves on to spread, and at the end");
    assert_eq!(counts(wheel.advance(Tick(6), 2, &mut expired)), (1, 1, false));
    assert_eq!(expired, [(2, 0), (2, 1), (2, 2), (5, 3), (6, 4)]);
}

// Keys and memory.

/// An entry of the first piece stays where it is while 100,000 others come, and pieces go back.
#[test]
fn a_growing_arena_moves_no_entry() {
    let mut wheel = TimingWheel::new(512, 4);
    let first = wheel.insert(Tick(1), 0);
    let address = |wheel: &TimingWheel<u64>| ptr::from_ref(&wheel.entries[first.index()]).addr();
    let before = address(&wheel);
    let others = Vec::from_iter((1..=100_000).map(|timer| wheel.insert(Tick(timer), timer)));
    assert_eq!(address(&wheel), before);
    let cells = 100_001_usize.next_multiple_of(1024);
    assert_eq!(wheel.arena_bytes(), cells * TimingWheel::<u64>::CELL);
    for other in others {
        wheel.remove(other);
    }
    assert_eq!(wheel.remove(first), 0);
    let released = wheel.release_arena(1024).expect("it is empty");
    assert_eq!(released.len(), cells / 1024 - 1);
    assert_eq!(wheel.cells(), 1024);
}

#[test]
fn a_free_cell_is_used_before_the_arena_grows() {
    let mut wheel = TimingWheel::new(512, 4);
    let mut keys = Vec::from_iter((0..3 * 1024).map(|timer| wheel.insert(Tick(1 + timer), timer)));
    for gone in [2_500, 1_500, 1_200, 500, 7] {
        wheel.remove(keys.swap_remove(gone));
    }
    assert_eq!(wheel.cells(), 3 * 1024);
    for timer in 0..5 {
        keys.push(wheel.insert(Tick(5_000 + timer), timer));
        wheel.assert_consistent();
    }
    assert_eq!(wheel.cells(), 3 * 1024, "five cells were free");
    keys.push(wheel.insert(Tick(6_000), 6));
    assert_eq!(wheel.cells(), 4 * 1024);
}

#[test]
fn the_memory_of_an_emptied_wheel_goes_back() {
    let mut wheel = TimingWheel::new(512, 4);
    let keys: Vec<Key> = (0..10_000)
        .map(|deadline| wheel.insert(Tick(deadline), deadline))
        .collect();
    assert_eq!(wheel.expire_until(5_000).len(), 5_001);
    assert!(wheel.release_arena(1_000).is_none(), "half of them are left");
    for key in keys.into_iter().skip(5_001) {
        wheel.remove(key);
    }
    assert!(wheel.entries.capacity() >= 10_000);
    assert!(wheel.release_arena(1_000).is_some());
    assert!(wheel.entries.capacity() < 2_000);
    assert!(
        wheel.release_arena(1_000).is_none(),
        "nothing is left to give back"
    );
    wheel.insert(Tick(20_001), 1);
    assert_eq!(wheel.expire_until(20_001), [1]);
}

#[test]
fn an_arena_given_back_in_the_middle_of_a_visit_leaves_nothing_dangling() {
    let mut wheel = TimingWheel::new(4, 2);
    let keys = [4, 4, 6].map(|deadline| wheel.insert(Tick(deadline), deadline));
    let mut expired = Vec::new();
    assert!(wheel.advance(Tick(4), 3, &mut expired).more);
    assert_eq!(expired, [4]);
    for key in keys.into_iter().skip(1) {
        wheel.remove(key);
    }
    assert!(wheel.release_arena(0).is_some());
    wheel.assert_consistent();
    for deadline in [4, 6, 5] {
        wheel.insert(Tick(deadline), deadline);
        wheel.assert_consistent();
    }
    assert_eq!(wheel.expire_until(6), [4, 5, 6]);
}

#[test]
fn everything_can_be_abandoned_at_once() {
    let wheel = wheel_of(4, 2, &[0, 1, 7, 500, u64::MAX]);
    let mut values: Vec<_> = wheel.into_values().map(|(deadline, _)| deadline).collect();
    values.sort_unstable();
    assert_eq!(values, [0, 1, 7, 500, u64::MAX]);
}

#[test]
fn a_wheel_that_lags_by_many_rounds_goes_to_its_first_deadline_at_once() {
    // A day of milliseconds, in rounds of two. Walking through all of them would take seconds.
    let day = 86_400_000;
    let mut wheel = TimingWheel::new(2, 1);
    wheel.insert(Tick(day + 1), "near");
    wheel.insert(Tick(day + 4), "next");
    wheel.insert(Tick(7 * day), "far");
    let mut expired = Vec::new();
    let advanced = wheel.advance(Tick(day), 8, &mut expired);
    assert!(!advanced.more, "it looked at more than eight timers");
    assert_eq!((wheel.now, expired.len()), (Tick(day), 0));
    wheel.assert_consistent();
    assert_eq!(wheel.expire_until(day + 4), ["near", "next"]);
    assert_eq!(wheel.expire_until(7 * day), ["far"]);
}
