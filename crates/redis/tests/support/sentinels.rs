//! `Sentinels`: a master with two replicas, which three sentinels watch.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::{
    Client, RedisResult, Value,
    sentinel::{SentinelClient, SentinelServerType},
};

use super::{
    PATIENCE,
    folder::Folder,
    server::{Node, command, free_port, redis_server, server_program, signal, try_command},
};

const NAME: &str = "mymaster";

pub struct Sentinels {
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    folder: Folder,
}

impl Sentinels {
    /// Ready: every sentinel knows the others and both replicas, which follow the master.
    pub fn start() -> Sentinels {
        for _ in 0..5 {
            let mut sentinels = Sentinels {
                servers: Vec::new(),
                sentinels: Vec::new(),
                folder: Folder::new(),
            };
            if sentinels.run() {
                return sentinels;
            }
        }
        panic!("the sentinels cannot be started");
    }

    /// False where a port was taken by another process.
    fn run(&mut self) -> bool {
        for n in 0..3 {
            let port = free_port();
            let mut arguments = vec!["--repl-diskless-sync-delay".to_owned(), "0".to_owned()];
            if let Some(master) = self.servers.first() {
                arguments.extend([
                    "--replicaof".to_owned(),
                    "127.0.0.1".to_owned(),
                    master.port.to_string(),
                ]);
            }
            let mut server = Node::new(port);
            server.start(redis_server(
                port,
                &self.folder,
                &format!("server{n}"),
                &arguments,
            ));
            self.servers.push(server);
        }
        for n in 0..3 {
            let mut sentinel = Node::new(free_port());
            sentinel.start(self.sentinel(&format!("sentinel{n}"), sentinel.port));
            self.sentinels.push(sentinel);
        }
        let mut all = self.servers.iter_mut().chain(&mut self.sentinels);
        all.all(Node::answers) && self.becomes(Sentinels::is_whole)
    }

    fn sentinel(&self, name: &str, port: u16) -> Command {
        let (folder, master) = (self.folder.path(), self.servers[0].port);
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {folder}\npidfile {folder}/{name}.pid\n\
             sentinel monitor {NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {NAME} 2000\n\
             sentinel failover-timeout {NAME} 10000\n\
             sentinel parallel-syncs {NAME} 2\n",
            folder = folder.display(),
        );
        let file = folder.join(format!("{name}.conf"));
        fs::write(&file, settings).unwrap();
        let mut command = Command::new(server_program());
        command.arg(file).arg("--sentinel");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn becomes(&self, is_so: impl Fn(&Sentinels) -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if is_so(self) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn is_whole(&self) -> bool {
        self.sentinels.iter().all(|sentinel| {
            let state: std::collections::HashMap<String, String> =
                command(&sentinel.client(), &["SENTINEL", "MASTER", NAME]);
            state["flags"] == "master" && state["num-slaves"] == "2" && state["num-other-sentinels"] == "2"
        }) && self.is_followed(self.servers[0].port)
    }

    fn is_followed(&self, master: u16) -> bool {
        let state = replication(&self.client_of(master));
        state.matches("state=online").count() == 2
    }

    /// Waits until both other servers are replicas of this one.
    pub fn wait_until_followed(&self, master: u16) {
        assert!(
            self.becomes(|sentinels| sentinels.is_followed(master)),
            "the others do not follow"
        );
    }

    /// The master, as a sentinel says that lives.
    pub fn master(&self) -> u16 {
        let client = self.sentinel_that_lives();
        let (_, port): (String, u16) = command(&client, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        port
    }

    /// Waits until another than `old` is the master, and says so itself. Returns its port.
    pub fn next_master(&self, old: u16) -> u16 {
        let is_master = |port| port != old && replication(&self.client_of(port)).contains("role:master");
        assert!(
            self.becomes(|sentinels| is_master(sentinels.master())),
            "there is no other master"
        );
        self.master()
    }

    /// A client of the sentinels.
    pub fn client(&self) -> SentinelClient {
        self.client_of_name(NAME)
    }

    /// A client that asks for a master of this name.
    pub fn client_of_name(&self, name: &str) -> SentinelClient {
        let sentinels: Vec<String> = self.sentinels.iter().map(Node::url).collect();
        // By value, because that is what it takes unless redis is built with TLS.
        SentinelClient::build(sentinels, String::from(name), None, SentinelServerType::Master).unwrap()
    }

    pub fn client_of(&self, port: u16) -> Client {
        self.node(port).client()
    }

    /// The ports of the master and its replicas.
    pub fn servers(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port).collect()
    }

    /// The sentinel of that number, in the order in which clients ask them.
    pub fn sentinel_port(&self, number: usize) -> u16 {
        self.sentinels[number].port
    }

    /// Lets a master carry out nothing more that changes anything, and waits until both replicas have what it
    /// has acknowledged. Redis may lose that in a failover otherwise.
    pub fn settle(&self, master: u16) {
        let client = self.client_of(master);
        let _: () = command(&client, &["CLIENT", "PAUSE", "600000", "WRITE"]);
        let have_all = |_: &Sentinels| {
            let state = replication(&client);
            let field = |line: &str| {
                state
                    .lines()
                    .find_map(|it| Some(it.strip_prefix(line)?.to_owned()))
            };
            let offset = field("master_repl_offset:").unwrap();
            state.matches(&format!("offset={offset},")).count() == 2
        };
        assert!(self.becomes(have_all), "the replicas do not get everything");
    }

    /// Lets it go on.
    pub fn unsettle(&self, master: u16) {
        let _: () = command(&self.client_of(master), &["CLIENT", "UNPAUSE"]);
    }

    /// The sentinels promote a replica although the master lives.
    pub fn fail_over(&self) {
        let _: () = command(&self.sentinel_that_lives(), &["SENTINEL", "FAILOVER", NAME]);
    }

    fn sentinel_that_lives(&self) -> Client {
        let mut sentinels = self.sentinels.iter();
        let lives = sentinels.find(|sentinel| sentinel.is_running());
        lives.expect("a sentinel").client()
    }

    pub fn kill(&mut self, port: u16) {
        let mut nodes = self.servers.iter_mut().chain(&mut self.sentinels);
        nodes.find(|node| node.port == port).unwrap().kill();
    }

    pub fn stop(&self, port: u16) {
        signal("STOP", self.node(port).pid());
    }

    pub fn cont(&self, port: u16) {
        signal("CONT", self.node(port).pid());
    }

    fn node(&self, port: u16) -> &Node {
        let mut nodes = self.servers.iter().chain(&self.sentinels);
        nodes.find(|node| node.port == port).unwrap()
    }

    /// The channels of our crate to which a server has subscribers.
    pub fn channels(&self, port: u16) -> Vec<String> {
        command(&self.client_of(port), &["PUBSUB", "CHANNELS", "tickwheel:*"])
    }
}

/// What a server says of its replication: nothing while it changes its role.
fn replication(client: &Client) -> String {
    let state: RedisResult<Value> = try_command(client, &["INFO", "replication"]);
    state.map_or(String::new(), |state| redis::from_redis_value(state).unwrap())
}
