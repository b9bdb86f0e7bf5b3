//! The servers started by the tests behave as documented, and end with the test.

mod support;

use std::path::Path;

use support::prelude::*;

fn is_running(pid: &str) -> bool {
    // A zombie has ended.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// The process of a server, and the folder of its files.
fn traces(server: &Server) -> [String; 2] {
    let folder: Vec<String> = server.command(&["CONFIG", "GET", "dir"]);
    [server.pid().to_string(), folder[1].clone()]
}

fn has_left_nothing([pid, folder]: &[String; 2]) -> bool {
    !is_running(pid) && !Path::new(folder).parent().unwrap().exists()
}

/// Starts a server, says where, and waits to be killed.
#[test]
#[ignore = "a role of another test"]
fn keeper_of_a_server() {
    if setting("SERVER").is_none() {
        return;
    }
    let server = Server::start();
    traces(&server).iter().for_each(|trace| say(trace));
    thread::sleep(10 * MINUTE);
}

#[tokio::test]
async fn a_killed_test_leaves_nothing() {
    let mut keeper = Process::start("keeper_of_a_server", &[("SERVER", "")]);
    let traces = [(); 2].map(|()| keeper.line().unwrap());
    assert!(is_running(&traces[0]) && Path::new(&traces[1]).exists());
    keeper.kill();
    until(|| async { has_left_nothing(&traces) }).await;
}

#[test]
fn a_test_that_panics_leaves_nothing() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let panicked = thread::spawn(move || {
        let server = Server::start();
        sender.send(traces(&server)).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(panicked.is_err());
    assert!(has_left_nothing(&receiver.recv().unwrap()));
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
