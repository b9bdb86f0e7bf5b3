//! The counts of spares that are left, taken over and given up while a visit expires their entries.

use std::sync::Arc;

use loom::thread;

use super::{model, world::moment};
use crate::engine::{
    shared::Tally,
    spare_counts::SpareCounts,
    sync::{AtomicU64, Ordering::SeqCst},
};

/// Two threads have a timer each, which is due at the same tick, and one place for both of their spares. Each leaves
/// its entry, if it can, and then takes it over.
#[test]
fn each_timer_counts_once_whoever_comes_first() {
    model(4, || {
        let shared = Arc::new((SpareCounts::new(), AtomicU64::new(0)));
        let threads = [(); 2].map(|()| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (counts, horizon) = &*shared;
                if counts.leave(0, moment(1), horizon) {
                    counts.take_over(0, moment(1));
                }
            })
        });
        let (counts, horizon) = &*shared;
        horizon.store(moment(1).0, SeqCst);
        let voided = counts.void(moment(0), moment(1)) as u64;
        for thread in threads {
            thread.join().unwrap();
        }
        // Both entries have expired.
        let mut tally = Tally {
            registered: 2,
            expired: 2 - voided,
            cancelled: 0,
        };
        counts.add_to(&mut tally);
        assert_eq!(tally.registered, tally.expired + tally.cancelled);
        assert_eq!(counts.dues().count(), 0, "a place is not vacant");
    });
}

/// Its entry has expired in the first visit, and the thread has not looked at the horizon before the second.
#[test]
fn a_visit_voids_no_spare_whose_entry_an_earlier_one_has_expired() {
    model(4, || {
        let shared = Arc::new((SpareCounts::new(), AtomicU64::new(0)));
        let leaving = shared.clone();
        let thread = thread::spawn(move || {
            let (counts, horizon) = &*leaving;
            counts.leave(0, moment(1), horizon)
        });
        let (counts, horizon) = &*shared;
        let visit = |former, tick| {
            horizon.store(moment(tick).0, SeqCst);
            counts.void(moment(former), moment(tick))
        };
        visit(0, 1);
        assert_eq!(visit(1, 2), 0, "an entry that expires later would not be counted");
        thread.join().unwrap();
    });
}
