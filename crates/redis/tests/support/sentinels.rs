//! `Sentinels`: a master with two replicas, which three sentinels watch.

use std::{collections::HashMap, fs, process::Command};

use redis::sentinel::{SentinelClient, SentinelServerType};

use super::{
    becomes,
    folder::Folder,
    server::{Node, free_port, quiet, redis_server, server_program},
    until_blocking,
};

const NAME: &str = "mymaster";

pub struct Sentinels {
    /// The master and its replicas.
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
            let mut arguments = vec!["--repl-diskless-sync-delay".to_owned(), "0".to_owned()];
            if let Some(master) = self.servers.first() {
                let port = master.port().to_string();
                arguments.extend(["--replicaof".to_owned(), "127.0.0.1".to_owned(), port]);
            }
            let mut server = Node::new(free_port());
            server.spawn(redis_server(
                server.port(),
                &self.folder,
                &format!("server{n}"),
                &arguments,
            ));
            self.servers.push(server);
        }
        for n in 0..3 {
            let mut sentinel = Node::new(free_port());
            sentinel.spawn(self.sentinel(&format!("sentinel{n}"), sentinel.port()));
            self.sentinels.push(sentinel);
        }
        let mut all = self.servers.iter_mut().chain(&mut self.sentinels);
        all.all(Node::answers) && becomes(|| self.is_whole())
    }

    fn sentinel(&self, name: &str, port: u16) -> Command {
        let (folder, master) = (self.folder.path(), self.servers[0].port());
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
        let mut command = quiet(&server_program());
        command.arg(file).arg("--sentinel");
        command
    }

    fn is_whole(&self) -> bool {
        self.sentinels.iter().all(|sentinel| {
            let state: HashMap<String, String> = sentinel.command(&["SENTINEL", "MASTER", NAME]);
            state["flags"] == "master" && state["num-slaves"] == "2" && state["num-other-sentinels"] == "2"
        }) && self.is_followed(self.servers[0].port())
    }

    fn is_followed(&self, master: u16) -> bool {
        replication(self.node(master)).matches("state=online").count() == 2
    }

    /// Waits until both other servers are replicas of this one.
    pub fn wait_until_followed(&self, master: u16) {
        until_blocking(|| self.is_followed(master));
    }

    /// The port of the master, as a sentinel says that lives.
    pub fn master(&self) -> u16 {
        let (_, port): (String, u16) =
            self.any_sentinel()
                .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        port
    }

    /// Waits until another than `old` is the master, and says so itself. Returns its port.
    pub fn next_master(&self, old: u16) -> u16 {
        let is_master = |port| port != old && replication(self.node(port)).contains("role:master");
        until_blocking(|| is_master(self.master()));
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

    /// The master and its replicas.
    pub fn servers(&self) -> &[Node] {
        &self.servers
    }

    /// The sentinel of that number, in the order in which clients ask them.
    pub fn sentinel_port(&self, number: usize) -> u16 {
        self.sentinels[number].port()
    }

    /// Lets a master carry out nothing more that changes anything, and waits until both replicas have what it
    /// has acknowledged. Redis may lose that in a failover otherwise.
    pub fn settle(&self, master: u16) {
        let master = self.node(master);
        let _: () = master.command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
        until_blocking(|| {
            let state = replication(master);
            let mut lines = state.lines();
            let offset = lines.find_map(|line| line.strip_prefix("master_repl_offset:"));
            state.matches(&format!("offset={},", offset.unwrap())).count() == 2
        });
    }

    /// Lets it go on.
    pub fn unsettle(&self, master: u16) {
        let _: () = self.node(master).command(&["CLIENT", "UNPAUSE"]);
    }

    /// The sentinels promote a replica although the master lives.
    pub fn fail_over(&self) {
        let _: () = self.any_sentinel().command(&["SENTINEL", "FAILOVER", NAME]);
    }

    fn any_sentinel(&self) -> &Node {
        let mut sentinels = self.sentinels.iter();
        sentinels
            .find(|sentinel| sentinel.is_running())
            .expect("a sentinel")
    }

    pub fn kill(&mut self, port: u16) {
        let mut nodes = self.servers.iter_mut().chain(&mut self.sentinels);
        nodes.find(|node| node.port() == port).unwrap().kill();
    }

    /// A server or a sentinel.
    pub fn node(&self, port: u16) -> &Node {
        let mut nodes = self.servers.iter().chain(&self.sentinels);
        nodes.find(|node| node.port() == port).unwrap()
    }

    /// The channels of our crate to which a server has subscribers.
    pub fn channels(&self, port: u16) -> Vec<String> {
        self.node(port).command(&["PUBSUB", "CHANNELS", "tickwheel:*"])
    }
}

/// What a server says of its replication: nothing while it changes its role.
fn replication(server: &Node) -> String {
    server.try_command(&["INFO", "replication"]).unwrap_or_default()
}
