//! `Link`: the connection on which messages arrive, from a server or a cluster.

use futures_util::{StreamExt, stream::BoxStream};
use redis::{
    Client, ErrorKind, Msg, PushInfo, PushKind, RedisResult, Value,
    aio::PubSubSink,
    cluster::{ClusterClient, ClusterConfig},
    cluster_async::ClusterConnection,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Server;
use crate::server::sentinel::Master;

pub(super) enum Link {
    Single {
        sink: PubSubSink,
        messages: BoxStream<'static, Msg>,
    },
    Cluster {
        connection: ClusterConnection,
        pushes: UnboundedReceiver<PushInfo>,
        client: Box<ClusterClient>,
    },
}

pub(super) enum Message {
    On(String),
    /// Messages on any channel may have been lost.
    Missed,
}

impl Link {
    pub(super) async fn open(server: &Server) -> RedisResult<Link> {
        match server {
            Server::Single(client) => Link::single(client).await,
            Server::Cluster(client) => Link::cluster(client).await,
            Server::Sentinel(master) => Link::master(master).await,
        }
    }

    async fn single(client: &Client) -> RedisResult<Link> {
        let (sink, messages) = client.get_async_pubsub().await?.split();
        Ok(Link::Single {
            sink,
            messages: messages.boxed(),
        })
    }

    /// Opens a connection that ends when there is another master.
    async fn master(master: &Master) -> RedisResult<Link> {
        let (client, watch) = master.find().await?;
        let (sink, messages) = client.get_async_pubsub().await?.split();
        let moved = async move { watch.moved().await };
        Ok(Link::Single {
            sink,
            messages: messages.take_until(moved).boxed(),
        })
    }

    async fn cluster(client: &ClusterClient) -> RedisResult<Link> {
        let (sender, pushes) = unbounded_channel();
        let config = ClusterConfig::new().set_push_sender(sender);
        let connection = client.get_async_connection_with_config(config).await?;
        Ok(Link::Cluster {
            connection,
            pushes,
            client: Box::new(client.clone()),
        })
    }

    /// Opens a connection to any node, because a message published on one node reaches all of them.
    async fn any_node(client: &ClusterClient) -> Option<Link> {
        let mut connection = client.get_async_connection().await.ok()?;
        let slots: Value = redis::cmd("CLUSTER")
            .arg("SLOTS")
            .query_async(&mut connection)
            .await
            .ok()?;
        for (host, port) in nodes(&slots) {
            let client = Client::open((host, port)).ok()?;
            if let Ok(link) = Link::single(&client).await {
                return Some(link);
            }
        }
        None
    }

    pub(super) async fn subscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        match self {
            Link::Single { sink, .. } => sink.subscribe(channels).await,
            Link::Cluster {
                connection, client, ..
            } => match connection.subscribe(channels).await {
                // Only this call reveals that the client does not use RESP3.
                Err(error) if error.kind() == ErrorKind::InvalidClientConfig => {
                    *self = Link::any_node(client).await.ok_or(error)?;
                    Box::pin(self.subscribe(channels)).await
                }
                answer => answer,
            },
        }
    }

    pub(super) async fn unsubscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        match self {
            Link::Single { sink, .. } => sink.unsubscribe(channels).await,
            Link::Cluster { connection, .. } => connection.unsubscribe(channels).await,
        }
    }

    /// Returns the next message, or `None` when the connection has ended.
    pub(super) async fn next(&mut self) -> Option<Message> {
        match self {
            Link::Single { messages, .. } => {
                let message = messages.next().await?;
                Some(Message::On(message.get_channel_name().to_owned()))
            }
            Link::Cluster { pushes, .. } => loop {
                let push = pushes.recv().await?;
                match (push.kind, push.data.first()) {
                    // The client also reports that it has renewed a subscription.
                    (PushKind::Message | PushKind::Subscribe, Some(Value::BulkString(channel))) => {
                        return Some(Message::On(String::from_utf8_lossy(channel).into_owned()));
                    }
                    (PushKind::Disconnection, _) => return Some(Message::Missed),
                    _ => {}
                }
            },
        }
    }

    pub(super) async fn ping(&mut self) -> RedisResult<()> {
        match self {
            Link::Single { sink, .. } => sink.ping::<Value>().await.map(drop),
            // Reaches every primary, and fails if one of them is silent.
            Link::Cluster { connection, .. } => redis::cmd("PING")
                .query_async::<Value>(connection)
                .await
                .map(drop),
        }
    }
}

/// The nodes in an answer to `CLUSTER SLOTS`: arrays that begin with a host and a port, somewhere within.
fn nodes(slots: &Value) -> Vec<(String, u16)> {
    let Value::Array(values) = slots else {
        return Vec::new();
    };
    if let [Value::BulkString(host), Value::Int(port), ..] = &values[..] {
        let host = String::from_utf8_lossy(host).into_owned();
        return u16::try_from(*port)
            .map(|port| (host, port))
            .into_iter()
            .collect();
    }
    values.iter().flat_map(nodes).collect()
}
