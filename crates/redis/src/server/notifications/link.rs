//! `Link`: the connection on which messages arrive, from a server or a cluster.

use futures_util::{StreamExt, stream::BoxStream};
use redis::{
    Client, Msg, PushInfo, PushKind, RedisResult, Value,
    aio::PubSubSink,
    cluster::{ClusterClient, ClusterConfig},
    cluster_async::ClusterConnection,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::server::sentinel::Master;

/// Where messages come from.
#[derive(Clone)]
pub(super) enum Endpoint {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
    Sentinel(Master),
}

pub(super) enum Link {
    Single {
        sink: PubSubSink,
        messages: BoxStream<'static, Msg>,
    },
    Cluster {
        connection: ClusterConnection,
        pushes: UnboundedReceiver<PushInfo>,
    },
}

pub(super) enum Message {
    On(String),
    /// Messages on any channel may have been lost.
    Missed,
}

impl Link {
    pub(super) async fn open(endpoint: &Endpoint) -> RedisResult<Link> {
        let link = |sink, messages| Link::Single { sink, messages };
        match endpoint {
            Endpoint::Single(client) => {
                let (sink, messages) = client.get_async_pubsub().await?.split();
                Ok(link(sink, messages.boxed()))
            }
            Endpoint::Sentinel(master) => {
                let (client, mastership) = master.find().await?;
                let (sink, messages) = client.get_async_pubsub().await?.split();
                // The connection ends when there is another master.
                let ended = async move { mastership.ended().await };
                Ok(link(sink, messages.take_until(ended).boxed()))
            }
            Endpoint::Cluster(client) => {
                let (sender, pushes) = unbounded_channel();
                let config = ClusterConfig::new().set_push_sender(sender);
                let connection = client.get_async_connection_with_config(config).await?;
                Ok(Link::Cluster { connection, pushes })
            }
        }
    }

    pub(super) async fn subscribe(&mut self, channels: &[String]) -> RedisResult<()> {
        match self {
            Link::Single { sink, .. } => sink.subscribe(channels).await,
            Link::Cluster { connection, .. } => connection.subscribe(channels).await,
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
