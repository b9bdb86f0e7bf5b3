use proptest::prelude::*;

use super::{Agenda, Bucket, NIL, Place, SHORT, Tick};

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Move(usize, u64),
    Take(usize),
    /// Inserts as many values in no order, all overdue or all far enough ahead to share a bucket.
    Crowd {
        values: u64,
        ahead: bool,
    },
    TakeDue {
        to: u64,
        times: usize,
    },
    Compact,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    // Relative to now: near and far, past and future, equal and different.
    let shift = || {
        prop_oneof![
            0..4_u64,
            0..300_u64,
            any::<u32>().prop_map(u64::from),
            any::<u64>()
        ]
    };
    prop_oneof![
        6 => shift().prop_map(Op::Insert),
        2 => (any::<usize>(), shift()).prop_map(|(timer, to)| Op::Move(timer, to)),
        2 => any::<usize>().prop_map(Op::Take),
        1 => (0..3 * SHORT as u64, any::<bool>()).prop_map(|(values, ahead)| Op::Crowd { values, ahead }),
        3 => (shift(), 0..5_usize).prop_map(|(to, times)| Op::TakeDue { to, times }),
        1 => Just(Op::Compact),
        1 => Just(Op::Clear),
    ]
}

/// The contents of the agenda, in order of deadline and then of insertion.
#[derive(Default)]
struct Model(Vec<(Tick, u64, u32)>);

impl Model {
    fn insert(&mut self, deadline: Tick, value: u64, cell: u32) {
        let at = self.0.partition_point(|&(other, ..)| other <= deadline);
        self.0.insert(at, (deadline, value, cell));
    }
}

proptest! {
    #[test]
    fn agrees_with_a_sorted_list(ops in proptest::collection::vec(op(), 1..80)) {
        let mut agenda = Agenda::new(Tick::ZERO);
        let mut model = Model::default();
        let mut values = 0;
        // Deadlines lie on both sides of it.
        let mut now = Tick(1000);
        agenda.take_due(now);
        let tick = |now: Tick, shift: u64| match shift % 5 {
            0 => Tick(now.0.saturating_sub(shift / 5)),
            _ => Tick(now.0.saturating_add(shift / 5)),
        };
        for op in ops {
            match op {
                Op::Insert(shift) => {
                    let deadline = tick(now, shift);
                    values += 1;
                    let cell = agenda.insert(deadline, values);
                    model.insert(deadline, values, cell);
                }
                Op::Crowd { values: crowd, ahead } => {
                    for nth in 0..crowd {
                        let by = nth * 7919 % 101;
                        let deadline = match ahead {
                            true => Tick(now.0.saturating_add(100_000 + by)),
                            false => Tick(now.0.saturating_sub(by)),
                        };
                        values += 1;
                        let cell = agenda.insert(deadline, values);
                        model.insert(deadline, values, cell);
                    }
                }
                Op::Move(timer, shift) if !model.0.is_empty() => {
                    let (_, value, cell) = model.0.remove(timer % model.0.len());
                    let deadline = tick(now, shift);
                    agenda.reset(cell, deadline);
                    model.insert(deadline, value, cell);
                }
                Op::Take(timer) if !model.0.is_empty() => {
                    let (deadline, value, cell) = model.0.remove(timer % model.0.len());
                    prop_assert_eq!(agenda.remove(cell), Some((deadline, value)));
                }
                Op::TakeDue { to, times } => {
                    let to = Tick(now.0.saturating_add(to));
                    for _ in 0..times {
                        let due = model.0.first().is_some_and(|&(deadline, ..)| deadline <= to);
                        let expected = due.then(|| model.0.remove(0));
                        let taken = agenda.take_due(to);
                        prop_assert_eq!(taken, expected.map(|(deadline, value, _)| (deadline, value)));
                    }
                    now = to;
                }
                Op::Compact => {
                    agenda.compact(|value, to| {
                        model.0.iter_mut().filter(|timer| timer.1 == *value).for_each(|timer| timer.2 = to);
                    });
                    prop_assert_eq!(agenda.capacity(), model.0.len());
                }
                Op::Clear => {
                    agenda.clear();
                    model.0.clear();
                }
                Op::Move(..) | Op::Take(_) => {}
            }
            agenda.assert_consistent();
            prop_assert_eq!(agenda.len(), model.0.len());
            for &(deadline, value, cell) in &model.0 {
                prop_assert_eq!(agenda.get(cell), Some((deadline, &value)));
            }
            let first = model.0.first();
            prop_assert_eq!(agenda.first_cell(), first.map(|&(_, _, cell)| cell));
            let bounds = agenda.first();
            prop_assert_eq!(bounds.is_some(), first.is_some());
            let (Some(bounds), Some(&(deadline, ..))) = (bounds, first) else { continue };
            prop_assert!(bounds.at_least <= deadline && deadline <= bounds.at_most);
            prop_assert!(bounds.at_least == bounds.at_most || model.0.len() > SHORT);
        }
    }
}

