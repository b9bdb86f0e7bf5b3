//! How late jobs are while worker processes are restarted, killed and suspended.
//!
//!     cargo run --release -p tickwheel-redis-benches --bin restarts [-- --rate 200 --places 4 --look-ahead 0]
//!
//! Jobs of 5 ms are due at random times, `rate` of them in a second, and each worker is a process of its own that
//! receives `Notifications`. Ten of them are restarted one after the other, by an end that was asked for and then
//! by `kill -9`; then three of six are suspended. Jobs that a killed or suspended process had taken come after
//! its lease of 30 s and are not waited for: their number is in the last column.

use std::{
    collections::HashMap,
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use measure::runtime;
use redis::aio::ConnectionManager;
use support::{
    connect,
    server::{Server, signal},
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Notifications};
use tokio::time::sleep;

#[path = "../measure.rs"]
#[expect(dead_code, reason = "throughput is measured by the other programs")]
mod measure;
#[path = "../../../tests/support/mod.rs"]
mod support;

const MS: Duration = Duration::from_millis(1);
const QUEUE: &str = "restarts";
/// How long a job takes.
const TAKES: Duration = Duration::from_millis(5);
/// The time between two restarts.
const APART: Duration = Duration::from_millis(600);
/// How far ahead jobs are scheduled at most.
const AHEAD: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Options {
    rate: u32,
    places: usize,
    look_ahead: Duration,
    /// Of a process that is a worker.
    url: Option<String>,
}

fn options() -> Option<Options> {
    let mut options = Options {
        rate: 200,
        places: 4,
        look_ahead: Duration::ZERO,
        url: None,
    };
    let mut arguments = env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next()?;
        match &*option {
            "--rate" => options.rate = value.parse().ok()?,
            "--places" => options.places = value.parse().ok()?,
            "--look-ahead" => options.look_ahead = Duration::from_millis(value.parse().ok()?),
            "--url" => options.url = Some(value),
            _ => return None,
        }
    }
    Some(options)
}

async fn queue(url: &str) -> DelayedJobs<ConnectionManager> {
    let client = redis::Client::open(url).expect("a URL");
    DelayedJobs::new(&Wheel::new(), connect(url).await, QUEUE).notifications(&Notifications::of(client))
}

/// A worker process: says the id of each job and how many microseconds late it is, and ends with its input.
async fn work(url: &str, options: &Options) {
    let worker = queue(url).await.worker().look_ahead(options.look_ahead).start();
    let running = worker.run(options.places, async |job| {
        let late = SystemTime::now().duration_since(job.due()).unwrap_or_default();
        println!("{} {}", job.id(), late.as_micros());
        sleep(TAKES).await;
        Ok::<(), String>(())
    });
    let end = async {
        let end = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        let _ = end.await;
    };
    println!("ready");
    running.until(end).await.expect("a queue");
}

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    reader: JoinHandle<()>,
}

/// The worker processes, and how late each job was that one of them has begun.
struct Fleet {
    options: Options,
    url: String,
    processes: Vec<Process>,
    late: Arc<Mutex<HashMap<String, u64>>>,
}

impl Fleet {
    /// Starts a worker, and returns when it works.
    fn start_one(&mut self) -> Process {
        let options = &self.options;
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--url", &self.url, "--places", &options.places.to_string()])
            .args(["--look-ahead", &options.look_ahead.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("a line"), "ready");
        let late = self.late.clone();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let (id, micros) = line.split_once(' ').expect("an id and a time");
                let micros = micros.parse().expect("a number");
                late.lock()
                    .expect("a lock")
                    .entry(id.to_owned())
                    .or_insert(micros);
            }
        });
        Process { child, input, reader }
    }

    fn start(&mut self, processes: usize) {
        for _ in 0..processes {
            let process = self.start_one();
            self.processes.push(process);
        }
    }

    /// Replaces the process that has been there for longest.
    fn replace(&mut self, end: impl FnOnce(&mut Process)) {
        let mut process = self.processes.remove(0);
        end(&mut process);
        process.child.wait().expect("a child");
        process.reader.join().expect("a reader");
        let next = self.start_one();
        self.processes.push(next);
    }

    fn signal_half(&self, name: &str) {
        for process in self.processes.iter().take(self.processes.len() / 2) {
            signal(name, process.child.id());
        }
    }

    fn end(mut self) {
        for mut process in self.processes.drain(..) {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn ask_to_end(process: &mut Process) {
    let mut input = process.input.take().expect("an input");
    input.write_all(b"end\n").expect("a process that reads");
}

fn kill(process: &mut Process) {
    process.child.kill().expect("a process that runs");
}

/// Schedules jobs that are due within a time, while something happens to the fleet, and says how late they were.
async fn measure(
    name: &str,
    server: &Server,
    processes: usize,
    options: &Options,
    time: Duration,
    during: impl FnOnce(&mut Fleet) + Send + 'static,
) {
    let mut fleet = Fleet {
        options: options.clone(),
        url: server.url(),
        processes: Vec::new(),
        late: Arc::default(),
    };
    fleet.start(processes);
    let jobs = queue(&server.url()).await;
    jobs.counts().await.expect("a server");
    sleep(AHEAD).await;
    let happening = tokio::task::spawn_blocking(move || {
        during(&mut fleet);
        fleet
    });
    let (count, gap) = (
        time.as_millis() as u32 * options.rate / 1000,
        Duration::from_secs(1) / options.rate,
    );
    let began = SystemTime::now();
    for n in 0..count {
        let at = began + gap * n;
        if let Ok(wait) = at.duration_since(SystemTime::now()) {
            sleep(wait).await;
        }
        let delay = AHEAD.mul_f64(f64::from(n * 7919 % count) / f64::from(count));
        assert!(
            jobs.schedule(&format!("{name}-{n}"), delay, b"")
                .await
                .expect("an answer")
        );
    }
    let fleet = happening.await.expect("a fleet");
    let due = format!("tickwheel:jobs:{{{QUEUE}:0}}:due");
    while server.command::<u64>(&["ZCARD", &due]) > 0 {
        sleep(10 * MS).await;
    }
    sleep(200 * MS).await;
    let mut late: Vec<u64> = fleet.late.lock().expect("a lock").values().copied().collect();
    fleet.end();
    late.sort();
    let part = |part: f64| late[((late.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    println!(
        "{name:<12}{:>9.1}{:>9.1}{:>9.1}{:>9}{:>9}",
        part(0.5),
        part(0.99),
        part(1.0),
        late.len(),
        count as usize - late.len()
    );
    let _: () = server.command(&["FLUSHALL"]);
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: restarts [--rate 200] [--places 4] [--look-ahead 0]");
        return ExitCode::from(2);
    };
    runtime().block_on(async {
        if let Some(url) = &options.url {
            return work(url, &options).await;
        }
        println!("milliseconds late    p50      p99     most  begun     held");
        let server = Server::start();
        let restarts = |end: fn(&mut Process)| {
            move |fleet: &mut Fleet| {
                for _ in 0..fleet.processes.len() {
                    thread::sleep(APART);
                    fleet.replace(end);
                }
            }
        };
        let time = 7000 * MS;
        measure("undisturbed", &server, 10, &options, 3000 * MS, |_| {}).await;
        measure("ended", &server, 10, &options, time, restarts(ask_to_end)).await;
        measure("killed", &server, 10, &options, time, restarts(kill)).await;
        measure("suspended", &server, 6, &options, time, |fleet| {
            thread::sleep(1000 * MS);
            fleet.signal_half("STOP");
            thread::sleep(7000 * MS);
        })
        .await;
    });
    ExitCode::SUCCESS
}
