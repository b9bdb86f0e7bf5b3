//! `Fleet`: worker processes, some of which are killed.

use std::{mem, thread::JoinHandle};

use crate::{
    log::{FailedMaster, Log},
    support::{prelude::*, server::signal},
};

pub(crate) struct Fleet {
    pub(crate) log: Arc<Log>,
    /// Their numbers, process ids, and who reads what they say.
    workers: Vec<(usize, u32, JoinHandle<()>)>,
    started: usize,
    killed: BTreeSet<usize>,
    settings: [(&'static str, String); 3],
}

impl Fleet {
    /// So many workers, which take so long for a job, in which they may be killed. All are ready.
    pub(crate) async fn start(workers: usize, urls: &str, lease: Duration, takes: Duration) -> Fleet {
        let settings = [
            ("urls", urls.to_owned()),
            ("lease", lease.as_millis().to_string()),
            ("takes", takes.as_millis().to_string()),
        ];
        let mut fleet = Fleet {
            log: Arc::default(),
            workers: Vec::new(),
            started: 0,
            killed: BTreeSet::new(),
            settings,
        };
        for _ in 0..workers {
            fleet.start_worker();
        }
        until(|| async { fleet.log.ready() >= workers }).await;
        fleet
    }

    fn start_worker(&mut self) {
        let settings = self.settings.each_ref().map(|(name, value)| (*name, &**value));
        let mut process = Process::start("worker", &settings);
        let (number, pid, log) = (self.started, process.id(), self.log.clone());
        self.started += 1;
        // It ends with the process, which is killed with the fleet.
        let reader = thread::spawn(move || {
            while let Some(line) = process.line() {
                log.write(number, &line);
            }
        });
        self.workers.push((number, pid, reader));
    }

    /// `kill -9` of a worker, and another in its place.
    pub(crate) fn replace_worker(&mut self) {
        let place = fastrand::usize(..self.workers.len());
        let (number, pid, reader) = self.workers.remove(place);
        signal("KILL", pid);
        // All that it said has been written down.
        reader.join().unwrap();
        self.killed.insert(number);
        self.start_worker();
    }

    /// Sends each worker a signal.
    pub(crate) fn signal(&self, name: &str) {
        for (_, pid, _) in &self.workers {
            signal(name, *pid);
        }
    }

    /// Waits until every job of these has been delivered and all that was delivered is finished, for as long
    /// as there is progress.
    pub(crate) async fn has_done(&self, ids: &BTreeSet<String>) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            if self.log.has_delivered_all(ids) && self.log.is_settled(&self.killed) {
                return;
            }
            let lines = self.log.lines();
            if mem::replace(&mut last, lines) < lines {
                since = Instant::now();
            }
            let done = self.log.done_of(ids);
            let all = ids.len();
            assert!(since.elapsed() < PATIENCE, "of {all} jobs {done} were done");
            sleep(20 * MS).await;
        }
    }

    /// Why jobs were delivered again, and how many for each reason. Panics where there is none.
    pub(crate) fn explain_duplicates(&self, failed: Option<&FailedMaster>) -> BTreeMap<&'static str, usize> {
        self.log.explain_duplicates(&self.killed, failed)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (_, pid, _) in &self.workers {
            let _ = std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status();
        }
    }
}
