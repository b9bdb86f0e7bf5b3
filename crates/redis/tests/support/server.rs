//! `Server`: one redis-server; and `Node`, one of several.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use redis::{Client, FromRedisValue, RedisResult, aio::ConnectionManager};

use super::{PATIENCE, connect, folder::Folder, until_blocking};

/// One server's process on a port of its own, which is killed when this is dropped.
pub struct Node {
    port: u16,
    child: Option<Child>,
}

impl Node {
    /// A server that is yet to be started.
    pub fn new(port: u16) -> Node {
        Node { port, child: None }
    }

    /// Starts it, and says whether it answers; false when it has ended, or another has its port.
    pub fn start(&mut self, command: Command) -> bool {
        self.spawn(command);
        self.answers()
    }

    pub fn spawn(&mut self, mut command: Command) {
        self.child = Some(command.spawn().unwrap_or_else(|error| {
            let program = server_program();
            panic!("{program} cannot be started ({error}): install Debian's redis-server and redis-tools, version 7")
        }));
    }

    pub fn answers(&mut self) -> bool {
        let (port, client) = (self.port, self.client());
        let child = self.child.as_mut().expect("a server that was started");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
                && let Ok(mut connection) = client.get_connection()
                // Not while it loads its files, when it answers to INFO.
                && redis::cmd("PING").exec(&mut connection).is_ok()
                && let Ok(info) = redis::cmd("INFO").arg("server").query::<String>(&mut connection)
            {
                // Another process may have taken the port, and ours not have ended yet.
                return info.contains(&format!("process_id:{}\r\n", child.id()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub fn port(&self) -> u16 {
        self.port
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

    /// Suspends it. Its connections stay open, as those of a machine that has vanished do.
    pub fn stop(&self) {
        signal("STOP", self.pid());
    }

    pub fn cont(&self) {
        signal("CONT", self.pid());
    }

    /// A connection that reconnects quickly and has no timeout of its own.
    pub async fn connect(&self) -> ConnectionManager {
        connect(&self.url()).await
    }

    /// One command by a connection of its own, blocking.
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let answer = self.try_command(words);
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// For a server that may be about to end or to change its role, when it closes its connections.
    pub fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection = self.client().get_connection()?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// A setting of its configuration.
    pub fn set(&self, name: &str, value: &str) {
        let _: () = self.command(&["CONFIG", "SET", name, value]);
    }

    pub fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key])
    }

    pub fn delete(&self, keys: &[&str]) {
        let deleted: usize = self.command(&[&["DEL"], keys].concat());
        assert_eq!(deleted, keys.len(), "{keys:?}");
    }

    /// How many connections listen to a channel.
    pub fn listeners(&self, channel: &str) -> u64 {
        let (_, count): (String, u64) = self.command(&["PUBSUB", "NUMSUB", channel]);
        count
    }

    /// How often a command was called, by scripts too.
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// How many scripts it was asked to run.
    pub fn scripts_run(&self) -> u64 {
        self.calls("evalsha") + self.calls("eval")
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

impl Deref for Server {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
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
                compile(include_str!("clock.c"), server.folder.path(), "clock.so");
            }
            if server.run() {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.node.kill();
        let _ = fs::remove_file(self.folder.path().join("server.pid"));
    }

    /// Starts a server that was killed, on the same port and files.
    pub fn restart(&mut self) {
        self.kill();
        until_blocking(|| self.run());
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

    fn run(&mut self) -> bool {
        let mut command = redis_server(self.port(), &self.folder, "server", &self.arguments);
        if self.own_clock {
            command
                .env("LD_PRELOAD", self.folder.path().join("clock.so"))
                .env("CLOCK_OFFSET", self.clock_file());
        }
        let answers = self.node.start(command);
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

/// Compiles C to a library in this folder, and returns its path.
pub fn compile(source: &str, folder: &Path, library: &str) -> PathBuf {
    fs::write(folder.join("source.c"), source).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", library, "source.c"])
        .current_dir(folder)
        .status()
        .unwrap_or_else(|error| panic!("cc cannot be started ({error}): install Debian's gcc"));
    assert!(status.success(), "{library} does not compile");
    folder.join(library)
}

/// `kill -SIGNAL`, to a process that the test started.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.expect("kill").success(), "kill -s {name} {pid}");
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
pub fn redis_server(port: u16, folder: &Folder, name: &str, arguments: &[impl AsRef<str>]) -> Command {
    let own = folder.path().join(name);
    fs::create_dir_all(&own).unwrap();
    let mut command = quiet(&server_program());
    command
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
        ])
        .arg(&own)
        .arg("--pidfile")
        .arg(folder.path().join(format!("{name}.pid")))
        .args(arguments.iter().map(AsRef::as_ref));
    command
}

/// A program that reads and says nothing.
pub fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}
