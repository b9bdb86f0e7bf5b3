//! Users of Redis who may not do everything: what they may do works, and what they may not is a clear error.

mod support;

use redis::cluster::ClusterClient;
use support::prelude::*;
use tracing::{Level, Metadata, Subscriber, span};

/// Gives the user of the tests these rights and no others.
fn set_user(node: &Node, rules: &[impl AsRef<str>]) {
    let mut words = vec!["ACL", "SETUSER", "worker", "reset", "on", ">secret"];
    words.extend(rules.iter().map(AsRef::as_ref));
    let _: () = node.command(&words);
}

fn url(server: &Server) -> String {
    format!("redis://worker:secret@127.0.0.1:{}/", server.port())
}

/// The URL of a user with these rules, which begin with the right to do everything.
fn user(server: &Server, rules: &[&str]) -> String {
    set_user(server, &[&["~*", "&*", "+@all"], rules].concat());
    url(server)
}

async fn queue(url: &str) -> Jobs {
    unnotified(connect(url).await)
}

/// Counts the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
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
            self.0.fetch_add(1, SeqCst);
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
    put(&jobs, ["done", "retried", "buried", "cancelled", "moved"], NOW).await;
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
    put(&jobs, ["given back"], NOW).await;
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
    let notifications = Notifications::of(Client::open(&*url).unwrap());
    let jobs = queue(&url).await.notifications(&notifications);
    put(&jobs, ["a"], NOW).await;
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    until(|| async { server.listeners(&key("sooner:renew")) == 1 }).await;
    let lease_ends = || -> String { server.command(&["ZSCORE", &key("running"), "a"]) };
    let before = lease_ends();
    // It renews once in any case.
    until(|| async { lease_ends() != before }).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    soon(job.lost()).await;
}

/// Nobody is told in place of a worker that hears nothing.
#[tokio::test]
async fn a_worker_whose_channels_are_refused_later_watches_no_more() {
    let server = Server::start();
    let url = user(&server, &[]);
    let notifications = Notifications::of(Client::open(&*url).unwrap());
    let jobs = queue(&url).await.notifications(&notifications);
    let mut worker = jobs.worker().lease(HOUR).concurrency(2).start();
    let watchers = || entries(&server, "watching");
    idle_until(&mut worker, until(|| async { watchers() == 1 })).await;
    user(&server, &["resetchannels"]);
    let listeners = || server.listeners(&key("sooner:renew"));
    idle_until(&mut worker, until(|| async { listeners() == 0 })).await;
    idle_until(&mut worker, sleep(SECOND)).await;
    // Redis notices that the worker has not heard of it.
    put(&server.queue().await, ["a"], NOW).await;
    do_next(&mut worker).await;
    assert_eq!(watchers(), 0);
}

#[tokio::test]
async fn a_user_without_channels_has_leases() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _listening = warnings.listen();
    let leases = leases(&user(&server, &["resetchannels"])).await;
    for _ in 0..3 {
        use_once(&leases, "x").await;
    }
    assert_eq!(warnings.count(), 1, "it is said once");
}

#[tokio::test]
async fn a_user_without_info_or_script_has_everything() {
    let server = Server::start();
    let url = user(&server, &["-info", "-script"]);
    let jobs = queue(&url).await;
    put(&jobs, ["a"], NOW).await;
    do_next(&mut jobs.worker().start()).await;
    let _: () = server.command(&["SCRIPT", "FLUSH"]);
    put(&jobs, ["a"], NOW).await;
    assert!(try_acquire(&leases(&url).await, "x").await.is_some());
}

#[tokio::test]
async fn a_user_without_evalsha_is_told_so() {
    let server = Server::start();
    for missing in ["evalsha", "eval"] {
        let url = user(&server, &[&format!("-{missing}")]);
        for error in [
            soon(queue(&url).await.schedule("a", MINUTE, b""))
                .await
                .unwrap_err(),
            soon(leases(&url).await.try_acquire("x", MINUTE))
                .await
                .unwrap_err(),
            soon(leases(&url).await.acquire("x", MINUTE)).await.unwrap_err(),
        ] {
            assert_is!(error, Error::Redis(_));
            assert_says(&error, &["EVALSHA and EVAL", missing]);
        }
    }
}

