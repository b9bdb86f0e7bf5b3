//! A process that is forked, as one whose virtual machine's snapshot is restored twice: both copies go on
//! from the same memory.

mod support;

use std::os::unix::process::parent_id;

use support::prelude::*;

#[test]
#[ignore = "a role of `copies_share_no_nonce`"]
fn copied() {
    let Some(url) = setting("url") else { return };
    // A connection for each runtime, because two processes cannot use the same one.
    let connection = Reconnecting::of(Client::open(url).unwrap());
    let (leases, jobs) = (leases_on(connection.clone()), unnotified(connection));
    runtime().block_on(async {
        use_once(&leases, "before").await;
        put(&jobs, ["before"], MINUTE).await;
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
    thread::sleep(MINUTE);
}

#[test]
fn copies_share_no_nonce() {
    let (folder, server) = (Folder::new(), Server::start());
    let library = compile(include_str!("support/fork.c"), folder.path(), "fork.so");
    let environment = [("LD_PRELOAD", library.to_str().unwrap())];
    let mut process = Process::start_in(&environment, "copied", &[("url", &server.url())]);
    let mut said = [process.line().unwrap(), process.line().unwrap()];
    said.sort();
    // Whether it holds the lease, and what it has done.
    assert_eq!(said, ["false 3 Waiting", "true 3 Waiting"]);
    let mut ids: Vec<String> = server.command(&["HKEYS", &key("payload")]);
    ids.sort();
    assert_eq!(ids, ["copy-1", "copy-2", "original-1", "original-2"]);
}
