//! `Server`: one redis-server.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use redis::Client;

use super::{PATIENCE, folder::Folder};

/// One server's process on a port of its own, which is killed when this is dropped.
pub struct Node {
    pub port: u16,
    child: Option<Child>,
}

impl Node {
    /// A server that is yet to be started.
    pub fn new(port: u16) -> Node {
        Node { port, child: None }
    }

    pub fn start(&mut self, command: Command) {
        self.child = Some(start(command));
    }

    /// Whether it answers to a PING; false when it has ended.
    pub fn answers(&mut self) -> bool {
        let child = self.child.as_mut().expect("a server that was started");
        wait_for_answer(self.port, child)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).unwrap()
    }

    /// Its process, which may be sent signals.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct Server {
    node: Node,
    arguments: Vec<String>,
    own_clock: bool,
    folder: Folder,
}

impl Server {
    /// A server that keeps nothing.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// A server whose clock can be set.
    pub fn start_with_own_clock() -> Server {
        Server::start_as(&[], true)
    }

    /// A server that has written to its file what it acknowledges.
    pub fn start_aof() -> Server {
        Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        Server::start_as(arguments, false)
    }

    fn start_as(arguments: &[&str], own_clock: bool) -> Server {
        // The port is free now; another process may take it before the server does.
        for _ in 0..20 {
            let mut server = Server {
                node: Node::new(free_port()),
                arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                own_clock,
                folder: Folder::new(),
            };
            if own_clock {
                server.set_clock(0);
                compile_clock(server.folder.path());
            }
            if server.run() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    pub fn port(&self) -> u16 {
        self.node.port
    }

    pub fn url(&self) -> String {
        self.node.url()
    }

    pub fn client(&self) -> Client {
        self.node.client()
    }

    /// Its process, which may be sent signals.
    pub fn pid(&self) -> u32 {
        self.node.pid()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.node.kill();
        let _ = fs::remove_file(self.pid_file());
    }

    /// Starts a server that was killed, on the same port and files.
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        while !self.run() {
            assert!(Instant::now() < deadline, "redis-server does not start again");
        }
    }

    pub fn stop(&self) {
        signal("STOP", self.pid());
    }

    pub fn cont(&self) {
        signal("CONT", self.pid());
    }

    /// One command by a connection of its own, blocking.
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        command(&self.client(), words)
    }

    /// How many scripts it was asked to run.
    pub fn scripts_run(&self) -> u64 {
        scripts_run(&self.client())
    }

    /// Its clock.
    pub fn time(&self) -> SystemTime {
        let [seconds, micros]: [u64; 2] = self.command(&["TIME"]);
        UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    /// Sets the clock of a server that was started by [`Server::start_with_own_clock`], so many seconds off
    /// the machine's.
    pub fn set_clock(&self, seconds: i64) {
        let (new, file) = (self.folder.path().join("clock.new"), self.clock_file());
        fs::write(&new, format!("{seconds:+}")).unwrap();
        // At once: the server may read it at any moment.
        fs::rename(new, file).unwrap();
    }

    fn clock_file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.path().join("server.pid")
    }

    fn run(&mut self) -> bool {
        let mut command = redis_server(self.port(), &self.folder, "server", &self.arguments);
        if self.own_clock {
            command
                .env("LD_PRELOAD", self.folder.path().join("clock.so"))
                .env("CLOCK_OFFSET", self.clock_file());
        }
        self.node.start(command);
        let answers = self.node.answers();
        if !answers {
            self.kill();
        }
        answers
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Compiles `clock.c` to `clock.so` in this folder.
fn compile_clock(folder: &Path) {
    fs::write(folder.join("clock.c"), include_str!("clock.c")).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "clock.so", "clock.c"])
        .current_dir(folder)
        .status()
        .unwrap_or_else(|error| panic!("cc cannot be started ({error}): install Debian's gcc"));
    assert!(status.success(), "clock.c does not compile");
}

/// How many scripts a server was asked to run.
pub fn scripts_run(client: &Client) -> u64 {
    let stats: String = command(client, &["INFO", "commandstats"]);
    let calls = |name: &str| -> u64 {
        stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")))
            .map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

pub fn command<T: redis::FromRedisValue>(client: &Client, words: &[&str]) -> T {
    try_command(client, words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// For a server that may be about to end or to change its role, when it closes its connections.
pub fn try_command<T: redis::FromRedisValue>(client: &Client, words: &[&str]) -> redis::RedisResult<T> {
    let mut connection = client.get_connection()?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}

/// A script that keeps a server busy, which was started with a low `busy-reply-threshold`.
pub struct Busy {
    client: Client,
    script: thread::JoinHandle<redis::RedisResult<()>>,
}

/// When it returns, the server answers BUSY to all.
pub fn keep_busy(server: &Server) -> Busy {
    let client = server.client();
    let script = thread::spawn({
        let client = client.clone();
        move || {
            let mut connection = client.get_connection()?;
            redis::cmd("EVAL")
                .arg("while true do end")
                .arg(0)
                .exec(&mut connection)
        }
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut connection = client.get_connection().unwrap();
        let answer: redis::RedisResult<Option<String>> = redis::cmd("GET").arg("x").query(&mut connection);
        if answer.is_err_and(|error| error.code() == Some("BUSY")) {
            return Busy { client, script };
        }
        assert!(Instant::now() < deadline, "the server is not busy");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Busy {
    pub fn end(self) {
        let _: String = command(&self.client, &["SCRIPT", "KILL"]);
        assert!(self.script.join().unwrap().is_err());
    }
}

/// `kill -SIGNAL`, to a process that the test started.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status()
        .expect("kill");
    assert!(status.success(), "kill -s {name} {pid}");
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// `redis-server`, or the program that `TICKWHEEL_REDIS_SERVER` names, such as a `valkey-server`.
pub fn server_program() -> String {
    std::env::var("TICKWHEEL_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A `redis-server` yet to be started, which keeps its files in a folder of that name.
pub fn redis_server(port: u16, folder: &Folder, name: &str, arguments: &[String]) -> Command {
    let own = folder.path().join(name);
    fs::create_dir_all(&own).unwrap();
    let mut command = Command::new(server_program());
    command
        .args(["--port", &port.to_string()])
        .args(["--bind", "127.0.0.1"])
        .args(["--save", ""])
        .arg("--dir")
        .arg(&own)
        .arg("--pidfile")
        .arg(folder.path().join(format!("{name}.pid")))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn start(mut redis_server: Command) -> Child {
    redis_server.spawn().unwrap_or_else(|error| {
        let program = server_program();
        panic!(
            "{program} cannot be started ({error}): install Debian's redis-server and redis-tools, version 7"
        )
    })
}

/// Whether it answers to a PING; false when it has ended.
fn wait_for_answer(port: u16, child: &mut Child) -> bool {
    let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
            && let Ok(mut connection) = client.get_connection()
            && redis::cmd("PING").exec(&mut connection).is_ok()
        {
            // It is our server, and not another process's on the same port.
            return child.try_wait().unwrap().is_none();
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}
