//! How the driver overtakes the tasks that are ready, where they are many.
//!
//! A current-thread runtime runs its ready tasks in turn. In a storm those are thousands, and the driver would stand behind all of
//! them, each time that Tokio's timer wakes it. But a task that another thread wakes comes by the runtime's global queue, from which the
//! runtime takes a task after every 31 of its own. So while the queue takes longer than a tick, another thread wakes the driver: one that
//! is started for that, and ends. While other tasks wait in the global queue, that way is the longer one, and is not taken.
//!
//! How long the queue takes is measured by an empty task that is spawned into it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant as MachineInstant},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

use crate::clock;

/// So many woken tasks may fill a tick.
const MANY: usize = 256;

/// So late the driver may come where ticks are shorter: Tokio's timer itself is late by one or two.
const LATE: Duration = Duration::from_millis(5);

/// With more tasks in the global queue, of which the runtime takes one after every 31 others, the driver does not go there.
const FEW: usize = 8;

/// Decides whether the driver overtakes.
#[derive(Default)]
pub(super) struct Overtaking {
    /// Only a current-thread runtime has one queue for all its tasks.
    possible: bool,
    probe: Option<Probe>,
}

/// A task in the queue, and how long it waited there, in nanoseconds.
struct Probe(Arc<AtomicU64>);

impl Probe {
    const WAITING: u64 = u64::MAX;

    fn spawn() -> Probe {
        let waited = Arc::new(AtomicU64::new(Self::WAITING));
        let (began, probe) = (MachineInstant::now(), Probe(waited.clone()));
        drop(tokio::spawn(async move {
            waited.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }));
        probe
    }

    /// None while it waits.
    fn waited(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            Self::WAITING => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

impl Overtaking {
    /// Must be called in the driver's runtime.
    pub(super) fn new() -> Overtaking {
        Overtaking {
            possible: Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread,
            probe: None,
        }
    }

    /// Once a turn: the driver came so much too late, or not late at all.
    pub(super) fn came(&mut self, lag: Option<Duration>, tick: Duration) {
        let late = tick.max(LATE);
        let slow = match &self.probe {
            None => self.possible && lag.is_some_and(|lag| lag > late),
            Some(probe) => match probe.waited() {
                None => return,
                Some(waited) => waited > late,
            },
        };
        self.probe = slow.then(Probe::spawn);
    }

    /// The driver has woken so many tasks, and stops now. They are in the queue, before it.
    pub(super) fn woke(&mut self, tasks: usize) {
        if self.possible && self.probe.is_none() && tasks >= MANY {
            self.probe = Some(Probe::spawn());
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.probe.is_some()
    }

    /// A waker of the driver's task: one that overtakes, if need be.
    pub(super) fn waker(&self, driver: &Waker) -> Waker {
        match self.is_needed() {
            true => Waker::from(Arc::new(FromOutside {
                driver: driver.clone(),
                runtime: Handle::current(),
                starting: AtomicBool::new(false),
            })),
            false => driver.clone(),
        }
    }
}

/// Wakes the driver from another thread.
struct FromOutside {
    driver: Waker,
    runtime: Handle,
    /// A thread has been started that has not woken the driver yet.
    starting: AtomicBool,
}

impl FromOutside {
    fn overtakes(&self) -> bool {
        let reads = !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        // A test that stops the clock is to find everything done, and not to wait for a thread. One that stops it while a thread starts
        // may find the driver late.
        reads && self.runtime.metrics().global_queue_depth() <= FEW && clock::is_real(Instant::now)
    }
}

impl Wake for FromOutside {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.overtakes() {
            return self.driver.wake_by_ref();
        }
        if self.starting.swap(true, Ordering::AcqRel) {
            return;
        }
        let outside = self.clone();
        let thread = thread::Builder::new().name("tickwheel-waker".to_owned());
        let started = thread.spawn(move || {
            // Before the wake: who comes from here on starts another thread.
            outside.starting.swap(false, Ordering::AcqRel);
            outside.driver.wake_by_ref();
        });
        if started.is_err() {
            self.starting.store(false, Ordering::Release);
            self.driver.wake_by_ref();
        }
    }
}
