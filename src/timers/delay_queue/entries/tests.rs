use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Reset(usize, u64),
    Remove(usize),
    TakeFirst,
    Compact,
    Clear,
}

/// There are so few different deadlines that many are equal.
fn op() -> impl Strategy<Value = Op> {
    let deadline = || 0..50_u64;
    prop_oneof![
        6 => deadline().prop_map(Op::Insert),
        6 => (any::<usize>(), deadline()).prop_map(|(entry, to)| Op::Reset(entry, to)),
        2 => any::<usize>().prop_map(Op::Remove),
        3 => Just(Op::TakeFirst),
        1 => Just(Op::Compact),
        1 => Just(Op::Clear),
    ]
}

/// The contents of the queue, in order of deadline and then of insertion.
#[derive(Default)]
struct Model(Vec<(Instant, u64, Key)>);

impl Model {
    fn insert(&mut self, deadline: Instant, value: u64, key: Key) {
        let at = self.0.partition_point(|&(other, ..)| other <= deadline);
        self.0.insert(at, (deadline, value, key));
    }
}

fn parts(expired: Expired<u64>) -> (Instant, u64, Key) {
    (expired.deadline, expired.value, expired.key)
}

proptest! {
    #[test]
    fn agrees_with_a_sorted_list(ops in proptest::collection::vec(op(), 1..200)) {
        let start = Instant::now();
        let instant = |millis| start + Duration::from_millis(millis);
        let mut entries = Entries::new();
        let mut model = Model::default();
        for (value, op) in (0..).zip(ops) {
            match op {
                Op::Insert(deadline) => {
                    let key = entries.insert(value, instant(deadline));
                    model.insert(instant(deadline), value, key);
                }
                Op::Reset(entry, to) if !model.0.is_empty() => {
                    let (_, value, key) = model.0.remove(entry % model.0.len());
                    prop_assert!(entries.reset(&key, instant(to)).is_some());
                    model.insert(instant(to), value, key);
                }
                Op::Remove(entry) if !model.0.is_empty() => {
                    let removed = model.0.remove(entry % model.0.len());
                    prop_assert_eq!(entries.remove(&removed.2).map(parts), Some(removed));
                    prop_assert!(entries.remove(&removed.2).is_none());
                }
                Op::TakeFirst => {
                    let first = (!model.0.is_empty()).then(|| model.0.remove(0));
                    prop_assert_eq!(entries.take_first().map(parts), first);
                }
                Op::Compact => {
                    entries.compact();
                    prop_assert_eq!(entries.capacity(), model.0.len());
                }
                Op::Clear => {
                    entries.clear();
                    model.0.clear();
                }
                Op::Reset(..) | Op::Remove(_) => {}
            }
            prop_assert_eq!(entries.len(), model.0.len());
            prop_assert!(entries.turns.len() <= 2 * entries.len());
            for (deadline, _, key) in &model.0 {
                prop_assert_eq!(entries.deadline(key), Some(*deadline));
            }
            let first = model.0.first();
            prop_assert_eq!(entries.peek(), first.map(|&(_, _, key)| key));
            prop_assert_eq!(entries.first(), first.map(|&(deadline, ..)| deadline));
        }
    }
}