#[test]
fn values_that_were_overdue_when_they_came_are_taken_in_order_of_deadline() {
    let mut agenda = Agenda::new(Tick::ZERO);
    assert_eq!(agenda.take_due(Tick(100)), None);
    for deadline in [7, 3, 9, 3] {
        agenda.insert(Tick(deadline), ());
    }
    let taken: Vec<_> = std::iter::from_fn(|| agenda.take_due(Tick::ZERO)).collect();
    assert_eq!(taken, [3, 3, 7, 9].map(|deadline| (Tick(deadline), ())));
}

/// The same deadline is inserted as many times as the ring is long, into a bucket too long to be sorted at once.
#[test]
fn values_of_one_deadline_come_in_order_of_insertion_across_cascades() {
    let mut agenda = Agenda::new(Tick::ZERO);
    let deadline = Tick(70_000);
    for now in 0..300 {
        assert_eq!(agenda.take_due(Tick(now * 233)), None);
        agenda.insert(deadline, now);
        agenda.assert_consistent();
    }
    let taken: Vec<_> = std::iter::from_fn(|| agenda.take_due(deadline)).collect();
    assert!(taken.into_iter().eq((0..300).map(|value| (deadline, value))));
}

impl<T> Agenda<T> {
    /// Each value is in one list, which is that of its deadline. Lists are linked both ways, and the bits tell which buckets are
    /// in use.
    fn assert_consistent(&self) {
        let mut listed = 0;
        for (&tick, &list) in &self.overdue {
            let found = self.assert_linked(list, |deadline| {
                (deadline == tick && tick <= self.now).then_some(Place::OVERDUE)
            });
            assert_ne!(found, 0, "an empty list of {tick:?}");
            listed += found;
        }
        for level in &self.levels {
            for (at, bucket) in level.buckets.iter().enumerate() {
                let found = self.assert_linked(*bucket, |deadline| {
                    // The index of the highest byte in which the deadline differs from now.
                    let level = (deadline.0 ^ self.now.0).checked_ilog2()? / 8;
                    (deadline > self.now).then(|| self.levels[level as usize].place(deadline))
                });
                assert_eq!(level.used.contains(at), found > 0);
                listed += found;
            }
        }
        assert_eq!(listed, self.len());
    }

    fn assert_linked(&self, list: Bucket, place: impl Fn(Tick) -> Option<Place>) -> usize {
        let (mut prev, mut cell, mut count) = (NIL, list.head, 0);
        while cell != NIL {
            let entry = &self.entries[cell as usize];
            assert_eq!(entry.prev, prev);
            assert_eq!(
                Some(entry.place),
                place(entry.deadline()),
                "{:?}",
                entry.deadline()
            );
            (prev, cell, count) = (cell, entry.next, count + 1);
        }
        assert_eq!(list.tail, prev);
        count
    }
}
