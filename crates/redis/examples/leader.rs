//! Three processes elect a leader with a lease. The leader is suspended (SIGSTOP), another process takes
//! over, and the first resumes (SIGCONT) and finds that it has lost the lease. Then the leader is killed. A
//! timeline shows the events.
//!
//! ```text
//! cargo run --release -p tickwheel-redis --example leader
//! cargo run --release -p tickwheel-redis --example leader -- --redis redis://127.0.0.1/
//! ```
//!
//! Without `--redis` it starts a `redis-server` of its own and stops it at the end.

use std::{
    env,
    error::Error,
    io::{self, Write},
    process::exit,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use story::{OwnServer, story};
use tickwheel::Wheel;
use tickwheel_redis::{Leases, Notifications};

#[path = "leader/story.rs"]
mod story;

const TTL: Duration = Duration::from_secs(2);

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--candidate", name, url, lease] => candidate(name, url, lease),
        ["--redis", url] => story(url),
        [] => {
            let server = OwnServer::start()?;
            story(&server.url())
        }
        _ => {
            eprintln!("usage: leader [--redis URL]");
            exit(2);
        }
    }
}

/// One of the three processes: leads whenever it can, and says what it sees.
#[tokio::main]
async fn candidate(name: &str, url: &str, lease: &str) -> Result<(), Failure> {
    // Whoever started it holds the other end of its input.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        exit(0);
    });
    let client = redis::Client::open(url)?;
    let connection = client.get_connection_manager().await?;
    let leases = Leases::new(&Wheel::new(), connection.clone()).notifications(&Notifications::of(client));
    loop {
        let held = leases.acquire(lease, TTL).await?;
        say(name, "leads", held.token());
        let work = work(connection.clone(), lease, held.token());
        tokio::select! {
            () = held.lost() => say(name, "lost the lease", held.token()),
            refused = work => say(name, &format!("was refused: {}", refused?), held.token()),
        }
        let released = held.release().await;
        if !matches!(released, Ok(false)) {
            say(name, &format!("released: {released:?}"), 0);
        }
    }
}

/// What the lease protects: a value that takes no write with a token smaller than the greatest it has seen.
async fn work(
    mut connection: redis::aio::ConnectionManager,
    lease: &str,
    token: u64,
) -> Result<String, Failure> {
    let guarded = redis::Script::new(
        "local seen = tonumber(redis.call('GET', KEYS[1]) or 0)
         if seen > tonumber(ARGV[1]) then return 0 end
         redis.call('SET', KEYS[1], ARGV[1], 'EX', 60)
         return 1",
    );
    loop {
        let written: bool = guarded
            .key(format!("{lease}:guarded"))
            .arg(token)
            .invoke_async(&mut connection)
            .await?;
        if !written {
            return Ok("a greater token has been seen".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn say(name: &str, what: &str, token: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut output = io::stdout().lock();
    let said = writeln!(output, "{}\t{name}\t{what}\t{token}", now.as_micros()).and_then(|()| output.flush());
    if said.is_err() {
        exit(0);
    }
}
