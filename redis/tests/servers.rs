//! The servers of the tests are what they are said to be, and go when they should.

mod support;

use std::{path::Path, time::Duration};

use support::{
    cluster::Cluster,
    process::{Process, say, setting},
    server::Server,
    until,
};

fn is_running(pid: &str) -> bool {
    // A zombie has ended.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

#[test]
fn an_aof_server_keeps_what_it_acknowledged() {
    let mut server = Server::start_aof();
    let _: () = server.command(&["SET", "a", "1"]);
    server.kill();
    server.restart();
    assert_eq!(server.command::<String>(&["GET", "a"]), "1");
}

#[test]
fn a_cluster_survives_a_master() {
    let mut cluster = Cluster::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut connection = cluster.connect().await;
        redis::cmd("SET")
            .arg("a")
            .arg(1)
            .exec_async(&mut connection)
            .await
            .unwrap();
        cluster.kill(cluster.master_of("a"));
        until(|| {
            let mut connection = connection.clone();
            async move {
                let mut set = redis::cmd("SET");
                set.arg("a").arg(2).exec_async(&mut connection).await.is_ok()
            }
        })
        .await;
    });
}

/// Starts a server, says where, and waits to be killed.
#[test]
#[ignore = "a role of another test"]
fn keeper_of_a_server() {
    if setting("SERVER").is_none() {
        return;
    }
    let server = Server::start();
    let folder: Vec<String> = server.command(&["CONFIG", "GET", "dir"]);
    say(&server.pid().to_string());
    say(&folder[1]);
    std::thread::sleep(Duration::from_secs(600));
}

#[tokio::test]
async fn a_killed_test_leaves_nothing() {
    let mut keeper = Process::start("keeper_of_a_server", &[("SERVER", "")]);
    let (pid, folder) = (keeper.line().unwrap(), keeper.line().unwrap());
    assert!(is_running(&pid));
    assert!(Path::new(&folder).exists());
    keeper.kill();
    until(|| async { !is_running(&pid) && !Path::new(&folder).parent().unwrap().exists() }).await;
}

#[test]
fn a_test_that_panics_leaves_nothing() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let panicked = std::thread::spawn(move || {
        let server = Server::start();
        sender.send(server.pid()).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    assert!(!is_running(&receiver.recv().unwrap().to_string()));
}
