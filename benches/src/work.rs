//! The work that peers are given. Each kind is written with the peer's own API, and as alike as the APIs
//! allow.
//!
//! Futures are polled by hand inside a task of a multi-thread runtime, with that task's waker, so the timer
//! is measured and not the scheduler. A task keeps its worker until it is done. There is always one worker
//! more than there are tasks, and it runs Tokio's timer driver and the wheel's.

use std::{
    future::{Future, ready},
    hint::black_box,
    pin::Pin,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use fastrand::Rng;
use pingora_timeout::fast_timeout::{fast_sleep, fast_timeout};
use tickwheel::{Labelled, Wheel};
use tokio_util::time::{DelayQueue, delay_queue};

pub use count::polled::{Once, poll_once, poll_ready, poll_sleep, repeat};

pub use crate::durations::Durations;
use crate::{
    peer::Peer,
    stage::{Stage, quiesce},
};

/// Operations enough for the driver to start.
const PRELUDE: u64 = 1_000;

/// A peer ready to be used, on a stage.
#[derive(Clone)]
enum Timers {
    Global,
    Handle(Wheel),
    Labelled(Labelled),
    Tokio,
    Pingora,
    DelayQueue(Arc<tokio::sync::Mutex<DelayQueue<()>>>),
}

impl Timers {
    fn new(peer: Peer, stage: &Stage) -> Timers {
        let _entered = stage.runtime(peer).enter();
        match peer {
            Peer::Tickwheel => Timers::Global,
            Peer::Handle => Timers::Handle(Wheel::new()),
            Peer::Labelled => Timers::Labelled(Wheel::new().labelled("benchmark")),
            Peer::Tokio | Peer::TokioAlt => Timers::Tokio,
            Peer::Pingora => Timers::Pingora,
            Peer::DelayQueue => {
                let mut queue = DelayQueue::new();
                // An empty queue would make and drop a Tokio sleep each time.
                queue.insert((), Duration::from_secs(60));
                Timers::DelayQueue(Arc::new(tokio::sync::Mutex::new(queue)))
            }
        }
    }

    /// Timeouts around a ready future.
    async fn ready(self, times: u64) {
        let duration = Duration::from_secs(600);
        match self {
            Timers::Handle(wheel) => {
                repeat(times, |cx| {
                    poll_ready(cx, wheel.timeout(black_box(duration), ready(())))
                })
                .await;
            }
            Timers::Global => {
                repeat(times, |cx| {
                    poll_ready(cx, tickwheel::time::timeout(black_box(duration), ready(())));
                })
                .await;
            }
            Timers::Labelled(label) => {
                repeat(times, |cx| {
                    poll_ready(cx, label.timeout(black_box(duration), ready(())))
                })
                .await;
            }
            Timers::Tokio => {
                repeat(times, |cx| {
                    poll_ready(cx, tokio::time::timeout(black_box(duration), ready(())));
                })
                .await;
            }
            Timers::Pingora => {
                repeat(times, |cx| {
                    poll_ready(cx, fast_timeout(black_box(duration), ready(())))
                })
                .await;
            }
            Timers::DelayQueue(_) => unreachable!("it does not wrap futures"),
        }
    }

    /// Timeouts around a future that waits once; where there are none, a timer registered and cancelled.
    async fn churn(self, times: u64, durations: Durations) {
        let mut random = Rng::with_seed(7);
        let mut draw = || durations.draw(&mut random);
        match self {
            Timers::Handle(wheel) => {
                repeat(times, |cx| poll_once(cx, wheel.timeout(draw(), Once::default()))).await;
            }
            Timers::Global => {
                repeat(times, |cx| {
                    poll_once(cx, tickwheel::time::timeout(draw(), Once::default()))
                })
                .await;
            }
            Timers::Labelled(label) => {
                repeat(times, |cx| poll_once(cx, label.timeout(draw(), Once::default()))).await;
            }
            Timers::Tokio => {
                repeat(times, |cx| {
                    poll_once(cx, tokio::time::timeout(draw(), Once::default()))
                })
                .await;
            }
            Timers::Pingora => {
                repeat(times, |cx| poll_once(cx, fast_timeout(draw(), Once::default()))).await;
            }
            Timers::DelayQueue(queue) => {
                let mut queue = queue.lock().await;
                repeat(times, |_| {
                    let key = queue.insert((), draw());
                    queue.remove(&black_box(key));
                })
                .await;
            }
        }
    }

    /// Sleeps that are started and given up.
    async fn sleeps(self, times: u64) {
        let duration = Duration::from_secs(30);
        match self {
            Timers::Handle(wheel) => {
                repeat(times, |cx| poll_sleep(cx, wheel.sleep(black_box(duration)))).await;
            }
            Timers::Global => {
                repeat(times, |cx| {
                    poll_sleep(cx, tickwheel::time::sleep(black_box(duration)))
                })
                .await;
            }
            Timers::Tokio => {
                repeat(times, |cx| {
                    poll_sleep(cx, tokio::time::sleep(black_box(duration)))
                })
                .await;
            }
            Timers::Pingora => {
                repeat(times, |cx| poll_sleep(cx, fast_sleep(black_box(duration)))).await;
            }
            Timers::Labelled(_) => unreachable!("a label counts timeouts alone"),
            Timers::DelayQueue(_) => unreachable!("it has no future for one timer"),
        }
    }

    /// So many timers, started.
    async fn hold(&self, timers: usize, durations: Durations) -> Pending {
        let mut random = Rng::with_seed(7);
        let mut draw = || durations.draw(&mut random);
        match self {
            Timers::Handle(wheel) => Pending::Tickwheel(start(timers, || wheel.sleep(draw())).await),
            Timers::Global => {
                let wheel = Wheel::global();
                Pending::Tickwheel(start(timers, || wheel.sleep(draw())).await)
            }
            Timers::Labelled(_) => unreachable!("a label counts timeouts alone"),
            Timers::Tokio => Pending::Tokio(start(timers, || tokio::time::sleep(draw())).await),
            Timers::Pingora => {
                let boxed = start(timers, || -> Pin<Box<dyn Future<Output = ()>>> {
                    Box::pin(fast_sleep(draw()))
                });
                Pending::Pingora(boxed.await)
            }
            Timers::DelayQueue(queue) => {
                let mut queue = queue.lock().await;
                Pending::DelayQueue((0..timers).map(|_| queue.insert((), draw())).collect())
            }
        }
    }
}

type Boxes<F> = Vec<Pin<Box<F>>>;

async fn start<F: Future>(timers: usize, mut make: impl FnMut() -> F) -> Boxes<F> {
    let mut started = Vec::with_capacity(timers);
    repeat(timers as u64, |cx| {
        let mut timer = Box::pin(make());
        assert!(timer.as_mut().poll(cx).is_pending());
        started.push(timer);
    })
    .await;
    started
}

/// Timers that wait.
enum Pending {
    Tickwheel(Boxes<tickwheel::Sleep>),
    Tokio(Boxes<tokio::time::Sleep>),
    #[allow(dead_code)]
    Pingora(Boxes<Pin<Box<dyn Future<Output = ()>>>>),
    DelayQueue(Vec<delay_queue::Key>),
}

/// A peer with timers pending.
pub struct Held<'a> {
    stage: &'a Stage,
    peer: Peer,
    timers: Timers,
    pending: Pending,
    /// Every reset is to a later instant than the one before.
    latest: tokio::time::Instant,
}

