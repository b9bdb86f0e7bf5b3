//! A million tasks that sleep for ten seconds, as in hez2010's and pkolaczk's comparisons of languages, spawned
//! or joined in one task: `sleeping tokio|tickwheel spawned|joined [TASKS]` prints the most resident memory
//! that the process ever had, in megabytes, as `row|peer|megabytes`.

use std::{env, fs, future::Future, time::Duration};

use tokio::runtime::Runtime;

const SLEEP: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [peer, way, tasks @ ..] = &arguments[..] else {
        panic!("usage: sleeping tokio|tickwheel spawned|joined [TASKS]");
    };
    let tasks = tasks
        .first()
        .map_or(1_000_000, |tasks| tasks.parse().expect("a number"));
    let runtime = Runtime::new().expect("the runtime starts");
    match peer.as_str() {
        "tokio" => runtime.block_on(sleep_all(way, tasks, tokio::time::sleep)),
        "tickwheel" => runtime.block_on(sleep_all(way, tasks, tickwheel::time::sleep)),
        peer => panic!("there is no {peer}"),
    }
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.split_whitespace().next()?.parse::<f64>().ok());
    let megabytes = kib.expect("a number") * 1024. / 1e6;
    println!("a million sleeping tasks, {way}, MB|{peer}|{megabytes:.1}");
}

async fn sleep_all<F: Future<Output = ()> + Send + 'static>(
    way: &str,
    tasks: usize,
    sleep: fn(Duration) -> F,
) {
    match way {
        "spawned" => {
            let spawned: Vec<_> = (0..tasks)
                .map(|_| tokio::spawn(async move { sleep(SLEEP).await }))
                .collect();
            for task in spawned {
                task.await.expect("it does not panic");
            }
        }
        "joined" => {
            let joined: Vec<_> = (0..tasks).map(|_| sleep(SLEEP)).collect();
            futures_util::future::join_all(joined).await;
        }
        way => panic!("there is no {way}"),
    }
}
