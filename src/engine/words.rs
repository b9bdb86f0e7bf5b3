//! `Words`: what a thread says of its spares, by plain stores, to whoever counts.

use std::mem;

use super::{
    counts::Tally,
    moment::Moment,
    shard::Shard,
    sync::{Arc, AtomicU64, LazyLock, Mutex, MutexGuard, Ordering::Relaxed, lock},
};

static ALL: LazyLock<Mutex<Vec<Arc<Words>>>> = LazyLock::new(Mutex::default);

/// What a thread says of its spares. Only that thread writes it.
pub(crate) struct Words {
    /// The shard that the other words are about.
    about: Mutex<Option<Arc<Shard>>>,
    /// Until when a spare is kept, or [`Moment::ZERO`].
    kept_until: AtomicU64,
    /// How many spares have been taken over.
    taken_over: AtomicU64,
}

impl Words {
    pub(crate) fn new() -> Arc<Words> {
        let words = Arc::new(Words {
            about: Mutex::new(None),
            kept_until: AtomicU64::new(0),
            taken_over: AtomicU64::new(0),
        });
        all().push(words.clone());
        words
    }

    /// Has the words be about `shard`. The former one is told what they said.
    #[cold]
    pub(crate) fn speak_of(&self, shard: Option<Arc<Shard>>) {
        let mut about = lock(&self.about);
        let taken_over = self.taken_over.load(Relaxed);
        if let Some(former) = about.as_ref().filter(|_| taken_over > 0) {
            former.add(of_taken_over(taken_over));
        }
        self.taken_over.store(0, Relaxed);
        self.kept_until.store(0, Relaxed);
        let former = mem::replace(&mut *about, shard);
        drop(about);
        drop(former);
    }

    #[inline]
    pub(crate) fn say_kept_until(&self, until: Moment) {
        self.kept_until.store(until.0, Relaxed);
    }

    #[inline]
    pub(crate) fn say_taken_over(&self) {
        self.taken_over.store(self.taken_over.load(Relaxed) + 1, Relaxed);
        self.kept_until.store(0, Relaxed);
    }

    /// Called as the thread ends.
    pub(crate) fn retire(self: &Arc<Words>) {
        self.speak_of(None);
        all().retain(|words| !Arc::ptr_eq(words, self));
    }
}

fn all() -> MutexGuard<'static, Vec<Arc<Words>>> {
    lock(LazyLock::force(&ALL))
}

fn of_taken_over(timers: u64) -> Tally {
    Tally {
        registered: timers,
        cancelled: timers,
    }
}

/// What threads say of the shards of a wheel.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) tally: Tally,
    /// The spares that are kept, each with its shard and until when.
    pub(crate) kept: Vec<(Arc<Shard>, Moment)>,
}

/// Adds up what all threads say of the shards that `is_of_wheel` accepts.
pub(crate) fn said(is_of_wheel: impl Fn(&Shard) -> bool) -> Said {
    let mut said = Said::default();
    for words in all().iter() {
        let about = lock(&words.about);
        let Some(shard) = about.as_ref().filter(|shard| is_of_wheel(shard)) else {
            continue;
        };
        said.tally.add(of_taken_over(words.taken_over.load(Relaxed)));
        let until = Moment(words.kept_until.load(Relaxed));
        if until == Moment::ZERO {
            continue;
        }
        let has_expired = shard.has_expired(until);
        // An engine that has ended has counted what was there.
        if has_expired || !shard.has_ended() {
            said.tally.cancelled += 1;
        }
        if !has_expired && !shard.has_ended() {
            said.kept.push((shard.clone(), until));
        }
    }
    said
}
