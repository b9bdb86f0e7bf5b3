//! `Change`: what `scripts/update.lua` does to jobs that are there and to the settings of a partition, and
//! `Answer`: what it says about each change.

use std::time::Duration;

use tokio::time::Instant;

use super::units::{LARGEST_NUMBER, micros};
use crate::{
    jobs::{
        claim::{Claim, JobLease},
        report::{Cancelled, Repeated},
    },
    server::nonce::Nonce,
};

/// The longest error in bytes that is kept of a job.
const LONGEST_ERROR: usize = 1024;

/// A change of a job or of a partition, by the name that the script knows it under.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum Change<'a> {
    // By who holds the job, under a lease that lasts.
    Start {
        job: &'a JobLease,
        lease: Duration,
        attempts: u32,
    },
    Renew {
        job: &'a JobLease,
        lease: Duration,
    },
    Done {
        job: &'a JobLease,
    },
    Retry {
        job: &'a JobLease,
        delay: Duration,
        error: &'a str,
    },
    Bury {
        job: &'a JobLease,
        error: &'a str,
    },
    Snooze {
        job: &'a JobLease,
        delay: Duration,
    },
    /// Takes back a start, of a job that may have been delivered before.
    UndoStart {
        job: &'a JobLease,
        was_delivered: bool,
    },
    /// Returns a claim.
    GiveBack {
        job: &'a JobLease,
    },
    /// Counts an attempt for a claim whose payload could not be fetched.
    Unfetched {
        job: &'a JobLease,
        attempts: u32,
    },
    /// Confirms that the handler of a job has ended which may have been cancelled.
    Confirm {
        job: &'a JobLease,
    },
    // By anybody.
    Cancel {
        id: &'a str,
    },
    Reschedule {
        id: &'a str,
        delay: Duration,
    },
    Revive {
        id: &'a str,
    },
    Purge {
        id: &'a str,
    },
    // Of a partition.
    ReviveDead {
        limit: usize,
    },
    PurgeDead {
        limit: usize,
    },
    Pause,
    Resume,
    KeepDead {
        count: u64,
        age: Duration,
    },
    /// Limits how many jobs run at once, or no more does so.
    LimitRunning {
        most: Option<u64>,
    },
    /// Of a worker that ends, by the name under which it listens.
    Close {
        worker: Nonce,
    },
}

impl<'a> Change<'a> {
    /// Returns a claim to the queue.
    pub(in crate::jobs) fn give_back(claim: &'a Claim) -> Change<'a> {
        Change::GiveBack { job: &claim.lease }
    }

    /// Takes back the start of a claim that was never yielded.
    pub(in crate::jobs) fn undo_start(claim: &'a Claim) -> Change<'a> {
        Change::UndoStart {
            job: &claim.lease,
            was_delivered: claim.was_delivered,
        }
    }

    /// Returns the name of the change and its arguments, as many as the script expects by that name.
    pub(in crate::jobs) fn arguments(&self) -> Vec<Vec<u8>> {
        let time = |time| micros(time).to_string();
        let held = |name: &str, job: &JobLease| vec![name.into(), job.id.clone(), job.token.to_string()];
        let with = |mut arguments: Vec<String>, last: String| {
            arguments.push(last);
            arguments
        };
        let of_id = |name: &str, id: &str| vec![name.to_owned(), id.to_owned()];
        let arguments = match *self {
            Change::Start { job, lease, attempts } => {
                with(with(held("start", job), time(lease)), attempts.to_string())
            }
            Change::Renew { job, lease } => with(held("renew", job), time(lease)),
            Change::Done { job } => held("done", job),
            Change::Retry { job, delay, error } => {
                with(with(held("retry", job), time(delay)), kept(error).to_owned())
            }
            Change::Bury { job, error } => with(held("bury", job), kept(error).to_owned()),
            Change::Snooze { job, delay } => with(held("snooze", job), time(delay)),
            Change::UndoStart { job, was_delivered } => {
                with(held("unstart", job), u8::from(was_delivered).to_string())
            }
            Change::GiveBack { job } => held("release", job),
            Change::Unfetched { job, attempts } => with(held("unfetched", job), attempts.to_string()),
            Change::Confirm { job } => held("confirm", job),
            Change::Cancel { id } => of_id("cancel", id),
            Change::Reschedule { id, delay } => with(of_id("reschedule", id), time(delay)),
            Change::Revive { id } => of_id("revive", id),
            Change::Purge { id } => of_id("purge", id),
            Change::ReviveDead { limit } => of_id("revive_dead", &limit.to_string()),
            Change::PurgeDead { limit } => of_id("purge_dead", &limit.to_string()),
            Change::Pause => vec!["pause".to_owned()],
            Change::Resume => vec!["resume".to_owned()],
            Change::KeepDead { count, age } => {
                with(of_id("keep", &count.min(LARGEST_NUMBER).to_string()), time(age))
            }
            Change::LimitRunning { most } => {
                of_id("limit", &most.unwrap_or(0).min(LARGEST_NUMBER).to_string())
            }
            Change::Close { worker } => of_id("close", &worker.to_string()),
        };
        arguments.into_iter().map(String::into_bytes).collect()
    }
}

/// Returns as much of an error as is kept.
fn kept(error: &str) -> &str {
    let mut end = error.len().min(LONGEST_ERROR);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

/// What became of a job whose holder has finished it, in whatever way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::jobs) enum Finished {
    /// The job was lost before, and nothing has changed.
    Lost,
    Done,
    /// The job waits for the next point of its grid, or another may start in its place.
    ComesAgain,
}

/// What became of a lease that was to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::jobs) enum Renewed {
    /// It has run out, or the job was cancelled.
    Lost,
    Extended,
}

/// The answer to one change, or to one job that was to be scheduled.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Answer {
    number: u64,
    /// When the request was first sent, from which time a granted lease counts.
    pub(in crate::jobs) sent: Instant,
}

