//! Delayed jobs of clients whose clocks are off by an hour.

mod support;

use support::prelude::*;

const LEASE: Duration = Duration::from_secs(2);
const DELAY: Duration = Duration::from_millis(700);

async fn queue(url: &str, name: &str) -> Jobs {
    let jobs = DelayedJobs::new(&Wheel::new(), connect(url).await, name);
    jobs.notifications(&Notifications::of(Client::open(url).unwrap()))
}

fn micros(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// Says its own time; schedules one job for the parent, and works on one of the parent's for longer than a
/// lease.
#[test]
#[ignore = "a role of the tests here"]
fn client() {
    let Some(url) = setting("url") else { return };
    die_with_parent();
    say(&micros(SystemTime::now()).to_string());
    runtime().block_on(async {
        put(&queue(&url, "for-parent").await, ["a"], DELAY).await;
        say("scheduled");
        let jobs = queue(&url, "for-child").await;
        let mut worker = jobs.worker().lease(LEASE).look_ahead(DELAY / 2).start();
        let job = next(&mut worker).await;
        say(&micros(job.due()).to_string());
        tokio::select! {
            () = job.lost() => say("lost"),
            () = sleep(LEASE * 2) => say(&format!("done {}", job.done().await.unwrap())),
        }
        worker.next().await;
    });
}

async fn with_a_clock_off_by(offset: &str) {
    let server = Server::start();
    let library = faketime();
    let clock = [("FAKETIME", offset), ("DONT_FAKE_MONOTONIC", "1")];
    let environment = [&clock[..], &[("LD_PRELOAD", &*library)]].concat();
    let before = server.time();
    let mut child = Process::start_in(&environment, "client", &[("url", &server.url())]);
    let mut line = || tokio::task::block_in_place(|| child.line()).expect("a child that lives");
    let its_time: u128 = line().parse().unwrap();
    let off = its_time.abs_diff(micros(SystemTime::now()));
    assert!(off > (HOUR / 2).as_micros(), "its clock is not wrong: {off} us");

    assert_eq!(line(), "scheduled");
    let after = server.time();
    let mut worker = queue(&server.url(), "for-parent").await.worker().start();
    let job = next(&mut worker).await;
    assert!((before + DELAY..=after + DELAY).contains(&job.due()));
    done(job).await;

    let jobs = queue(&server.url(), "for-child").await;
    let before = server.time();
    put(&jobs, ["b"], DELAY).await;
    let after = server.time();
    let due: u128 = line().parse().unwrap();
    assert!(micros(server.time()) >= due, "early");
    assert!((micros(before + DELAY)..=micros(after + DELAY)).contains(&due));
    assert_eq!(line(), "done true");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_an_hour_ahead() {
    with_a_clock_off_by("+3600s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_an_hour_behind() {
    with_a_clock_off_by("-3600s").await;
}
