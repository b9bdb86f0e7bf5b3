//! A user (ACL) with exactly the rights that docs/operations.md lists for queues can make every call of a queue.

mod support;

use std::time::Duration;

use support::{
    connect,
    jobs::{Jobs, next},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, JobState, Notifications, Repeated};

const HOUR: Duration = Duration::from_secs(3600);

/// The commands of a row of the table of rights in operations.md.
fn documented(row: &str) -> Vec<String> {
    let docs = include_str!("../docs/operations.md");
    let row = format!("| {row} | ");
    let row = docs
        .lines()
        .find_map(|line| line.strip_prefix(&row))
        .expect("a row");
    let (commands, _) = row.split_once(" |").expect("a column");
    commands
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// A client of a user who may use a queue's keys, hear its messages, and run these commands.
fn user(server: &Server, commands: &[String]) -> redis::Client {
    let messages = documented("messages to others, also");
    let hearing = documented("`Notifications`");
    let rights = [commands, &messages, &hearing].concat();
    let mut words = [
        "ACL",
        "SETUSER",
        "worker",
        "reset",
        "on",
        ">secret",
        "~tickwheel:jobs:*",
        "&tickwheel:*",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend(
        rights
            .iter()
            .filter(|right| !right.starts_with('&'))
            .map(|command| format!("+{}", command.to_lowercase())),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _: () = server.command(&words);
    redis::Client::open(format!("redis://worker:secret@127.0.0.1:{}/", server.port())).unwrap()
}

async fn queue(client: redis::Client) -> Jobs {
    let address = client.get_connection_info().addr().to_string();
    let connection = connect(&format!("redis://worker:secret@{address}/")).await;
    DelayedJobs::new(&Wheel::new(), connection, "q").notifications(&Notifications::of(client))
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_every_call() {
    let server = Server::start();
    let jobs = queue(user(&server, &documented("jobs"))).await;
    for id in ["done", "retried", "snoozed", "buried", "dropped"] {
        assert!(
            jobs.schedule(id, Duration::ZERO, b"payload").await.unwrap(),
            "{id}"
        );
    }
    assert!(
        jobs.schedule_at("at", server.time() + HOUR, &[1; 400 << 10])
            .await
            .unwrap()
    );
    let _ = jobs.repeat("repeated", HOUR, HOUR, b"").await.unwrap();
    assert!(jobs.reschedule("at", Duration::ZERO).await.unwrap());
    let worker = || {
        jobs.worker()
            .lease(Duration::from_secs(1))
            .time_limit(HOUR)
            .start()
    };
    let mut first = worker();
    for _ in 0..7 {
        let job = next(&mut first).await;
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
    assert!(next(&mut first).await.bury().await.unwrap());
    assert!(jobs.purge("buried").await.unwrap());
    let _ = jobs.cancel("retried").await.unwrap();
    jobs.sample().await.unwrap();
    drop(first);
    until(|| async { jobs.counts().await.unwrap().running == 0 }).await;
}

#[tokio::test]
async fn they_are_enough_for_what_an_operator_does() {
    let server = Server::start();
    let jobs = queue(user(&server, &documented("jobs"))).await.keep_dead(2, HOUR);
    for id in ["first", "second", "third", "cancelled"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap(), "{id}");
    }
    let mut worker = jobs.worker().lease(HOUR).start();
    for _ in 0..3 {
        let job = next(&mut worker).await;
        assert_eq!(
            jobs.get(job.id()).await.unwrap().unwrap().state,
            JobState::Running
        );
        assert!(job.bury().await.unwrap());
    }
    assert_eq!(jobs.get("first").await.unwrap(), None, "two are kept");
    assert_eq!(jobs.get("third").await.unwrap().unwrap().state, JobState::Dead);
    let cancelled = next(&mut worker).await;
    assert_eq!(jobs.cancel("cancelled").await.unwrap(), Cancelled::Running);
    soon(cancelled.lost()).await;
    drop(cancelled);
    until(|| async { jobs.get("cancelled").await.unwrap().is_none() }).await;
    assert!(jobs.pause().await.unwrap());
    assert!(jobs.counts().await.unwrap().paused);
    assert_eq!(jobs.revive_dead(1).await.unwrap(), 1);
    assert_eq!(jobs.purge_dead(10).await.unwrap(), 1);
    assert!(jobs.resume().await.unwrap());
    assert!(next(&mut worker).await.done().await.unwrap());
    // A recurring job: new, the same, changed while it runs, and ended while it runs.
    let repeat = |every| jobs.repeat("repeated", Duration::ZERO, every, b"");
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::New);
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::Same);
    let running = next(&mut worker).await;
    assert_eq!(repeat(2 * HOUR).await.unwrap(), Repeated::Changed);
    assert_eq!(jobs.cancel("repeated").await.unwrap(), Cancelled::Running);
    soon(running.lost()).await;
    drop(running);
    until(|| async { jobs.get("repeated").await.unwrap().is_none() }).await;
    worker.close().await;
}

#[tokio::test]
async fn each_of_them_is_needed_and_its_lack_is_said_at_once() {
    let server = Server::start();
    let documented = documented("jobs");
    assert!(documented.len() > 15, "{documented:?}");
    for missing in documented.iter().filter(|command| !command.starts_with("EVAL")) {
        let others: Vec<String> = documented
            .iter()
            .filter(|other| *other != missing)
            .cloned()
            .collect();
        let jobs = queue(user(&server, &others)).await;
        let error = jobs.schedule("a", HOUR, b"").await.unwrap_err();
        assert!(
            matches!(error, Error::Redis(_)) && error.to_string().contains(missing),
            "{missing}: {error}"
        );
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");
}