impl Answer {
    pub(in crate::jobs) fn new(number: u64, sent: Instant) -> Answer {
        Answer { number, sent }
    }

    /// Whether the change was made.
    pub(in crate::jobs) fn is_done(self) -> bool {
        self.number > 0
    }

    /// Returns how many jobs the change was made to.
    pub(in crate::jobs) fn count(self) -> u64 {
        self.number
    }

    pub(in crate::jobs) fn finished(self) -> Finished {
        match self.number {
            0 => Finished::Lost,
            1 => Finished::Done,
            _ => Finished::ComesAgain,
        }
    }

    pub(in crate::jobs) fn renewed(self) -> Renewed {
        match self.number {
            0 => Renewed::Lost,
            _ => Renewed::Extended,
        }
    }

    pub(in crate::jobs) fn cancelled(self) -> Cancelled {
        match self.number {
            0 => Cancelled::Absent,
            1 => Cancelled::Waiting,
            _ => Cancelled::Running,
        }
    }

    pub(in crate::jobs) fn repeated(self) -> Repeated {
        match self.number {
            0 => Repeated::Taken,
            1 => Repeated::New,
            2 => Repeated::Same,
            _ => Repeated::Changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(kept("short"), "short");
        let long = "ж".repeat(2000);
        assert_eq!(kept(&long), "ж".repeat(LONGEST_ERROR / 2));
        let odd = format!("x{long}");
        assert_eq!(kept(&odd).len(), LONGEST_ERROR - 1);
    }

    /// The script counts the arguments by the name of the change.
    #[test]
    fn the_script_expects_as_many_arguments() {
        let script = include_str!("scripts/update.lua");
        let table = script
            .split("local arguments = {")
            .nth(1)
            .unwrap()
            .split('}')
            .next()
            .unwrap();
        let job = &*JobLease::new("id".to_owned(), 0, "token".into(), Instant::now());
        let (id, lease, delay, error, attempts) = ("id", Duration::ZERO, Duration::ZERO, "", 1);
        let changes = [
            Change::Start { job, lease, attempts },
            Change::Renew { job, lease },
            Change::Done { job },
            Change::Retry { job, delay, error },
            Change::Bury { job, error },
            Change::Snooze { job, delay },
            Change::UndoStart {
                job,
                was_delivered: true,
            },
            Change::GiveBack { job },
            Change::Unfetched { job, attempts },
            Change::Confirm { job },
            Change::Cancel { id },
            Change::Reschedule { id, delay },
            Change::Revive { id },
            Change::Purge { id },
            Change::ReviveDead { limit: 1 },
            Change::PurgeDead { limit: 1 },
            Change::Pause,
            Change::Resume,
            Change::KeepDead { count: 1, age: delay },
            Change::LimitRunning { most: Some(1) },
            Change::Close { worker: Nonce::new() },
        ];
        // Starts and dones are not in the table.
        assert_eq!(table.matches('=').count(), changes.len() - 2);
        for change in changes {
            let arguments = change.arguments();
            let name = String::from_utf8(arguments[0].clone()).unwrap();
            let count = arguments.len();
            if ["start", "done"].contains(&&*name) {
                let branch = script.split(&format!("change == '{name}' then")).nth(1).unwrap();
                let branch = branch.split("else").next().unwrap();
                assert!(branch.contains(&format!("at = at + {count}\n")), "{branch}");
            } else {
                assert!(
                    table.contains(&format!("{name} = {},", count - 1)),
                    "{name} {table}"
                );
            }
        }
    }
}