/// It is told so before anything is done by half.
#[tokio::test]
async fn a_user_without_a_command_of_the_scripts_has_no_leases_and_is_told_so() {
    let server = Server::start();
    for missing in ["get", "set", "time", "exists"] {
        let url = user(&server, &[&format!("-{missing}")]);
        let error = soon(leases(&url).await.acquire("x", MINUTE)).await.unwrap_err();
        assert!(matches!(error, Error::Redis(_)), "{missing}: {error}");
    }
    assert_eq!(server.command::<u64>(&["DBSIZE"]), 0);
}

/// The commands and channels of a row of the table of rights in operations.md, as rules for a user.
fn documented(row: &str) -> Vec<String> {
    let operations = include_str!("../docs/operations.md");
    let row = format!("| {row} | ");
    let line = operations.lines().find_map(|line| line.strip_prefix(&row));
    let (commands, _) = line.expect("a row").split_once(" |").expect("a column");
    let words = commands.split('`').skip(1).step_by(2);
    let commands = words.filter(|word| !word.starts_with('&'));
    commands
        .map(|command| format!("+{}", command.to_lowercase().replace(' ', "|")))
        .collect()
}

/// Each call of a lease, while others wait for it.
async fn use_leases<C: Connection>(first: Leases<C>, second: Leases<C>) {
    let held = first.acquire("x", 3 * SECOND).await.unwrap();
    let token = held.token();
    assert_eq!(second.holder("x").await.unwrap().unwrap().token, token);
    assert!(try_acquire(&second, "x").await.is_none());
    let waiting = acquiring(&second, "x");
    // After a second, when the other has waited for long enough to be in the line.
    renewed(&held).await;
    release(held).await;
    // Dropped, and given back midway.
    drop(acquired(waiting).await);
    let lease = acquire(&first, "x").await;
    assert!(lease.token() > token);
    release(lease).await;
    assert!(second.acquire("x", MINUTE).now_or_never().is_none());
    use_once(&first, "x").await;
}

#[tokio::test]
async fn a_user_with_the_documented_rights_has_leases() {
    let server = Server::start();
    let keys = vec!["~tickwheel:lease:*".to_owned()];
    set_user(&server, &[documented("leases"), keys].concat());
    use_leases(leases(&url(&server)).await, leases(&url(&server)).await).await;
}

#[tokio::test]
async fn a_user_with_the_documented_rights_has_leases_of_a_cluster() {
    let cluster = Cluster::start();
    let rights = [documented("leases"), documented("either in a cluster, also")].concat();
    for node in cluster.nodes() {
        set_user(node, &[&rights[..], &["~tickwheel:lease:*".to_owned()]].concat());
    }
    let client = ClusterClient::builder(cluster.urls())
        .username("worker")
        .password("secret");
    let client = client.response_timeout(10 * SECOND).build().unwrap();
    let leases = async || leases_on(client.get_async_connection().await.unwrap());
    use_leases(leases().await, leases().await).await;
}

/// The queue of a user who may use a queue's keys, hear its messages, tell others, and run these commands.
async fn queue_with(server: &Server, commands: &[String]) -> Jobs {
    let messages = [
        documented("messages to others, also"),
        documented("`Notifications`"),
    ]
    .concat();
    let keys = ["~tickwheel:jobs:*", "&tickwheel:*"].map(str::to_owned);
    set_user(server, &[commands, &messages, &keys].concat());
    let url = url(server);
    let notifications = Notifications::of(Client::open(&*url).unwrap());
    queue(&url).await.notifications(&notifications)
}

