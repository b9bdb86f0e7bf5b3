//! `Log`: what the workers have printed, and why some jobs were delivered again.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Mutex, MutexGuard},
};

#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: usize,
    ready: usize,
    /// By id.
    deliveries: BTreeMap<String, Vec<Delivery>>,
}

#[derive(Clone, Debug)]
struct Delivery {
    worker: usize,
    attempt: u32,
    /// What became of `done`; `None` until its worker has said.
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// True.
    Done,
    /// False: the lease was lost.
    Lost,
    /// An error: Redis did not answer before the lease ran out.
    Unanswered,
}

impl Outcome {
    const ALL: [Outcome; 3] = [Outcome::Done, Outcome::Lost, Outcome::Unanswered];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Lost => "lost",
            Outcome::Unanswered => "unanswered",
        }
    }
}

/// A master that was killed, and what it had acknowledged without its replica.
pub(crate) struct FailedMaster {
    /// The jobs that were there, and not done, when its replica was cut off.
    pub(crate) before: BTreeSet<String>,
    /// Those that were not done when it was killed, with the attempts that it had counted.
    pub(crate) after: BTreeMap<String, u32>,
}

impl FailedMaster {
    /// Whether it carried out a `done` that its replica never heard of.
    fn lost_done(&self, id: &str) -> bool {
        self.before.contains(id) && !self.after.contains_key(id)
    }

    /// Whether it carried out a start that its replica never heard of.
    fn lost_start(&self, id: &str, attempt: u32) -> bool {
        self.lost_done(id) || self.after.get(id).is_some_and(|attempts| *attempts >= attempt)
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Writes down a line of a worker's.
    pub(crate) fn write(&self, worker: usize, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut state = self.lock();
        state.lines += 1;
        let [verb, id, attempt] = words[..] else {
            assert_eq!(line, "ready");
            state.ready += 1;
            return;
        };
        let deliveries = state.deliveries.entry(id.to_owned()).or_default();
        let attempt = attempt.parse().unwrap();
        if verb == "got" {
            deliveries.push(Delivery {
                worker,
                attempt,
                outcome: None,
            });
            return;
        }
        let finished = Outcome::ALL.into_iter().find(|outcome| outcome.name() == verb);
        let delivery = deliveries.iter_mut().find(|delivery| {
            (delivery.worker, delivery.attempt) == (worker, attempt) && delivery.outcome.is_none()
        });
        delivery.expect("a job is got before it is finished").outcome = Some(finished.unwrap());
    }

    /// How many workers have begun.
    pub(crate) fn ready(&self) -> usize {
        self.lock().ready
    }

    /// How much has been said.
    pub(crate) fn lines(&self) -> usize {
        self.lock().lines
    }

    pub(crate) fn has_delivered_all(&self, ids: &BTreeSet<String>) -> bool {
        let state = self.lock();
        state.deliveries.len() >= ids.len() && ids.iter().all(|id| state.deliveries.contains_key(id))
    }

    /// How many of these jobs were done.
    pub(crate) fn done_of(&self, ids: &BTreeSet<String>) -> usize {
        let state = self.lock();
        let is_done = |id: &&String| {
            let deliveries = state.deliveries.get(*id).map_or(&[][..], |all| all);
            deliveries.iter().any(|one| one.outcome == Some(Outcome::Done))
        };
        ids.iter().filter(is_done).count()
    }

    /// Whether every worker has said what became of its jobs, but for those that were killed.
    pub(crate) fn is_settled(&self, killed: &BTreeSet<usize>) -> bool {
        let state = self.lock();
        let mut deliveries = state.deliveries.values().flatten();
        deliveries.all(|delivery| delivery.outcome.is_some() || killed.contains(&delivery.worker))
    }

    /// The attempts under which each job was delivered.
    pub(crate) fn attempts(&self) -> BTreeMap<String, Vec<u32>> {
        let state = self.lock();
        let attempts = |deliveries: &Vec<Delivery>| deliveries.iter().map(|one| one.attempt).collect();
        state
            .deliveries
            .iter()
            .map(|(id, deliveries)| (id.clone(), attempts(deliveries)))
            .collect()
    }

    /// Explains each delivery that followed another of the same job, and says how many there were for each
    /// reason. Panics where there is none.
    pub(crate) fn explain_duplicates(
        &self,
        killed: &BTreeSet<usize>,
        failed: Option<&FailedMaster>,
    ) -> BTreeMap<&'static str, usize> {
        let mut reasons = BTreeMap::new();
        let deliveries = mem::take(&mut self.lock().deliveries);
        for (id, mut deliveries) in deliveries {
            // What two processes say is not read in order. Of two with one attempt, the one that was of no
            // avail came first.
            deliveries.sort_by_key(|one| (one.attempt, one.outcome == Some(Outcome::Done)));
            for pair in deliveries.windows(2) {
                let reason = explain(&id, &pair[0], &pair[1], killed, failed)
                    .unwrap_or_else(|| panic!("nothing explains how {id} was delivered: {deliveries:?}"));
                *reasons.entry(reason).or_default() += 1;
            }
        }
        reasons
    }
}

/// The reason for which an acknowledged `done` was of no avail.
pub(crate) const LOST_DONE: &str = "done was acknowledged by the failed master and lost with it";

/// Why `later` followed. Attempts are counted by Redis alone, and another one is begun only where the lease
/// of the one before has ended; so a higher one says that it had, unless the earlier one was done.
fn explain(
    id: &str,
    earlier: &Delivery,
    later: &Delivery,
    killed: &BTreeSet<usize>,
    failed: Option<&FailedMaster>,
) -> Option<&'static str> {
    let lost_done = failed.is_some_and(|master| master.lost_done(id));
    let lost_start = failed.is_some_and(|master| master.lost_start(id, earlier.attempt));
    if earlier.attempt == later.attempt && !lost_start {
        return None;
    }
    match earlier.outcome {
        Some(Outcome::Done) => lost_done.then_some(LOST_DONE),
        Some(Outcome::Lost) if earlier.attempt == later.attempt => {
            Some("its start was acknowledged by the failed master and lost with it")
        }
        Some(Outcome::Lost) => Some("done said that the lease was lost"),
        Some(Outcome::Unanswered) => Some("done was not answered before the lease ran out"),
        None => killed
            .contains(&earlier.worker)
            .then_some("its worker was killed"),
    }
}

#[test]
fn a_job_that_comes_again_after_it_was_done_is_not_explained() {
    let log = Log::default();
    for line in ["ready", "got a 1", "done a 1", "got a 2", "done a 2"] {
        log.write(0, line);
    }
    assert!(log.is_settled(&BTreeSet::new()));
    let explained = std::panic::catch_unwind(|| log.explain_duplicates(&BTreeSet::from([1]), None));
    assert!(explained.is_err());
}

#[test]
fn an_attempt_that_comes_twice_is_not_explained() {
    let log = Log::default();
    for line in ["got a 1", "lost a 1", "got a 1", "done a 1"] {
        log.write(0, line);
    }
    let explained = std::panic::catch_unwind(|| log.explain_duplicates(&BTreeSet::new(), None));
    assert!(explained.is_err());
}

#[test]
fn what_a_failed_master_took_with_it_explains_what_it_had_and_no_more() {
    let failed = FailedMaster {
        before: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
        after: BTreeMap::from([("b".to_owned(), 1)]),
    };
    assert!(failed.lost_done("a") && !failed.lost_done("b") && !failed.lost_done("c"));
    assert!(failed.lost_start("b", 1) && !failed.lost_start("b", 2) && !failed.lost_start("c", 1));
}
