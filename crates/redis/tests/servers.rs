//! The servers started by the tests behave as documented, and end with the test.

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
        let folder: Vec<String> = server.command(&["CONFIG", "GET", "dir"]);
        sender.send((server.pid(), folder[1].clone())).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    let (pid, folder) = receiver.recv().unwrap();
    assert!(!is_running(&pid.to_string()));
    assert!(!Path::new(&folder).parent().unwrap().exists());
}

/// Starts what it is told to, and says why it does not start.
#[test]
#[ignore = "a role of another test"]
fn beginner() {
    let Some(what) = setting("WHAT") else { return };
    let panicked = std::panic::catch_unwind(|| match &*what {
        "server" => drop(Server::start()),
        "server with its own clock" => drop(Server::start_with_own_clock()),
        "cluster" => drop(Cluster::start()),
        _ => unreachable!(),
    })
    .unwrap_err();
    let text = panicked.downcast_ref::<String>().expect("a message");
    say(&text.replace('\n', " "));
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let find = |name: &str| {
        let path = std::env::var("PATH").unwrap();
        let mut folders = path.split(':').map(|folder| Path::new(folder).join(name));
        folders.find(|program| program.exists()).unwrap()
    };
    for (what, there, missing, package) in [
        ("server", &[][..], "redis-server", "Debian's redis-server"),
        ("server with its own clock", &[], "cc", "Debian's gcc"),
        ("cluster", &["redis-server"], "redis-cli", "Debian's redis-tools"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for name in ["sh", "cat", "rm", "kill", "sleep"].iter().chain(there) {
            std::os::unix::fs::symlink(find(name), folder.path().join(name)).unwrap();
        }
        let path = folder.path().to_str().unwrap();
        let environment = [("PATH", path), ("TICKWHEEL_REDIS_SERVER", "redis-server")];
        let mut beginner = Process::start_in(&environment, "beginner", &[("WHAT", what)]);
        let said = beginner.line().expect("a message");
        assert!(said.contains(missing) && said.contains(package), "{what}: {said}");
    }
}
