//! `SpareCounts`: the spares that a shard has, and the timers that leave them and take them over.
//!
//! The entry of a spare is no pending timer. The timer that leaves it counts as cancelled, and the one that takes
//! it over as registered, without the lock and while the entry may expire. A visit counts an entry as expired only
//! if it is no spare, so which of the two it is has to be certain. A shard has a place for each spare:
//!
//! ```text
//!   vacant ---leave---> filled: when it is due ---take_over, give_up---> vacant
//!                                 |                                        ^
//!                                 `---void----> void ----------------------'
//! ```
//!
//! 1. A visit voids the spares that are due by its horizon. It and a take-over change the place by
//!    compare-and-swap, so one of them comes first. A timer that takes over a void spare expires as it starts.
//! 2. A visit stores the horizon and then voids spares. A timer fills the place and then looks at the horizon. So either
//!    the visit finds the spare, or the timer sees that its entry expires. It then takes the spare back, and does
//!    not count as cancelled, unless the visit has voided the spare meanwhile.
//! 3. Only the thread that has filled a place vacates it. So it takes no spare of another thread for its own that
//!    is due at the same moment, and the counts of a place are written by one thread at a time.

use super::{
    clock::Moment,
    shared::Tally,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence_in_models,
    },
};

/// The number of spares that a shard has, and that a thread keeps.
pub(crate) const SPARES: usize = 2;

const VACANT: Moment = Moment::ZERO;

/// A spare that a visit has voided. No entry is due at this moment, which is 63 years before the machine started.
const VOID: Moment = Moment(1);

pub(crate) struct SpareCounts([SparePlace; SPARES]);

struct SparePlace {
    /// When the spare is due, or [`VACANT`] or [`VOID`].
    due: AtomicU64,
    /// How many timers have left it, each of which has been cancelled.
    left: AtomicU64,
    /// How many timers have taken it over, each of which has been registered.
    taken_over: AtomicU64,
    /// How many of these have expired at once, because a visit had voided the spare.
    expired: AtomicU64,
}

impl SpareCounts {
    pub(crate) fn new() -> SpareCounts {
        SpareCounts([(); SPARES].map(|()| SparePlace {
            due: AtomicU64::new(VACANT.0),
            left: AtomicU64::new(0),
            taken_over: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }))
    }

    /// Counts a timer as cancelled, and its entry, which is due at `due`, as spare `index`. Returns `false` if the
    /// shard has that one already, or the entry has expired.
    #[inline]
    pub(crate) fn leave(&self, index: usize, due: Moment, horizon: &AtomicU64) -> bool {
        let place = &self.0[index];
        // Another thread may use this shard, too, and have a spare here.
        if !place.swap(VACANT, due) {
            return false;
        }
        fence_in_models();
        if due.0 <= horizon.load(SeqCst) && place.take_back(due) {
            return false;
        }
        // No read-modify-write, because nobody else writes this as long as there is this spare.
        place.left.store(place.left.load(Relaxed) + 1, Release);
        true
    }

    /// Counts a timer that takes over spare `index`, which is due at `due`.
    #[inline]
    pub(crate) fn take_over(&self, index: usize, due: Moment) {
        let place = &self.0[index];
        // Counted before the place is vacant, because after that another thread may count here, and a visit may count
        // the timer as expired.
        place
            .taken_over
            .store(place.taken_over.load(Relaxed) + 1, Relaxed);
        if !place.swap(due, VACANT) {
            place.expired.store(place.expired.load(Relaxed) + 1, Release);
            self.give_up(index);
        }
    }

    /// Vacates the place of spare `index`, whether or not a visit has voided the spare.
    pub(crate) fn give_up(&self, index: usize) {
        self.0[index].due.store(VACANT.0, Release);
    }

    /// Voids the spares that are due by `horizon`, which has been stored, and after `former`, the one before it:
    /// the entries of others have expired. Returns how many they are.
    pub(crate) fn void(&self, former: Moment, horizon: Moment) -> usize {
        fence_in_models();
        let is_voided = |place: &&SparePlace| {
            let due = Moment(place.due.load(SeqCst));
            VOID.max(former) < due && due <= horizon && place.swap(due, VOID)
        };
        self.0.iter().filter(is_voided).count()
    }

    /// Returns when the spares are due that no visit has voided. `Shared::has_no_handle` says why this sees each that
    /// was left before.
    pub(crate) fn dues(&self) -> impl Iterator<Item = Moment> {
        let dues = self.0.iter().map(|place| Moment(place.due.load(SeqCst)));
        dues.filter(|due| *due > VOID)
    }

    /// Adds the timers that have left a spare or taken one over.
    pub(crate) fn add_to(&self, tally: &mut Tally) {
        for place in &self.0 {
            // Read in this order, they never show a spare that has been left again before it was taken over.
            tally.expired += place.expired.load(Acquire);
            tally.cancelled += place.left.load(Acquire);
            tally.registered += place.taken_over.load(Relaxed);
        }
    }
}

impl SparePlace {
    /// Vacates the place, unless a visit has voided the spare, which is then left although it has expired.
    #[cold]
    fn take_back(&self, due: Moment) -> bool {
        self.swap(due, VACANT)
    }

    /// Changes the place if it is as in `from`. Returns whether it was.
    #[inline]
    fn swap(&self, from: Moment, to: Moment) -> bool {
        self.due.compare_exchange(from.0, to.0, SeqCst, Relaxed).is_ok()
    }
}
