//! `Server`: one redis-server.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::Client;

use super::{PATIENCE, folder::Folder};

pub struct Server {
    port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
    folder: Folder,
}

impl Server {
    /// A server that keeps nothing.
    pub fn start() -> Server {
        Server::start_with(&[])
    }

    /// A server that has written to its file what it acknowledges.
    pub fn start_aof() -> Server {
        Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub fn start_with(arguments: &[&str]) -> Server {
        // The port is free now; another process may take it before the server does.
        for _ in 0..20 {
            let mut server = Server {
                port: free_port(),
                arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                child: None,
                folder: Folder::new(),
            };
            if server.run() {
                return server;
            }
        }
        panic!("redis-server does not start");
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

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_file(self.pid_file());
        }
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

    fn pid_file(&self) -> PathBuf {
        self.folder.path().join("server.pid")
    }

    fn run(&mut self) -> bool {
        let mut child = start_redis(self.port, &self.folder, "server", &self.arguments);
        let answers = wait_for_answer(self.port, &mut child);
        self.child = Some(child);
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

pub fn command<T: redis::FromRedisValue>(client: &Client, words: &[&str]) -> T {
    let mut connection = client.get_connection().unwrap();
    redis::cmd(words[0])
        .arg(&words[1..])
        .query(&mut connection)
        .unwrap_or_else(|error| panic!("{words:?}: {error}"))
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

pub fn start_redis(port: u16, folder: &Folder, name: &str, arguments: &[String]) -> Child {
    let own = folder.path().join(name);
    fs::create_dir_all(&own).unwrap();
    Command::new("redis-server")
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
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("redis-server cannot be started ({error}): install Debian's redis-server and redis-tools, version 7")
        })
}

/// Whether it answers to a PING; false when it has ended.
pub fn wait_for_answer(port: u16, child: &mut Child) -> bool {
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
