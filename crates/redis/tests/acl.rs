//! Users of Redis who may not do everything: what they may do works, and what they may not is a clear error.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use redis::{Client, ProtocolVersion, cluster::ClusterClient};
use support::{
    cluster::Cluster,
    connect,
    jobs::{Jobs, next},
    leases::{leases, listeners},
    server::{Server, command},
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, Connection, DelayedJobs, Error, Leases, Notifications};
use tokio::time::sleep;
use tracing::{Level, Metadata, Subscriber, span};

const MINUTE: Duration = Duration::from_secs(60);

/// The URL of a user with these rules, which begin with the right to do everything.
fn user(server: &Server, rules: &[&str]) -> String {
    let mut words = vec![
        "ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    words.extend(rules);
    let _: () = server.command(&words);
    format!("redis://worker:secret@127.0.0.1:{}/", server.port())
}

async fn queue(url: &str) -> Jobs {
    DelayedJobs::new(&Wheel::new(), connect(url).await, "queue")
}

/// Counts the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicU32>);

impl Warnings {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        tracing::subscriber::set_default(self.clone())
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("tickwheel_redis")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        if self.enabled(event.metadata()) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn a_user_without_channels_has_jobs() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _listening = warnings.listen();
    let jobs = queue(&user(&server, &["resetchannels"])).await;
    for id in ["done", "retried", "buried", "cancelled", "moved"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap(), "{id}");
    }
    assert!(jobs.reschedule("moved", MINUTE).await.unwrap());
    assert_eq!(jobs.cancel("cancelled").await.unwrap(), Cancelled::Waiting);
    let mut worker = jobs.worker().start();
    for _ in 0..3 {
        let job = next(&mut worker).await;
        let outcome = match job.id() {
            "done" => job.done().await,
            "retried" => job.retry_after(MINUTE).await,
            _ => job.bury().await,
        };
        assert!(outcome.unwrap());
    }
    // Another is claimed and given back.
    jobs.schedule("given back", Duration::ZERO, b"").await.unwrap();
    drop(worker);
    until(|| async { jobs.counts().await.unwrap().waiting == 3 }).await;
    assert!(jobs.revive("buried").await.unwrap());
    assert_eq!(warnings.count(), 1, "it is said once");
}

/// It hears messages, but nobody is told when it cancels a job.
#[tokio::test]
async fn a_worker_of_a_user_who_may_not_publish_learns_of_what_is_cancelled() {
    let server = Server::start();
    let url = user(&server, &["-publish"]);
    let jobs = queue(&url)
        .await
        .notifications(&Notifications::of(Client::open(url).unwrap()));
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().lease(60 * MINUTE).start();
    let job = next(&mut worker).await;
    until(|| async {
        let (_, listeners): (String, u64) =
            server.command(&["PUBSUB", "NUMSUB", "tickwheel:jobs:{queue:0}:sooner:renew"]);
        listeners == 1
    })
    .await;
    let lease_ends = || -> String { server.command(&["ZSCORE", "tickwheel:jobs:{queue:0}:running", "a"]) };
    let before = lease_ends();
    // It renews once in any case.
    until(|| async { lease_ends() != before }).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    soon(job.lost()).await;
}

#[tokio::test]
async fn a_user_without_channels_has_leases() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _listening = warnings.listen();
    let leases = leases(&user(&server, &["resetchannels"])).await;
    for _ in 0..3 {
        let lease = leases.acquire("x", MINUTE).await.unwrap();
        assert!(lease.release().await.unwrap());
    }
    assert_eq!(warnings.count(), 1, "it is said once");
}

#[tokio::test]
async fn a_user_without_info_or_script_has_everything() {
    let server = Server::start();
    let url = user(&server, &["-info", "-script"]);
    let jobs = queue(&url).await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    assert!(next(&mut jobs.worker().start()).await.done().await.unwrap());
    let _: () = server.command(&["SCRIPT", "FLUSH"]);
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    assert!(
        leases(&url)
            .await
            .try_acquire("x", MINUTE)
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_user_without_evalsha_is_told_so() {
    let server = Server::start();
    for missing in ["evalsha", "eval"] {
        let url = user(&server, &[&format!("-{missing}")]);
        let errors = [
            soon(queue(&url).await.schedule("a", MINUTE, b""))
                .await
                .unwrap_err(),
            soon(leases(&url).await.try_acquire("x", MINUTE))
                .await
                .unwrap_err(),
            soon(leases(&url).await.acquire("x", MINUTE)).await.unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Redis(_)), "{text}");
            assert!(
                text.contains("EVALSHA and EVAL") && text.contains(missing),
                "{text}"
            );
        }
    }
}

