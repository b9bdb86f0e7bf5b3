//! `Cluster`: three masters with a replica each.

use std::{
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use redis::{Client, ProtocolVersion, Value, cluster::ClusterClient, cluster_async::ClusterConnection};

use super::{
    PATIENCE,
    folder::Folder,
    server::{command, free_port, redis_server, start, wait_for_answer},
};

pub struct Cluster {
    nodes: Vec<Node>,
    _folder: Folder,
}

struct Node {
    port: u16,
    child: Option<Child>,
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
            let mut child = start(redis_server(port, &folder, &format!("node{place}"), &arguments));
            let answers = wait_for_answer(port, &mut child);
            nodes.push(Node {
                port,
                child: Some(child),
            });
            if !answers {
                return None;
            }
        }
        let cluster = Cluster {
            nodes,
            _folder: folder,
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
        ClusterClient::builder(self.urls())
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(Duration::from_secs(10))
            .response_timeout(Duration::from_secs(10))
            .build()
            .unwrap()
    }

    pub async fn connect(&self) -> ClusterConnection {
        self.client().get_async_connection().await.unwrap()
    }

    /// The port of the master of a key's slot, as the first node that lives says.
    pub fn master_of(&self, key: &str) -> u16 {
        let node = self.nodes.iter().find(|node| node.child.is_some()).unwrap();
        let slot: i64 = command(&node.client(), &["CLUSTER", "KEYSLOT", key]);
        let slots: Vec<Value> = command(&node.client(), &["CLUSTER", "SLOTS"]);
        for range in slots {
            let Value::Array(parts) = range else { continue };
            let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = &parts[..] else {
                continue;
            };
            if (*from..=*to).contains(&slot)
                && let Some(Value::Int(port)) = master.get(1)
            {
                return u16::try_from(*port).unwrap();
            }
        }
        panic!("nobody has slot {slot}");
    }

    /// `kill -9` of a node; its replica takes over after the node timeout.
    pub fn kill(&mut self, port: u16) {
        let node = self.nodes.iter_mut().find(|node| node.port == port).unwrap();
        node.end();
    }
}

impl Node {
    fn client(&self) -> Client {
        Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}