#[tokio::test]
async fn a_user_with_the_documented_rights_can_make_every_call_of_a_queue() {
    let server = Server::start();
    let jobs = queue_with(&server, &documented("jobs")).await;
    put(&jobs, ["done", "retried", "snoozed", "buried", "dropped"], NOW).await;
    let in_an_hour = server.time() + HOUR;
    assert!(jobs.schedule_at("at", in_an_hour, &[1; 400 << 10]).await.unwrap());
    let _ = jobs.repeat("repeated", HOUR, HOUR, b"").await.unwrap();
    assert!(jobs.reschedule("at", NOW).await.unwrap());
    let mut worker = jobs.worker().lease(SECOND).time_limit(HOUR).start();
    for _ in 0..7 {
        let job = next(&mut worker).await;
        let ended = match job.id() {
            "retried" if job.attempt() == 1 => job.retry_after(HOUR).await,
            "snoozed" => job.snooze(HOUR).await,
            "buried" => job.bury().await,
            // It comes again when its lease has ended.
            "dropped" if job.attempt() == 1 => {
                drop(job);
                continue;
            }
            _ => job.done().await,
        };
        assert!(ended.unwrap());
    }
    assert_eq!(jobs.waiting(0, 10).await.unwrap().len(), 3);
    assert_eq!(jobs.dead(10).await.unwrap().len(), 1);
    assert!(jobs.revive("buried").await.unwrap());
    assert!(next(&mut worker).await.bury().await.unwrap());
    assert!(jobs.purge("buried").await.unwrap());
    let _ = jobs.cancel("retried").await.unwrap();
    jobs.sample().await.unwrap();
    drop(worker);
    until(|| async { jobs.counts().await.unwrap().running == 0 }).await;
}

#[tokio::test]
async fn a_user_with_the_documented_rights_can_operate_a_queue() {
    let server = Server::start();
    let jobs = queue_with(&server, &documented("jobs")).await.keep_dead(2, HOUR);
    put(&jobs, ["first", "second", "third", "cancelled"], NOW).await;
    let mut worker = worker(&jobs);
    let get = async |id: &str| jobs.get(id).await.unwrap().map(|job| job.state);
    for _ in 0..3 {
        let job = next(&mut worker).await;
        assert_eq!(get(job.id()).await, Some(JobState::Running));
        assert!(job.bury().await.unwrap());
    }
    assert_eq!(get("first").await, None, "two are kept");
    assert_eq!(get("third").await, Some(JobState::Dead));
    // Cancels a job that runs.
    let cancel = async |job: Job| {
        assert_eq!(jobs.cancel(job.id()).await.unwrap(), Cancelled::Running);
        soon(job.lost()).await;
        let id = job.id().to_owned();
        drop(job);
        until(|| async { get(&id).await.is_none() }).await;
    };
    cancel(next(&mut worker).await).await;
    assert!(jobs.pause().await.unwrap());
    assert!(jobs.counts().await.unwrap().paused);
    assert_eq!(jobs.revive_dead(1).await.unwrap(), 1);
    assert_eq!(jobs.purge_dead(10).await.unwrap(), 1);
    assert!(jobs.resume().await.unwrap());
    do_next(&mut worker).await;
    // A recurring job: new, the same, changed while it runs, and ended while it runs.
    let repeat = |every| jobs.repeat("repeated", NOW, every, b"");
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::New);
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::Same);
    let running = next(&mut worker).await;
    assert_eq!(repeat(2 * HOUR).await.unwrap(), Repeated::Changed);
    cancel(running).await;
    worker.close().await;
}

#[tokio::test]
async fn each_documented_right_of_a_queue_is_needed_and_its_lack_is_said_at_once() {
    let server = Server::start();
    let documented = documented("jobs");
    assert!(documented.len() > 15, "{documented:?}");
    for missing in documented.iter().filter(|command| !command.starts_with("+eval")) {
        let others = documented.iter().filter(|other| *other != missing).cloned();
        let jobs = queue_with(&server, &others.collect::<Vec<_>>()).await;
        let error = jobs.schedule("a", HOUR, b"").await.unwrap_err();
        assert_is!(error, Error::Redis(_));
        assert_says(&error, &[&missing[1..].to_uppercase()]);
    }
    assert_eq!(server.command::<u64>(&["DBSIZE"]), 0);
}