/// It is told so before anything is done by half, as with queues (`jobs_rights.rs`).
#[tokio::test]
async fn a_user_without_a_command_of_the_scripts_has_no_leases_and_is_told_so() {
    let server = Server::start();
    for missing in ["get", "set", "time", "exists"] {
        let url = user(&server, &[&format!("-{missing}")]);
        let error = soon(leases(&url).await.acquire("x", MINUTE)).await.unwrap_err();
        assert!(matches!(error, Error::Redis(_)), "{missing}: {error}");
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");
}

/// The commands of a row of the table of rights in operations.md, as rules for a user.
fn documented(row: &str) -> Vec<String> {
    let operations = include_str!("../docs/operations.md");
    let row = format!("| {row} | ");
    let line = operations
        .lines()
        .find_map(|line| line.strip_prefix(&row))
        .expect("a row");
    let (commands, _) = line.split_once(" |").expect("a column");
    let commands = commands.split('`').skip(1).step_by(2);
    commands
        .map(|command| format!("+{}", command.to_lowercase().replace(' ', "|")))
        .collect()
}

/// A user who has these rights and no others.
fn set_user_with(node: &Client, rights: &[String], keys: &str) {
    let mut words = vec!["ACL", "SETUSER", "worker", "reset", "on", ">secret", keys];
    words.extend(rights.iter().map(String::as_str));
    let _: () = command(node, &words);
}

/// Each call of a lease, while others wait for it.
async fn use_leases<C: Connection>(first: Leases<C>, second: Leases<C>) {
    let held = first.acquire("x", Duration::from_secs(3)).await.unwrap();
    let (token, end) = (held.token(), held.valid_until());
    assert_eq!(second.holder("x").await.unwrap().unwrap().token, token);
    assert!(second.try_acquire("x", MINUTE).await.unwrap().is_none());
    let waiting = tokio::spawn({
        let second = second.clone();
        async move { second.acquire("x", MINUTE).await }
    });
    // After a second, when the other has waited for long enough to be in the line.
    until(|| async { held.valid_until() > end }).await;
    assert!(held.release().await.unwrap());
    // Dropped, and given back midway.
    drop(soon(waiting).await.unwrap().unwrap());
    let lease = soon(first.acquire("x", MINUTE)).await.unwrap();
    assert!(lease.token() > token);
    assert!(lease.release().await.unwrap());
    assert!(second.acquire("x", MINUTE).now_or_never().is_none());
    assert!(
        soon(first.acquire("x", MINUTE))
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_user_with_the_documented_rights_has_leases() {
    let server = Server::start();
    set_user_with(&server.client(), &documented("leases"), "~tickwheel:lease:*");
    let url = format!("redis://worker:secret@127.0.0.1:{}/", server.port());
    use_leases(leases(&url).await, leases(&url).await).await;
}

#[tokio::test]
async fn a_user_with_the_documented_rights_has_leases_of_a_cluster() {
    let cluster = Cluster::start();
    let rights = [documented("leases"), documented("either in a cluster, also")].concat();
    for url in cluster.urls() {
        set_user_with(&Client::open(url).unwrap(), &rights, "~tickwheel:lease:*");
    }
    let client = ClusterClient::builder(cluster.urls())
        .username("worker")
        .password("secret")
        .response_timeout(Duration::from_secs(10))
        .build()
        .unwrap();
    let leases = async || Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
    use_leases(leases().await, leases().await).await;
}

fn connections(client: &Client) -> u64 {
    let stats: String = command(client, &["INFO", "stats"]);
    let count = |line: &str| line.strip_prefix("total_connections_received:")?.parse().ok();
    stats.lines().find_map(count).unwrap()
}

#[tokio::test]
async fn a_refused_subscription_is_tried_again_with_growing_pauses() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _listening = warnings.listen();
    let url = user(&server, &["resetchannels"]);
    let notifications = Notifications::of(Client::open(url.as_str()).unwrap());
    let holder = leases(&server.url()).await;
    let held = holder.acquire("x", MINUTE).await.unwrap();
    let waiting = leases(&url).await.notifications(&notifications);
    let before = connections(&server.client());
    let waiting = tokio::spawn(async move { waiting.acquire("x", MINUTE).await });
    let jobs = queue(&url).await.notifications(&notifications);
    let mut worker = jobs.worker().start();
    sleep(Duration::from_secs(5)).await;
    let made = connections(&server.client()) - before;
    assert!(made < 15, "{made} connections in 5 seconds");
    // What waits looks by itself.
    held.release().await.unwrap();
    drop(soon(waiting).await.unwrap().unwrap());
    queue(&server.url())
        .await
        .schedule("a", Duration::ZERO, b"")
        .await
        .unwrap();
    assert!(next(&mut worker).await.done().await.unwrap());
    // The subscription, publishing leases and publishing jobs: one each.
    assert!(
        (1..=3).contains(&warnings.count()),
        "{} warnings",
        warnings.count()
    );
}

#[tokio::test]
async fn one_forbidden_channel_forbids_no_other() {
    let server = Server::start();
    let url = user(&server, &["resetchannels", "&tickwheel:lease:{allowed}*"]);
    let notifications = Notifications::of(Client::open(url).unwrap());
    let leases = leases(&server.url()).await;
    let _held = [
        leases.acquire("allowed", MINUTE).await.unwrap(),
        leases.acquire("forbidden", MINUTE).await.unwrap(),
    ];
    let leases = leases.notifications(&notifications);
    let waiting = ["forbidden", "allowed"].map(|name| {
        let leases = leases.clone();
        tokio::spawn(async move { leases.acquire(name, MINUTE).await })
    });
    until(|| async { listeners(&server, "allowed") == 1 }).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// By RESP2, a cluster connection receives no messages.
#[tokio::test]
async fn a_client_of_resp2_works_without_messages_and_is_told_once() {
    let cluster = Cluster::start();
    let errors = Warnings::default();
    let _listening = errors.listen();
    let client = ClusterClient::new(cluster.urls()).unwrap();
    let notifications = Notifications::of_cluster(client.clone());
    for name in ["x", "y"] {
        let leases = Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
        let held = leases.acquire(name, MINUTE).await.unwrap();
        let other = Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
        let other = other.notifications(&notifications);
        let waiting = tokio::spawn(async move { other.acquire(name, MINUTE).await });
        until(|| async { errors.count() > 0 }).await;
        assert!(held.release().await.unwrap());
        drop(soon(waiting).await.unwrap().unwrap());
    }
    assert_eq!(errors.count(), 1);
}

#[tokio::test]
async fn a_cluster_with_a_password() {
    let cluster = Cluster::start();
    for url in cluster.urls() {
        let node = Client::open(url).unwrap();
        let _: () = command(&node, &["CONFIG", "SET", "masterauth", "secret"]);
        let _: () = command(&node, &["CONFIG", "SET", "requirepass", "secret"]);
    }
    let client = ClusterClient::builder(cluster.urls())
        .password("secret")
        .use_protocol(ProtocolVersion::RESP3)
        .response_timeout(Duration::from_secs(10))
        .build()
        .unwrap();
    let leases = Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
    let held = leases.acquire("x", MINUTE).await.unwrap();
    let notified = leases.clone().notifications(&Notifications::of_cluster(client));
    let waiting = tokio::spawn(async move { notified.acquire("x", MINUTE).await });
    let authenticated = cluster
        .urls()
        .into_iter()
        .map(|url| url.replace("redis://", "redis://:secret@"));
    let nodes: Vec<Client> = authenticated.map(|url| Client::open(url).unwrap()).collect();
    let channel = ["PUBSUB", "NUMSUB", "tickwheel:lease:{x}:released"];
    let is_heard = |node: &Client| command::<(String, u64)>(node, &channel).1 == 1;
    until(|| async { nodes.iter().any(is_heard) }).await;
    assert!(held.release().await.unwrap());
    drop(soon(waiting).await.unwrap().unwrap());
}
