//! `Cluster`: three masters with a replica each.

use std::{
    ops::RangeInclusive,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use redis::{Client, ProtocolVersion, Value, cluster::ClusterClient, cluster_async::ClusterConnection};

use super::{
    PATIENCE,
    folder::Folder,
    server::{Node, command, free_port, redis_server, signal},
};

pub struct Cluster {
    nodes: Vec<Node>,
    folder: Folder,
    arguments: Vec<String>,
}

impl Cluster {
    /// Made by `redis-cli --cluster create`, and ready.
    pub fn start() -> Cluster {
        for _ in 0..5 {
            if let Some(cluster) = Cluster::try_start() {
                return cluster;
            }
        }
        panic!("the cluster cannot be made");
    }

    fn try_start() -> Option<Cluster> {
        let folder = Folder::new();
        let arguments: Vec<String> = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]
        .map(str::to_owned)
        .into();
        let mut nodes = Vec::new();
        for place in 0..6 {
            // The bus listens 10,000 above.
            let port = (0..1000).map(|_| free_port()).find(|port| *port < 55_000)?;
            let mut node = Node::new(port);
            node.start(redis_server(port, &folder, &format!("node{place}"), &arguments));
            if !node.answers() {
                return None;
            }
            nodes.push(node);
        }
        let cluster = Cluster {
            nodes,
            folder,
            arguments,
        };
        let output = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(
                cluster
                    .nodes
                    .iter()
                    .map(|node| format!("127.0.0.1:{}", node.port)),
            )
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| {
                panic!("redis-cli cannot be started ({error}): install Debian's redis-tools, version 7")
            });
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            return None;
        }
        let deadline = Instant::now() + PATIENCE;
        while !cluster.is_ready() {
            if Instant::now() > deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Some(cluster)
    }

    /// Every node sees a whole cluster, and every replica follows its master.
    fn is_ready(&self) -> bool {
        self.nodes.iter().all(|node| {
            let client = node.client();
            let state: String = command(&client, &["CLUSTER", "INFO"]);
            let slots: Value = command(&client, &["CLUSTER", "SLOTS"]);
            let role: String = command(&client, &["INFO", "replication"]);
            let whole = matches!(&slots, Value::Array(ranges) if ranges.len() == 3
                && ranges.iter().all(|range| matches!(range, Value::Array(parts) if parts.len() == 4)));
            let follows = role.contains("role:master") || role.contains("master_link_status:up");
            state.contains("cluster_state:ok") && whole && follows
        })
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| format!("redis://127.0.0.1:{}/", node.port))
            .collect()
    }

    pub fn client(&self) -> ClusterClient {
        self.client_with(Duration::from_secs(10))
    }

    fn client_with(&self, response_timeout: Duration) -> ClusterClient {
        ClusterClient::builder(self.urls())
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(Duration::from_secs(10))
            .response_timeout(response_timeout)
            .build()
            .unwrap()
    }

    pub async fn connect(&self) -> ClusterConnection {
        self.client().get_async_connection().await.unwrap()
    }

    pub async fn connect_with(&self, response_timeout: Duration) -> ClusterConnection {
        let client = self.client_with(response_timeout);
        client.get_async_connection().await.unwrap()
    }

    /// The port of the master of a key's slot, as the first node that lives says.
    pub fn master_of(&self, key: &str) -> u16 {
        let slot: i64 = command(&self.any(), &["CLUSTER", "KEYSLOT", key]);
        let owned = |range: &Range| range.slots.contains(&slot);
        self.ranges().into_iter().find(owned).expect("an owner").master
    }

    /// The ports of all masters.
    pub fn masters(&self) -> Vec<u16> {
        self.ranges().into_iter().map(|range| range.master).collect()
    }

    /// Starts a node that was killed, on the same port and files. Returns when every node sees a whole
    /// cluster again.
    pub fn restart(&mut self, port: u16) {
        let place = self.place_of(port);
        let command = redis_server(port, &self.folder, &format!("node{place}"), &self.arguments);
        self.nodes[place].start(command);
        assert!(self.nodes[place].answers(), "the node does not start again");
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready() {
            assert!(
                Instant::now() < deadline,
                "the cluster does not become whole again"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn place_of(&self, port: u16) -> usize {
        self.nodes.iter().position(|node| node.port == port).unwrap()
    }

    pub fn replica_of(&self, master: u16) -> u16 {
        let its = |range: &Range| range.master == master;
        self.ranges().into_iter().find(its).expect("a master").replica
    }

    fn ranges(&self) -> Vec<Range> {
        let slots: Vec<Value> = command(&self.any(), &["CLUSTER", "SLOTS"]);
        let port = |node: &Value| match node {
            Value::Array(parts) => match parts[1] {
                Value::Int(port) => u16::try_from(port).ok(),
                _ => None,
            },
            _ => None,
        };
        let range = |range: &Value| match range {
            Value::Array(parts) => match &parts[..] {
                [Value::Int(from), Value::Int(to), master, replica] => Some(Range {
                    slots: *from..=*to,
                    master: port(master)?,
                    replica: port(replica)?,
                }),
                _ => None,
            },
            _ => None,
        };
        slots.iter().filter_map(range).collect()
    }

    fn any(&self) -> Client {
        let node = self.nodes.iter().find(|node| node.is_running()).unwrap();
        node.client()
    }

    pub fn node(&self, port: u16) -> Client {
        self.nodes.iter().find(|node| node.port == port).unwrap().client()
    }

    fn node_mut(&mut self, port: u16) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.port == port).unwrap()
    }

    /// `kill -9` of a node; its replica takes over after the node timeout.
    pub fn kill(&mut self, port: u16) {
        self.node_mut(port).kill();
    }

    /// A master hands over to its replica when that has everything. Returns when it has.
    pub fn hand_over(&self, master: u16) {
        let replica = self.node(self.replica_of(master));
        let _: String = command(&replica, &["CLUSTER", "FAILOVER"]);
        let deadline = Instant::now() + PATIENCE;
        while !command::<String>(&replica, &["INFO", "replication"]).contains("role:master") {
            assert!(Instant::now() < deadline, "the replica does not take over");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// From now on a master's replica hears nothing of it any more, until [`cont`](Cluster::cont). Returns
    /// the replica's port.
    pub fn cut_off_replica(&self, master: u16) -> u16 {
        let replica = self.replica_of(master);
        signal("STOP", self.pid(replica));
        // What the master wrote to this connection would be read later.
        let cut: i64 = command(&self.node(master), &["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(cut, 1);
        replica
    }

    /// Suspends a node, whose connections stay open; its replica takes over after the node timeout.
    pub fn stop(&self, port: u16) {
        signal("STOP", self.pid(port));
    }

    pub fn cont(&self, port: u16) {
        signal("CONT", self.pid(port));
    }

    fn pid(&self, port: u16) -> u32 {
        let node = self.nodes.iter().find(|node| node.port == port).unwrap();
        node.pid()
    }

    /// What a node that was killed had written to its file, read by a server that is no part of the cluster.
    pub fn data_of_killed(&mut self, port: u16) -> Client {
        let place = self.place_of(port);
        let arguments = ["--appendonly", "yes"].map(str::to_owned);
        for _ in 0..20 {
            let port = free_port();
            let mut node = Node::new(port);
            node.start(redis_server(
                port,
                &self.folder,
                &format!("node{place}"),
                &arguments,
            ));
            let answers = node.answers();
            self.nodes[place] = node;
            if answers {
                return self.nodes[place].client();
            }
        }
        panic!("redis-server does not start");
    }
}

/// Slots, and the ports of those who have them.
struct Range {
    slots: RangeInclusive<i64>,
    master: u16,
    replica: u16,
}
