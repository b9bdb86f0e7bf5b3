//! The table.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use redis::Client;

use crate::{
    by_id,
    fleet::{Fleet, Outcome, Said},
};

/// How many commands Redis was sent, restarts included.
pub(crate) struct Commands {
    sum: u64,
    from: u64,
}

impl Commands {
    pub(crate) fn new(client: &Client) -> Commands {
        Commands {
            sum: 0,
            from: scripts(client),
        }
    }

    pub(crate) fn add(&mut self, client: &Client) {
        self.sum += scripts(client) - self.from;
    }

    /// The server counts from nothing.
    pub(crate) fn restart(&mut self) {
        self.from = 0;
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }
}

/// Every command of ours is a script; what scripts do is counted under other names.
fn scripts(client: &Client) -> u64 {
    let stats: redis::RedisResult<String> = client
        .get_connection()
        .and_then(|mut connection| redis::cmd("INFO").arg("commandstats").query(&mut connection));
    let stats = stats.unwrap_or_default();
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        matches!(name, "eval" | "evalsha").then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

pub(crate) fn print(fleet: &Fleet, acknowledged: &[String], dead: u64, commands: u64) -> ExitCode {
    let (said, killed) = (fleet.said(), fleet.killed());
    let by_id = by_id(&said);
    let (mut lateness, mut undisturbed) = (Vec::new(), Vec::new());
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut done, mut missing, mut unexplained) = (0, 0, 0);
    for id in acknowledged {
        let said = by_id.get(&**id).map_or(&[][..], |said| said);
        let mut deliveries: Vec<(u32, usize, Duration, Instant)> = said
            .iter()
            .filter_map(|said| match said {
                Said::Got {
                    worker,
                    attempt,
                    late,
                    due,
                    ..
                } => Some((*attempt, *worker, *late, *due)),
                Said::Finished { .. } => None,
            })
            .collect();
        deliveries.sort();
        let Some((_, _, late, due)) = deliveries.first() else {
            missing += 1;
            continue;
        };
        lateness.push(*late);
        if !fleet.disturbed(*due) {
            undisturbed.push(*late);
        }
        done += usize::from(said.iter().any(|said| said.is_done()));
        // Why each delivery but the last was not enough.
        for pair in deliveries.windows(2) {
            let (attempt, worker, ..) = pair[0];
            let outcome = said.iter().find_map(|said| match said {
                Said::Finished {
                    attempt: finished,
                    outcome,
                    ..
                } if *finished == attempt => Some(*outcome),
                _ => None,
            });
            let reason = match outcome {
                _ if pair[1].0 == attempt => "",
                None if killed.contains(&worker) => "its worker was killed",
                Some(Outcome::Lost) => "its lease ran out while the server was away",
                Some(Outcome::Unknown) => "the answer to done never came",
                _ => "",
            };
            if reason.is_empty() {
                unexplained += 1;
            } else {
                *reasons.entry(reason).or_default() += 1;
            }
        }
    }
    let row = |name: &str, value: String| println!("{name:<48}{value:>12}");
    println!();
    row("scheduled", acknowledged.len().to_string());
    row("done", done.to_string());
    let unsaid = acknowledged.len() - done - missing;
    if unsaid > 0 {
        // The queue is empty, so these are done too.
        row(
            "  done, as their worker could not say any more",
            unsaid.to_string(),
        );
    }
    row("never delivered", missing.to_string());
    row(
        "delivered twice",
        (reasons.values().sum::<usize>() + unexplained).to_string(),
    );
    for (reason, count) in &reasons {
        row(&format!("  {reason}"), count.to_string());
    }
    row("  for no reason", unexplained.to_string());
    row("dead", dead.to_string());
    for (of, mut lateness) in [
        ("lateness of first deliveries", lateness),
        ("  of those due outside 5 s around the kill", undisturbed),
    ] {
        lateness.sort();
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            let late = match lateness.len() {
                0 => "-".to_owned(),
                count => {
                    let late = lateness[((count - 1) as f64 * part) as usize];
                    format!("{:.1} ms", late.as_secs_f64() * 1e3)
                }
            };
            row(&format!("{of}, {name}"), late);
        }
    }
    row(
        "commands per job",
        format!("{:.2}", commands as f64 / acknowledged.len().max(1) as f64),
    );
    if missing == 0 && unexplained == 0 && dead == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
