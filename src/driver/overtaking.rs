//! How the driver overtakes the tasks that are ready, where they are many.
//!
//! A current-thread runtime runs its ready tasks in turn. In a storm those are thousands, and the driver would stand behind all of
//! them, each time that Tokio's timer wakes it. But a task that another thread wakes comes by the runtime's global queue, from which the
//! runtime takes a task after every 31 of its own. So while the queue takes longer than a tick, another thread wakes the driver: one that
//! is started for that, and ends.
//!
//! How long the queue takes is measured by an empty task that is spawned into it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
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
        let slow = match &self.probe {
            None => self.possible && lag.is_some_and(|lag| lag > tick),
            Some(probe) => match probe.waited() {
                None => return,
                Some(waited) => waited > tick,
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

    /// Whether the runtime has one queue for all its tasks.
    pub(super) fn is_possible(&self) -> bool {
        self.possible
    }

    pub(super) fn is_needed(&self) -> bool {
        self.probe.is_some()
    }

    /// A waker of the driver's task: one that overtakes, if need be.
    pub(super) fn waker(&self, driver: &Waker) -> Waker {
        match self.is_needed() {
            true => Waker::from(Arc::new(FromOutside(driver.clone()))),
            false => driver.clone(),
        }
    }
}

/// Wakes a task from another thread.
struct FromOutside(Waker);

impl Wake for FromOutside {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A test that stops the clock is to find everything done, and not to wait for a thread.
        if !clock::is_real(Instant::now) {
            return self.0.wake_by_ref();
        }
        let task = self.0.clone();
        let thread = thread::Builder::new().name("tickwheel-waker".to_owned());
        if thread.spawn(move || task.wake()).is_err() {
            self.0.wake_by_ref();
        }
    }
}
