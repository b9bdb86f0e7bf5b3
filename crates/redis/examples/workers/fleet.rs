//! The worker processes, and the lines that they print.

use std::{
    collections::HashSet,
    env, io,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime},
};

use futures::StreamExt;
use redis::Client;
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Job, Notifications};

use crate::{LEASE, PARTITIONS, support::connect};

/// What a worker has said.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Got {
        worker: usize,
        id: String,
        attempt: u32,
        late: Duration,
        /// When it was due, as near as can be told here.
        due: Instant,
    },
    /// With whether `done` was true; an error says why it is not known.
    Finished {
        id: String,
        attempt: u32,
        outcome: Outcome,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Lost,
    Unknown,
}

impl Said {
    pub(crate) fn id(&self) -> &str {
        match self {
            Said::Got { id, .. } | Said::Finished { id, .. } => id,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(
            self,
            Said::Finished {
                outcome: Outcome::Done,
                ..
            }
        )
    }

    fn read(worker: usize, line: &str) -> Option<Said> {
        let words: Vec<&str> = line.split(' ').collect();
        let &[verb, id, attempt, last] = &words[..] else {
            return None;
        };
        let (id, attempt) = (id.to_owned(), attempt.parse().ok()?);
        let outcome = match verb {
            "got" => {
                let late = Duration::from_micros(last.parse().ok()?);
                let now = Instant::now();
                return Some(Said::Got {
                    worker,
                    id,
                    attempt,
                    late,
                    due: now.checked_sub(late).unwrap_or(now),
                });
            }
            "finished" => match last {
                "done" => Outcome::Done,
                "lost" => Outcome::Lost,
                _ => Outcome::Unknown,
            },
            _ => return None,
        };
        Some(Said::Finished { id, attempt, outcome })
    }
}

pub(crate) struct Fleet {
    workers: Vec<Child>,
    said: Arc<Mutex<Vec<Said>>>,
    killed: HashSet<usize>,
    killed_at: Option<Instant>,
}

impl Fleet {
    pub(crate) fn start(workers: usize, queue: &str) -> Fleet {
        let said: Arc<Mutex<Vec<Said>>> = Arc::default();
        let workers = (0..workers)
            .map(|worker| {
                let mut child = Command::new(env::current_exe().expect("this program"))
                    .args(["--work-for", queue])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("this program, again");
                let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
                let said = said.clone();
                thread::spawn(move || {
                    for line in lines.map_while(Result::ok) {
                        said.lock().unwrap().extend(Said::read(worker, &line));
                    }
                });
                child
            })
            .collect();
        Fleet {
            workers,
            said,
            killed: HashSet::new(),
            killed_at: None,
        }
    }

    /// `kill -9`.
    pub(crate) fn kill_one(&mut self) {
        let _ = self.workers[0].kill();
        let _ = self.workers[0].wait();
        self.killed.insert(0);
        self.killed_at = Some(Instant::now());
    }

    /// Whether the kill may have delayed a job that was due then: its worker had it, or was to have it, or
    /// the server was away.
    pub(crate) fn disturbed(&self, due: Instant) -> bool {
        self.killed_at.is_some_and(|killed| {
            due + Duration::from_secs(1) >= killed && due <= killed + LEASE + Duration::from_secs(1)
        })
    }

    pub(crate) fn killed(&self) -> HashSet<usize> {
        self.killed.clone()
    }

    pub(crate) fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// What a worker process does.
pub(crate) async fn work(queue: String) -> ExitCode {
    // Its parent's end is its own.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    let (url, name) = queue.split_once(' ').expect("a server and a name");
    let jobs = DelayedJobs::new(&Wheel::new(), connect(url).await, name)
        .partitions(PARTITIONS)
        .notifications(&Notifications::of(Client::open(url).expect("a URL")));
    let worker = jobs
        .worker()
        .lease(LEASE)
        .look_ahead(Duration::from_secs(1))
        .concurrency(64)
        .prefetch(1000)
        .start();
    worker
        .for_each_concurrent(64, async |job| match job {
            Ok(job) => handle(job).await,
            Err(error) => eprintln!("          worker {}: {error}", std::process::id()),
        })
        .await;
    ExitCode::SUCCESS
}

async fn handle(job: Job) {
    // The server is on this machine, and so has the same clock.
    let late = SystemTime::now().duration_since(job.due()).unwrap_or_default();
    let (id, attempt) = (job.id().to_owned(), job.attempt());
    say(&format!("got {id} {attempt} {}", late.as_micros()));
    tokio::time::sleep(Duration::from_millis(2)).await;
    let outcome = match job.done().await {
        Ok(true) => "done",
        Ok(false) => "lost",
        Err(_) => "unknown",
    };
    say(&format!("finished {id} {attempt} {outcome}"));
}

fn say(line: &str) {
    let mut output = io::stdout().lock();
    if writeln!(output, "{line}").is_err() {
        std::process::exit(0);
    }
}
