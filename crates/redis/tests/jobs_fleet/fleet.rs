//! `Fleet`: worker processes, some of which are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    log::{FailedMaster, Log},
    support::{PATIENCE, process::Process, server::signal, until},
};

pub(crate) struct Fleet {
    pub(crate) log: Arc<Log>,
    /// Their numbers, process ids, and who reads what they say.
    workers: Vec<(usize, u32, JoinHandle<()>)>,
    started: usize,
    killed: BTreeSet<usize>,
    settings: Vec<(String, String)>,
}

impl Fleet {
    /// Of workers that take so long for a job, in which they may be killed.
    pub(crate) fn new(urls: &str, lease: Duration, takes: Duration) -> Fleet {
        Fleet {
            log: Arc::default(),
            workers: Vec::new(),
            started: 0,
            killed: BTreeSet::new(),
            settings: vec![
                ("urls".to_owned(), urls.to_owned()),
                ("lease".to_owned(), lease.as_millis().to_string()),
                ("takes".to_owned(), takes.as_millis().to_string()),
            ],
        }
    }

    pub(crate) fn start_worker(&mut self) {
        let settings: Vec<(&str, &str)> = self
            .settings
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
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

    pub(crate) async fn is_ready(&self) {
        until(|| async { self.log.ready() >= self.started }).await;
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
            assert!(
                since.elapsed() < PATIENCE,
                "of {} jobs {} were done",
                ids.len(),
                self.log.done_of(ids)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
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
