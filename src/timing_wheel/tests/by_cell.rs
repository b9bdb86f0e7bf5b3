use proptest::prelude::*;

use super::{Tick, TimingWheel};

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Move(usize, u64),
    Take(usize),
    TakeDue { to: u64, times: usize },
    Compact,
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    // Relative to now: near and far, past and to come, equal and different.
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
        3 => (shift(), 0..5_usize).prop_map(|(to, times)| Op::TakeDue { to, times }),
        1 => Just(Op::Compact),
        1 => Just(Op::Clear),
    ]
}

/// What is in the wheel, in order of deadline and then of insertion.
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
    fn agrees_with_a_sorted_list(bits in 1..10_u32, ops in proptest::collection::vec(op(), 1..80)) {
        let mut wheel = TimingWheel::without_rounds(1 << bits);
        let mut model = Model::default();
        let mut values = 0;
        // Deadlines lie on both sides of it.
        let mut now = Tick(1000);
        wheel.take_due(now);
        let tick = |now: Tick, shift: u64| match shift % 5 {
            0 => Tick(now.0.saturating_sub(shift / 5)),
            _ => Tick(now.0.saturating_add(shift / 5)),
        };
        for op in ops {
            match op {
                Op::Insert(shift) => {
                    let deadline = tick(now, shift);
                    values += 1;
                    let cell = wheel.insert_cell(deadline, values);
                    model.insert(deadline, values, cell);
                    wheel.sort_overdue();
                }
                Op::Move(timer, shift) if !model.0.is_empty() => {
                    let (_, value, cell) = model.0.remove(timer % model.0.len());
                    let deadline = tick(now, shift);
                    wheel.move_cell(cell, deadline);
                    model.insert(deadline, value, cell);
                    wheel.sort_overdue();
                }
                Op::Take(timer) if !model.0.is_empty() => {
                    let (deadline, value, cell) = model.0.remove(timer % model.0.len());
                    prop_assert_eq!(wheel.take_cell(cell), Some((deadline, value)));
                }
                Op::TakeDue { to, times } => {
                    let to = Tick(now.0.saturating_add(to));
                    for _ in 0..times {
                        let due = model.0.first().is_some_and(|&(deadline, ..)| deadline <= to);
                        let expected = due.then(|| model.0.remove(0));
                        let taken = wheel.take_due(to);
                        prop_assert_eq!(taken, expected.map(|(deadline, value, _)| (deadline, value)));
                        now = wheel.now();
                    }
                }
                Op::Compact => {
                    wheel.compact(|value, to| {
                        model.0.iter_mut().filter(|timer| timer.1 == *value).for_each(|timer| timer.2 = to);
                    });
                    prop_assert_eq!(wheel.capacity(), model.0.len());
                }
                Op::Clear => {
                    wheel.clear();
                    model.0.clear();
                }
                Op::Move(..) | Op::Take(_) => {}
            }
            wheel.assert_consistent();
            prop_assert_eq!(wheel.len(), model.0.len());
            for &(deadline, value, cell) in &model.0 {
                prop_assert_eq!(wheel.cell(cell), Some((deadline, &value)));
            }
            let first = model.0.first();
            prop_assert_eq!(wheel.first_cell(), first.map(|&(_, _, cell)| cell));
            for looks in [1, 3, usize::MAX] {
                let known = wheel.first(looks);
                prop_assert_eq!(known.is_some(), first.is_some());
                let (Some(known), Some(&(deadline, ..))) = (known, first) else { continue };
                let deadline = deadline.max(wheel.now());
                prop_assert!(known.at_least <= deadline && deadline <= known.at_most);
                prop_assert!(wheel.first_by().is_some_and(|tick| deadline <= tick));
                if looks == usize::MAX {
                    prop_assert_eq!(known.at_least, known.at_most);
                }
            }
        }
    }
}

#[test]
fn what_is_overdue_comes_in_order_of_deadline_once_sorted() {
    let mut wheel = TimingWheel::without_rounds(64);
    assert_eq!(wheel.take_due(Tick(100)), None);
    for deadline in [7, 3, 9, 3] {
        wheel.insert_cell(Tick(deadline), ());
    }
    wheel.sort_overdue();
    let taken: Vec<_> = std::iter::from_fn(|| wheel.take_due(Tick::ZERO)).collect();
    assert_eq!(taken, [3, 3, 7, 9].map(|deadline| (Tick(deadline), ())));
}