#[tokio::test]
async fn a_refused_subscription_is_tried_again_with_growing_pauses() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _listening = warnings.listen();
    let url = user(&server, &["resetchannels"]);
    let notifications = Notifications::of(Client::open(url.as_str()).unwrap());
    let held = acquire(&leases(&server.url()).await, "x").await;
    let connections = || -> u64 {
        let stats: String = server.command(&["INFO", "stats"]);
        let count = |line: &str| line.strip_prefix("total_connections_received:")?.parse().ok();
        stats.lines().find_map(count).unwrap()
    };
    let refused = leases(&url).await.notifications(&notifications);
    let before = connections();
    let waiting = acquiring(&refused, "x");
    let jobs = queue(&url).await.notifications(&notifications);
    let mut worker = jobs.worker().start();
    sleep(5 * SECOND).await;
    let made = connections() - before;
    assert!(made < 15, "{made} connections in 5 seconds");
    // What waits looks by itself.
    release(held).await;
    drop(acquired(waiting).await);
    put(&queue(&server.url()).await, ["a"], NOW).await;
    do_next(&mut worker).await;
    // The subscription, publishing leases and publishing jobs: one each.
    let warnings = warnings.count();
    assert!((1..=3).contains(&warnings), "{warnings} warnings");
}

#[tokio::test]
async fn one_forbidden_channel_forbids_no_other() {
    let server = Server::start();
    let url = user(&server, &["resetchannels", "&tickwheel:lease:{allowed}*"]);
    let notifications = Notifications::of(Client::open(url).unwrap());
    let leases = leases(&server.url()).await;
    let _allowed = acquire(&leases, "allowed").await;
    let _forbidden = acquire(&leases, "forbidden").await;
    let leases = leases.notifications(&notifications);
    let waiting = ["forbidden", "allowed"].map(|name| acquiring(&leases, name));
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
    let leases = async || leases_on(client.get_async_connection().await.unwrap());
    for name in ["x", "y"] {
        let held = acquire(&leases().await, name).await;
        let waiting = acquiring(&leases().await.notifications(&notifications), name);
        until(|| async { errors.count() > 0 }).await;
        release(held).await;
        drop(acquired(waiting).await);
    }
    assert_eq!(errors.count(), 1);
}

#[tokio::test]
async fn a_cluster_with_a_password() {
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        let mut connection = node.client().get_connection().unwrap();
        for setting in ["masterauth", "requirepass"] {
            redis::cmd("CONFIG")
                .arg(&["SET", setting, "secret"])
                .exec(&mut connection)
                .unwrap();
        }
    }
    let client = cluster.builder(10 * SECOND).password("secret").build().unwrap();
    let leases = leases_on(client.get_async_connection().await.unwrap());
    let held = acquire(&leases, "x").await;
    let waiting = acquiring(&leases.notifications(&Notifications::of_cluster(client)), "x");
    let authenticated = cluster
        .urls()
        .into_iter()
        .map(|url| url.replace("redis://", "redis://:secret@"));
    let nodes: Vec<Client> = authenticated.map(|url| Client::open(url).unwrap()).collect();
    let is_heard = |node: &Client| {
        let mut connection = node.get_connection().unwrap();
        let asked = redis::cmd("PUBSUB")
            .arg(&["NUMSUB", &lease_key("x", "released")])
            .query(&mut connection);
        let (_, count): (String, u64) = asked.unwrap();
        count == 1
    };
    until(|| async { nodes.iter().any(is_heard) }).await;
    release(held).await;
    drop(acquired(waiting).await);
}