impl Held<'_> {
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Registers and cancels one more timer, so many times, on the thread that started the pending ones: they
    /// share a shard.
    pub fn churn(&self, times: u64, durations: Durations) -> Duration {
        self.stage.runtime(self.peer).block_on(async {
            self.timers.clone().churn(PRELUDE, durations).await;
            let began = Instant::now();
            self.timers.clone().churn(times, durations).await;
            began.elapsed()
        })
    }

    /// Starts a sleep and gives it up, so many times.
    pub fn sleeps(&self, times: u64) -> Duration {
        self.stage.runtime(self.peer).block_on(async {
            self.timers.clone().sleeps(PRELUDE).await;
            let began = Instant::now();
            self.timers.clone().sleeps(times).await;
            began.elapsed()
        })
    }

    /// Moves pending timers to later instants: the first one over and over, or any at random.
    pub fn reset(&mut self, times: u64, at_random: bool) -> Duration {
        let mut random = Rng::with_seed(7);
        let runtime = self.stage.runtime(self.peer);
        let latest = &mut self.latest;
        let mut later = move || {
            *latest += Duration::from_micros(1);
            *latest
        };
        runtime.block_on(async {
            let mut pick = |timers: usize| if at_random { random.usize(..timers) } else { 0 };
            let began = Instant::now();
            match (&mut self.pending, &self.timers) {
                (Pending::Tickwheel(sleeps), _) => {
                    repeat(times, |_| {
                        let index = pick(sleeps.len());
                        sleeps[index].as_mut().reset(later());
                    })
                    .await;
                }
                (Pending::Tokio(sleeps), _) => {
                    repeat(times, |_| {
                        let index = pick(sleeps.len());
                        sleeps[index].as_mut().reset(later());
                    })
                    .await;
                }
                (Pending::DelayQueue(keys), Timers::DelayQueue(queue)) => {
                    let mut queue = queue.lock().await;
                    repeat(times, |_| queue.reset_at(&keys[pick(keys.len())], later())).await;
                }
                (Pending::Pingora(_) | Pending::DelayQueue(_), _) => unreachable!("it does not reset"),
            }
            began.elapsed()
        })
    }
}

