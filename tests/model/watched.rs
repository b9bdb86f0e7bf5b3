//! A snapshot at a quiet point is exact: random sleeps and labelled timeouts come and go, and a model counts
//! them too.

use crate::support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use tickwheel::{LabelStats, LabelledTimeout, TrySleep, Wheel};
use tokio::{sync::oneshot, time::Instant};
use tokio_test::{assert_pending, assert_ready, task};

use support::{advance, ms, paused_runtime};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Sleep {
        millis: u64,
    },
    Timeout {
        name: usize,
        millis: u64,
        at: bool,
    },
    Ready {
        name: usize,
    },
    /// Completes what waits, or ends it: one of so many.
    Complete {
        which: usize,
    },
    Drop {
        which: usize,
    },
    Advance {
        millis: u64,
    },
    Shutdown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Of every stretch in `due_within` as many.
    let millis = || (1..8_u32, 1..10_u64).prop_map(|(power, factor)| 10_u64.pow(power - 1) * factor);
    let step = prop_oneof![
        4 => millis().prop_map(|millis| Step::Sleep { millis }),
        8 => (0..NAMES.len(), millis(), any::<bool>()).prop_map(|(name, millis, at)| Step::Timeout { name, millis, at }),
        1 => (0..NAMES.len()).prop_map(|name| Step::Ready { name }),
        4 => any::<usize>().prop_map(|which| Step::Complete { which }),
        3 => any::<usize>().prop_map(|which| Step::Drop { which }),
        4 => millis().prop_map(|millis| Step::Advance { millis }),
    ];
    // Some end in a shutdown, with a few steps after it.
    (
        prop::collection::vec(step.clone(), 1..60),
        prop::option::of(prop::collection::vec(step, 0..5)),
    )
        .prop_map(|(mut steps, after)| {
            if let Some(after) = after {
                steps.push(Step::Shutdown);
                steps.extend(after);
            }
            steps
        })
}

enum Waiting {
    Sleep(task::Spawn<TrySleep>),
    Timeout {
        name: usize,
        total: u64,
        sender: oneshot::Sender<()>,
        timeout: task::Spawn<LabelledTimeout<oneshot::Receiver<()>>>,
    },
}

#[derive(Default)]
struct Model {
    now: u64,
    shutdown: bool,
    /// With the deadlines, in milliseconds.
    waiting: Vec<(u64, Waiting)>,
    labels: BTreeMap<usize, [u64; 13]>,
}

const ELAPSED: usize = 10;
const CANCELLED: usize = 11;
const STARTED: usize = 12;

impl Model {
    fn count(&mut self, name: usize, what: usize) {
        self.labels.entry(name).or_default()[what] += 1;
    }

    async fn step(&mut self, wheel: &Wheel, step: Step) {
        match step {
            Step::Sleep { millis } => {
                let mut sleep = task::spawn(wheel.try_sleep(ms(millis)));
                if self.shutdown {
                    assert_ready!(sleep.poll()).unwrap_err();
                } else {
                    assert_pending!(sleep.poll());
                    self.waiting.push((self.now + millis, Waiting::Sleep(sleep)));
                }
            }
            Step::Timeout { name, millis, at } => {
                let (sender, receiver) = oneshot::channel();
                let labelled = wheel.labelled(NAMES[name]);
                let mut timeout = task::spawn(if at {
                    labelled.timeout_at(Instant::now() + ms(millis), receiver)
                } else {
                    labelled.timeout(ms(millis), receiver)
                });
                self.count(name, STARTED);
                assert_pending!(timeout.poll());
                let waiting = Waiting::Timeout {
                    name,
                    total: millis,
                    sender,
                    timeout,
                };
                self.waiting.push((self.now + millis, waiting));
            }
            Step::Ready { name } => {
                let labelled = wheel.labelled(NAMES[name]);
                labelled.timeout(ms(5), async {}).await.unwrap();
                self.count(name, STARTED);
                self.count(name, 9);
            }
            Step::Complete { which } => {
                let taken = self.take(which);
                if let Some((
                    deadline,
                    Waiting::Timeout {
                        name,
                        total,
                        sender,
                        mut timeout,
                    },
                )) = taken
                {
                    sender.send(()).unwrap();
                    assert!(timeout.is_woken());
                    assert_ready!(timeout.poll()).unwrap().unwrap();
                    let left = deadline.saturating_sub(self.now);
                    let tenths = (left * 10 / total).min(9) as usize;
                    self.count(name, tenths);
                }
            }
            Step::Drop { which } => {
                if let Some((_, Waiting::Timeout { name, .. })) = self.take(which) {
                    self.count(name, CANCELLED);
                }
            }
            Step::Advance { millis } => {
                advance(ms(millis)).await;
                self.now += millis;
                self.expire();
            }
            Step::Shutdown => {
                wheel.shutdown();
                self.shutdown = true;
            }
        }
    }

