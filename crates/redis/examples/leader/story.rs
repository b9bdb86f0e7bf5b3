//! Starts the three candidates, suspends and kills leaders, and prints what the candidates say.

use std::{
    env,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{Failure, TTL};

/// How long a step of the story may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a candidate said.
struct Line {
    at: Duration,
    name: usize,
    what: String,
    token: u64,
}

struct Story {
    zero: Duration,
    lines: mpsc::Receiver<Line>,
}

const NAMES: [&str; 3] = ["A", "B", "C"];

pub(crate) fn story(url: &str) -> Result<(), Failure> {
    let zero = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let lease = format!("leader-{}", zero.as_micros());
    let (sender, lines) = mpsc::channel();
    let mut processes = Vec::new();
    for (place, name) in NAMES.iter().enumerate() {
        let mut child = Command::new(env::current_exe()?)
            .args(["--candidate", name, url, &lease])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        processes.push(Process(child));
        let sender = sender.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some(line) = parse(&line, place) else { continue };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut story = Story { zero, lines };
    println!("   time  process  event                          (ttl {TTL:?})");

    let (first, first_token) = story.until("a leader", |line| line.what == "leads")?;
    story.pause(TTL);
    story.tell(first, "<- SIGSTOP");
    signal("STOP", &processes[first].0)?;
    let (second, second_token) = story.until("another leader", |line| {
        line.what == "leads" && line.name != first
    })?;
    assert!(second_token > first_token, "tokens grow");
    story.tell(first, "<- SIGCONT");
    signal("CONT", &processes[first].0)?;
    story.until("the first to find out", |line| {
        line.name == first && line.what != "leads"
    })?;
    story.pause(TTL / 2);
    story.tell(second, "<- kill -9");
    processes[second].0.kill()?;
    let (third, third_token) =
        story.until("a third term", |line| line.what == "leads" && line.name != second)?;
    assert!(third_token > second_token, "tokens grow");
    println!(
        "\nthree terms, {} -> {} -> {}, with tokens that grow",
        NAMES[first], NAMES[second], NAMES[third]
    );
    Ok(())
}

fn parse(line: &str, name: usize) -> Option<Line> {
    let mut parts = line.split('\t');
    let at = Duration::from_micros(parts.next()?.parse().ok()?);
    let (_, what, token) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Line {
        at,
        name,
        what: what.to_owned(),
        token: token.parse().ok()?,
    })
}

impl Story {
    /// Prints what happens until something does.
    fn until(&mut self, what: &str, is_it: impl Fn(&Line) -> bool) -> Result<(usize, u64), Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self
                .lines
                .recv_timeout(left)
                .map_err(|_| format!("nothing came of {what} within {PATIENCE:?}"))?;
            let found = is_it(&line);
            let (name, token) = (line.name, line.token);
            self.print(line);
            if found {
                return Ok((name, token));
            }
        }
    }

    /// Prints what happens in a while.
    fn pause(&mut self, duration: Duration) {
        let deadline = Instant::now() + duration;
        while let Ok(line) = self
            .lines
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.print(line);
        }
    }

    fn print(&mut self, line: Line) {
        let token = if line.token == 0 {
            String::new()
        } else {
            format!("  token {}", line.token)
        };
        self.row(
            line.at.saturating_sub(self.zero),
            line.name,
            &format!("{}{token}", line.what),
        );
    }

    /// Prints what is done to a process.
    fn tell(&self, name: usize, what: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.row(now.saturating_sub(self.zero), name, what);
    }

    fn row(&self, at: Duration, name: usize, what: &str) {
        println!("{:>6.3}s  {}        {what}", at.as_secs_f64(), NAMES[name]);
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(name: &str, child: &Child) -> Result<(), Failure> {
    let status = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("kill -s {name} failed").into())
    }
}

/// A server that keeps nothing, on a free port of 127.0.0.1.
pub(crate) struct OwnServer {
    process: Process,
    port: u16,
}

impl OwnServer {
    pub(crate) fn start() -> Result<OwnServer, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir", "/tmp"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("redis-server cannot be started ({error}): install it (Debian: redis-server), or give --redis URL")
            })?;
        let mut server = OwnServer {
            process: Process(child),
            port,
        };
        let client = redis::Client::open(server.url())?;
        let deadline = Instant::now() + PATIENCE;
        while client.get_connection().is_err() {
            if Instant::now() > deadline || server.process.0.try_wait()?.is_some() {
                return Err("redis-server does not start".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}
