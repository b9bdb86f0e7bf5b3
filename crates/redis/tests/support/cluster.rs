//! `Cluster`: three masters with a replica each.

use std::{ops::RangeInclusive, process::Command, time::Duration};

use redis::{
    ProtocolVersion, Value,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
};

use super::{
    SECOND, becomes,
    folder::Folder,
    server::{Node, free_port, redis_server},
    until_blocking,
};

const ARGUMENTS: [&str; 12] = [
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
];

pub struct Cluster {
    nodes: Vec<Node>,
    folder: Folder,
}

impl Cluster {
    /// Made by `redis-cli --cluster create`, and ready.
    pub fn start() -> Cluster {
        let mut attempts = (0..5).filter_map(|_| Cluster::try_start());
        attempts.next().expect("the cluster cannot be made")
    }

    fn try_start() -> Option<Cluster> {
        let mut cluster = Cluster {
            nodes: Vec::new(),
            folder: Folder::new(),
        };
        for place in 0..6 {
            // The bus listens 10,000 above.
            let port = (0..1000).map(|_| free_port()).find(|port| *port < 55_000)?;
            cluster.nodes.push(Node::new(port));
            if !cluster.start_node(place) {
                return None;
            }
        }
        let addresses = cluster
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port()));
        let output = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap_or_else(|error| {
                panic!("redis-cli cannot be started ({error}): install Debian's redis-tools, version 7")
            });
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stdout));
            return None;
        }
        becomes(|| cluster.is_ready()).then_some(cluster)
    }

    fn start_node(&mut self, place: usize) -> bool {
        let port = self.nodes[place].port();
        let command = redis_server(port, &self.folder, &format!("node{place}"), &ARGUMENTS);
        self.nodes[place].start(command)
    }

    /// Every node sees a whole cluster, and every replica follows its master.
    fn is_ready(&self) -> bool {
        self.nodes.iter().all(|node| {
            let state: String = node.command(&["CLUSTER", "INFO"]);
            let slots: Value = node.command(&["CLUSTER", "SLOTS"]);
            let role: String = node.command(&["INFO", "replication"]);
            let whole = matches!(&slots, Value::Array(ranges) if ranges.len() == 3
                && ranges.iter().all(|range| matches!(range, Value::Array(parts) if parts.len() == 4)));
            let follows = role.contains("role:master") || role.contains("master_link_status:up");
            state.contains("cluster_state:ok") && whole && follows
        })
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// A client as the README has it, with this limit for an answer.
    pub fn builder(&self, response_timeout: Duration) -> ClusterClientBuilder {
        let builder = ClusterClient::builder(self.urls()).use_protocol(ProtocolVersion::RESP3);
        builder.response_timeout(response_timeout)
    }

    /// One that is patient with a loaded machine.
    pub fn client(&self) -> ClusterClient {
        let builder = self.builder(10 * SECOND).connection_timeout(10 * SECOND);
        builder.build().unwrap()
    }

    pub async fn connect(&self) -> ClusterConnection {
        self.client().get_async_connection().await.unwrap()
    }

    pub async fn connect_with(&self, response_timeout: Duration) -> ClusterConnection {
        let builder = self.builder(response_timeout).connection_timeout(10 * SECOND);
        builder.build().unwrap().get_async_connection().await.unwrap()
    }

    /// The port of the master of a key's slot, as the first node that lives says.
    pub fn master_of(&self, key: &str) -> u16 {
        let slot: i64 = self.any().command(&["CLUSTER", "KEYSLOT", key]);
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
        assert!(self.start_node(place), "the node does not start again");
        until_blocking(|| self.is_ready());
    }

    fn place_of(&self, port: u16) -> usize {
        let mut nodes = self.nodes.iter();
        nodes.position(|node| node.port() == port).unwrap()
    }

    pub fn replica_of(&self, master: u16) -> u16 {
        let its = |range: &Range| range.master == master;
        self.ranges().into_iter().find(its).expect("a master").replica
    }

    fn ranges(&self) -> Vec<Range> {
        // From, to, and of each node: its address, its port, and more.
        type Slots = (i64, i64, Vec<Value>, Vec<Value>);
        let port = |mut node: Vec<Value>| redis::from_redis_value(node.swap_remove(1)).ok();
        let slots: Vec<Value> = self.any().command(&["CLUSTER", "SLOTS"]);
        let range = |range: Value| {
            let (from, to, master, replica): Slots = redis::from_redis_value(range).ok()?;
            Some(Range {
                slots: from..=to,
                master: port(master)?,
                replica: port(replica)?,
            })
        };
        slots.into_iter().filter_map(range).collect()
    }

    fn any(&self) -> &Node {
        self.nodes.iter().find(|node| node.is_running()).unwrap()
    }

    pub fn node(&self, port: u16) -> &Node {
        &self.nodes[self.place_of(port)]
    }

    /// `kill -9` of a node; its replica takes over after the node timeout.
    pub fn kill(&mut self, port: u16) {
        let place = self.place_of(port);
        self.nodes[place].kill();
    }

    /// A master hands over to its replica when that has everything. Returns when it has.
    pub fn hand_over(&self, master: u16) {
        let replica = self.node(self.replica_of(master));
        let _: String = replica.command(&["CLUSTER", "FAILOVER"]);
        let role = || -> String { replica.command(&["INFO", "replication"]) };
        until_blocking(|| role().contains("role:master"));
    }

    /// From now on a master's replica hears nothing of it any more, until it is continued. Returns the replica's
    /// port.
    pub fn cut_off_replica(&self, master: u16) -> u16 {
        let replica = self.replica_of(master);
        self.node(replica).stop();
        // What the master wrote to this connection would be read later.
        let cut: i64 = self.node(master).command(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(cut, 1);
        replica
    }

    /// Waits until a replica of this master has what was written before, to the slot of `key` above all, which is
    /// written to.
    pub fn wait_for_replica(&self, master: u16, key: &str) {
        // WAIT waits for what its own connection has written.
        let mut connection = self.node(master).client().get_connection().unwrap();
        let mut written = redis::pipe();
        written.set(key, "").cmd("WAIT").arg(1).arg(30_000);
        let (_, replicas): (String, i64) = written.query(&mut connection).unwrap();
        assert_eq!(replicas, 1);
    }

    /// What a node that was killed had written to its file, read by a server that is no part of the cluster.
    pub fn data_of_killed(&mut self, port: u16) -> &Node {
        let place = self.place_of(port);
        for _ in 0..20 {
            let mut node = Node::new(free_port());
            let name = format!("node{place}");
            let command = redis_server(node.port(), &self.folder, &name, &["--appendonly", "yes"]);
            let answers = node.start(command);
            self.nodes[place] = node;
            if answers {
                return &self.nodes[place];
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