    fn take(&mut self, which: usize) -> Option<(u64, Waiting)> {
        let which = which.checked_rem(self.waiting.len())?;
        Some(self.waiting.swap_remove(which))
    }

    /// Polls what was due by now.
    fn expire(&mut self) {
        let (due, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(deadline, _)| *deadline <= self.now);
        self.waiting = waiting;
        for (_, due) in due {
            match due {
                // One that a shutdown has woken, and nobody has polled since.
                Waiting::Sleep(mut sleep) => assert_ready!(sleep.poll()).unwrap(),
                Waiting::Timeout {
                    name, mut timeout, ..
                } => {
                    assert_ready!(timeout.poll()).unwrap_err();
                    self.count(name, ELAPSED);
                }
            }
        }
    }

    fn assert_shown(&self, wheel: &Wheel) {
        let snapshot = wheel.snapshot();
        let mut due_within = [0; 9];
        let bounds = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, u64::MAX];
        for (deadline, _) in &self.waiting {
            let stretch = bounds.iter().position(|bound| deadline - self.now <= *bound);
            due_within[stretch.unwrap()] += 1;
        }
        assert_eq!(snapshot.due_within, due_within);
        assert_eq!(snapshot.pending, due_within.iter().sum::<usize>());
        assert_eq!(
            snapshot.levels.iter().map(|level| level.pending).sum::<usize>(),
            snapshot.pending
        );
        assert_eq!(
            snapshot.shards.iter().map(|shard| shard.pending).sum::<usize>(),
            snapshot.pending
        );
        assert_eq!(snapshot.labels.len(), self.labels.len());
        for (name, counted) in &self.labels {
            let waits = |(_, waiting): &&(u64, Waiting)| matches!(waiting, Waiting::Timeout { name: other, .. } if other == name);
            let waiting = self.waiting.iter().filter(waits).count() as u64;
            let label = snapshot.labels.iter().find(|label| &*label.name == NAMES[*name]);
            let LabelStats {
                started,
                completed,
                elapsed,
                cancelled,
                pending: still_pending,
                headroom,
                ..
            } = label.unwrap();
            assert_eq!(headroom[..], counted[..10]);
            assert_eq!(*completed, headroom.iter().sum::<u64>());
            assert_eq!(
                [*started, *elapsed, *cancelled, *still_pending],
                [counted[STARTED], counted[ELAPSED], counted[CANCELLED], waiting]
            );
        }
    }
}

proptest! {
    #[test]
    fn it_shows_what_was_started_and_what_became_of_it(steps in steps(), shards in 1..4_usize, levels in 1..5_usize) {
        paused_runtime().block_on(async {
            let builder = Wheel::builder().tick_duration(ms(1)).ticks_per_wheel(16);
            let wheel = builder.shards(shards).levels(levels).build().unwrap();
            let mut model = Model::default();
            for step in steps {
                model.step(&wheel, step).await;
                model.assert_shown(&wheel);
            }
        });
    }
}