impl Held<'_> {
    /// Moves pending timers, any at random, to 20 ms earlier than they were, which none of them is the first
    /// to be.
    pub fn reset_earlier(&mut self, times: u64) -> Duration {
        const BY: Duration = Duration::from_millis(20);
        let mut random = Rng::with_seed(7);
        let runtime = self.stage.runtime(self.peer);
        runtime.block_on(async {
            let mut pick = |timers: usize| random.usize(..timers);
            let began = Instant::now();
            match &mut self.pending {
                Pending::Tickwheel(sleeps) => {
                    repeat(times, |_| {
                        let index = pick(sleeps.len());
                        let earlier = sleeps[index].deadline() - BY;
                        sleeps[index].as_mut().reset(earlier);
                    })
                    .await;
                }
                Pending::Tokio(sleeps) => {
                    repeat(times, |_| {
                        let index = pick(sleeps.len());
                        let earlier = sleeps[index].deadline() - BY;
                        sleeps[index].as_mut().reset(earlier);
                    })
                    .await;
                }
                _ => unreachable!("it does not tell a deadline"),
            }
            began.elapsed()
        })
    }
}

impl Stage {
    /// Timeouts around a ready future, so many of them: how long they took.
    pub fn ready(&self, peer: Peer, times: u64) -> Duration {
        let timers = Timers::new(peer, self);
        self.runtime(peer).block_on(async {
            timers.clone().ready(PRELUDE).await;
            let began = Instant::now();
            timers.ready(times).await;
            began.elapsed()
        })
    }

    /// `workers` tasks at once, each on a worker of its own, each with so many timeouts around a future that
    /// waits once: how long all of it took.
    pub fn churn(&self, peer: Peer, workers: usize, times: u64) -> Duration {
        let timers = Timers::new(peer, self);
        let runtime = self.runtime(peer);
        let started = Arc::new(Barrier::new(workers));
        let tasks = (0..workers).map(|_| {
            let (timers, started) = (timers.clone(), started.clone());
            runtime.spawn(async move {
                // A worker that waits here can take no second task: the tasks are spread over all.
                started.wait();
                timers.clone().churn(PRELUDE, Durations::Equal).await;
                started.wait();
                let began = Instant::now();
                timers.churn(times, Durations::Equal).await;
                (began, Instant::now())
            })
        });
        let tasks: Vec<_> = tasks.collect();
        runtime.block_on(async {
            let mut spans = Vec::new();
            for task in tasks {
                spans.push(task.await.expect("no panic"));
            }
            let began = spans.iter().map(|(began, _)| *began).min();
            let ended = spans.iter().map(|(_, ended)| *ended).max();
            began
                .zip(ended)
                .map_or(Duration::ZERO, |(began, ended)| ended - began)
        })
    }

    /// Starts timers, and waits until the machine is quiet again.
    pub fn hold(&self, peer: Peer, timers: usize, durations: Durations) -> Held<'_> {
        let with = Timers::new(peer, self);
        let pending = self.runtime(peer).block_on(with.hold(timers, durations));
        quiesce();
        Held {
            stage: self,
            peer,
            timers: with,
            pending,
            latest: tokio::time::Instant::now() + Duration::from_secs(3600),
        }
    }
}
