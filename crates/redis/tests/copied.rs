//! A process that is forked, as one whose virtual machine's snapshot is restored twice: both copies go on
//! from the same memory.

use std::{os::unix::process::parent_id, process::Command, time::Duration};

use redis::{Client, Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use support::{
    folder::Folder,
    process::{Process, die_with_parent, say, setting},
    server::Server,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Leases};
use tokio::runtime::{Builder, Runtime};

mod support;

const MINUTE: Duration = Duration::from_secs(60);

/// A connection for each command, because two processes cannot use the same one.
#[derive(Clone)]
struct EachTime(Client);

impl ConnectionLike for EachTime {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let mut connection = self.0.get_multiplexed_async_connection().await?;
            connection.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let mut connection = self.0.get_multiplexed_async_connection().await?;
            connection.req_packed_commands(pipeline, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
#[ignore = "a role of `copies_share_no_nonce`"]
fn copied() {
    let Some(url) = setting("url") else { return };
    let (wheel, connection) = (Wheel::new(), EachTime(Client::open(url).unwrap()));
    let leases = Leases::new(&wheel, connection.clone());
    let jobs = DelayedJobs::new(&wheel, connection, "q");
    runtime().block_on(async {
        let lease = leases.acquire("before", MINUTE).await.unwrap();
        assert!(lease.release().await.unwrap());
        assert!(jobs.schedule("before", MINUTE, b"").await.unwrap());
        assert_eq!(jobs.cancel("before").await.unwrap(), Cancelled::Waiting);
    });
    // Zero in the copy.
    let copy = parent_id() == 0;
    die_with_parent();
    let name = if copy { "copy" } else { "original" };
    runtime().block_on(async {
        let lease = leases.try_acquire("x", MINUTE).await.unwrap();
        let mut scheduled = 0;
        for n in 0..3 {
            let id = format!("{name}-{n}");
            scheduled += u8::from(jobs.schedule(&id, MINUTE, b"").await.unwrap());
        }
        let cancelled = jobs.cancel(&format!("{name}-0")).await.unwrap();
        say(&format!("{} {scheduled} {cancelled:?}", lease.is_some()));
        // It is not released before the other copy has asked for it.
        std::mem::forget(lease);
    });
    if copy {
        std::process::exit(0);
    }
    std::thread::sleep(MINUTE);
}

#[test]
fn copies_share_no_nonce() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("fork.c"), include_str!("support/fork.c")).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "fork.so", "fork.c"])
        .current_dir(folder.path())
        .status()
        .unwrap_or_else(|error| panic!("cc cannot be started ({error}): install Debian's gcc"));
    assert!(compiled.success(), "fork.c does not compile");
    let library = folder.path().join("fork.so");
    let server = Server::start();
    let mut process = Process::start_in(
        &[("LD_PRELOAD", library.to_str().unwrap())],
        "copied",
        &[("url", &server.url())],
    );
    let mut said = [process.line().unwrap(), process.line().unwrap()];
    said.sort();
    assert_eq!(
        said,
        ["false 3 Waiting", "true 3 Waiting"],
        "whether it holds the lease, and what it has done"
    );
    let mut ids: Vec<String> = server.command(&["HKEYS", "tickwheel:jobs:{q:0}:payload"]);
    ids.sort();
    assert_eq!(ids, ["copy-1", "copy-2", "original-1", "original-2"]);
}
