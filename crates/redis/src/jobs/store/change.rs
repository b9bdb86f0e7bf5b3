//! The changes that `scripts/schedule.lua` and `scripts/update.lua` make, each with its arguments and its answer.

use std::{
    iter::once,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::{
    jobs::{
        claim::{Claim, JobLease},
        report::{Cancelled, Repeated},
    },
    server::names::Nonce,
};

/// The longest error in bytes that is kept of a job.
const LONGEST_ERROR: usize = 1024;

/// The largest number that scripts are sent, because Lua represents it exactly.
const LARGEST_NUMBER: u64 = 9_000_000_000_000_000;

/// Returns microseconds, rounded up so that nothing is early.
pub(super) fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1000);
    micros.min(u128::from(LARGEST_NUMBER)) as u64
}

/// Returns microseconds since 1970, rounded up, and zero for an earlier time.
fn micros_of(time: SystemTime) -> u64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// What a script is asked to do to a job or to a partition, in a batch with others.
pub(in crate::jobs) trait Change {
    /// What became of it.
    type Answer: Send + 'static;

    /// Whether it adds a job, which Redis refuses when it is out of memory.
    const ADDS: bool = false;

    /// Returns the name under which the script knows it, and its arguments by the names that they have there.
    fn parts(&self) -> (&'static str, Vec<Argument>);

    /// Returns the name and the arguments as they are sent.
    fn request(&self) -> Vec<Vec<u8>> {
        let (name, arguments) = self.parts();
        let arguments = arguments.into_iter().map(|(_, argument)| argument);
        once(name.into()).chain(arguments).collect()
    }

    /// Reads the number that the script answers, to a request that was first sent at `sent`.
    fn read(answer: u64, sent: Instant) -> Option<Self::Answer>;
}

pub(in crate::jobs) type Argument = (&'static str, Vec<u8>);

fn number(value: u64) -> Vec<u8> {
    value.min(LARGEST_NUMBER).to_string().into_bytes()
}

fn time(value: Duration) -> Vec<u8> {
    number(micros(value))
}

/// Schedules a job under an id.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Schedule<'a> {
    pub(in crate::jobs) id: &'a str,
    pub(in crate::jobs) when: When,
    pub(in crate::jobs) payload: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum When {
    In(Duration),
    At(SystemTime),
    /// After `first`, and then again and again.
    Every {
        first: Duration,
        every: Duration,
    },
}

impl Change for Schedule<'_> {
    type Answer = Repeated;

    const ADDS: bool = true;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        let (name, micros, every) = match self.when {
            When::In(delay) => ("in", micros(delay), 0),
            When::At(time) => ("at", micros_of(time), 0),
            When::Every { first, every } => ("every", micros(first), micros(every)),
        };
        let arguments = vec![
            ("id", self.id.into()),
            ("micros", number(micros)),
            ("every", number(every)),
            ("body", self.payload.to_vec()),
        ];
        (name, arguments)
    }

    fn read(answer: u64, _: Instant) -> Option<Repeated> {
        [Repeated::Taken, Repeated::New, Repeated::Same, Repeated::Changed]
            .get(answer as usize)
            .copied()
    }
}

/// Lets a worker hold a job that it has claimed for the time of a lease, from when the request was sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum Hold<'a> {
    Start {
        job: &'a JobLease,
        lease: Duration,
        attempts: u32,
    },
    Renew {
        job: &'a JobLease,
        lease: Duration,
    },
}

/// What became of a job that a worker was to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::jobs) enum Held {
    /// It was cancelled or rescheduled, its lease has run out, or nothing may start.
    Refused,
    Since(Instant),
}

impl Change for Hold<'_> {
    type Answer = Held;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        match *self {
            Hold::Start { job, lease, attempts } => {
                let limit = ("limit", number(attempts.into()));
                ("start", of_holder(job, [("lease", time(lease)), limit]))
            }
            Hold::Renew { job, lease } => ("renew", of_holder(job, [("lease", time(lease))])),
        }
    }

    fn read(answer: u64, sent: Instant) -> Option<Held> {
        [Held::Refused, Held::Since(sent)].get(answer as usize).copied()
    }
}

/// Ends the hold of a worker on a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Finish<'a> {
    pub(in crate::jobs) job: &'a JobLease,
    pub(in crate::jobs) how: How<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum How<'a> {
    Done,
    Retry {
        delay: Duration,
        error: &'a str,
    },
    Bury {
        error: &'a str,
    },
    Snooze {
        delay: Duration,
    },
    /// Takes back a start, of a job that may have been delivered before.
    UndoStart {
        was_delivered: bool,
    },
    /// Returns a claim.
    GiveBack,
    /// Counts an attempt for a claim whose payload could not be fetched.
    Unfetched {
        attempts: u32,
    },
    /// Confirms that the handler of a job has ended which may have been cancelled.
    Confirm,
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

impl How<'_> {
    /// Takes back the start of a claim that was never yielded.
    pub(in crate::jobs) fn undo_start(claim: &Claim) -> How<'static> {
        How::UndoStart {
            was_delivered: claim.was_delivered,
        }
    }
}

impl Change for Finish<'_> {
    type Answer = Finished;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        let Finish { job, how } = *self;
        match how {
            How::Done => ("done", of_holder(job, [])),
            How::Retry { delay, error } => {
                let delay = ("delay", time(delay));
                ("retry", of_holder(job, [delay, ("failure", kept(error))]))
            }
            How::Bury { error } => ("bury", of_holder(job, [("failure", kept(error))])),
            How::Snooze { delay } => ("snooze", of_holder(job, [("delay", time(delay))])),
            How::UndoStart { was_delivered } => {
                let was_delivered = ("was_delivered", number(was_delivered.into()));
                ("undo_start", of_holder(job, [was_delivered]))
            }
            How::GiveBack => ("give_back", of_holder(job, [])),
            How::Unfetched { attempts } => {
                ("unfetched", of_holder(job, [("limit", number(attempts.into()))]))
            }
            How::Confirm => ("confirm", of_holder(job, [])),
        }
    }

    fn read(answer: u64, _: Instant) -> Option<Finished> {
        [Finished::Lost, Finished::Done, Finished::ComesAgain]
            .get(answer as usize)
            .copied()
    }
}

/// Ends a job, whoever holds it.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) struct Cancel<'a> {
    pub(in crate::jobs) id: &'a str,
}

impl Change for Cancel<'_> {
    type Answer = Cancelled;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        ("cancel", vec![("id", self.id.into())])
    }

    fn read(answer: u64, _: Instant) -> Option<Cancelled> {
        [Cancelled::Absent, Cancelled::Waiting, Cancelled::Running]
            .get(answer as usize)
            .copied()
    }
}

/// Changes a job that nobody holds, or a setting of a partition. Its answer is whether that changed anything.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum Edit<'a> {
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
    /// Forgets a worker that ends, by the name under which it listens.
    Close {
        worker: Nonce,
    },
}

impl Change for Edit<'_> {
    type Answer = bool;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        match *self {
            Edit::Reschedule { id, delay } => ("reschedule", vec![("id", id.into()), ("delay", time(delay))]),
            Edit::Revive { id } => ("revive", vec![("id", id.into())]),
            Edit::Purge { id } => ("purge", vec![("id", id.into())]),
            Edit::Pause => ("pause", vec![]),
            Edit::Resume => ("resume", vec![]),
            Edit::KeepDead { count, age } => {
                ("keep_dead", vec![("count", number(count)), ("age", time(age))])
            }
            Edit::LimitRunning { most } => {
                let most = most.map_or_else(|| b"any".to_vec(), number);
                ("limit_running", vec![("most", most)])
            }
            Edit::Close { worker } => ("close", vec![("worker", worker.to_string().into())]),
        }
    }

    fn read(answer: u64, _: Instant) -> Option<bool> {
        [false, true].get(answer as usize).copied()
    }
}

/// Changes dead jobs, the oldest first. Its answer is how many they were.
#[derive(Clone, Copy, Debug)]
pub(in crate::jobs) enum EditDead {
    Revive { count: u64 },
    Purge { count: u64 },
}

impl Change for EditDead {
    type Answer = u64;

    fn parts(&self) -> (&'static str, Vec<Argument>) {
        match *self {
            EditDead::Revive { count } => ("revive_dead", vec![("count", number(count))]),
            EditDead::Purge { count } => ("purge_dead", vec![("count", number(count))]),
        }
    }

    fn read(answer: u64, _: Instant) -> Option<u64> {
        Some(answer)
    }
}

/// Returns the arguments of a change by the holder of a job.
fn of_holder<const N: usize>(job: &JobLease, more: [Argument; N]) -> Vec<Argument> {
    let mut arguments = vec![
        ("id", job.id.clone().into()),
        ("token", job.token.as_bytes().to_vec()),
    ];
    arguments.extend(more);
    arguments
}

/// Returns as much of an error as is kept.
fn kept(error: &str) -> Vec<u8> {
    let mut end = error.len().min(LONGEST_ERROR);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    error[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(kept("short"), b"short");
        let long = "ж".repeat(2000);
        assert_eq!(kept(&long), "ж".repeat(LONGEST_ERROR / 2).as_bytes());
        let odd = format!("x{long}");
        assert_eq!(kept(&odd).len(), LONGEST_ERROR - 1);
    }

    #[test]
    fn the_scripts_name_the_same_arguments() {
        let job = &*JobLease::new("id".to_owned(), 0, "token".into(), Instant::now());
        let (id, lease, delay, error, attempts) = ("id", Duration::ZERO, Duration::ZERO, "", 1);
        let finish = |how| Finish { job, how }.parts();
        let changes = [
            Hold::Start { job, lease, attempts }.parts(),
            Hold::Renew { job, lease }.parts(),
            finish(How::Done),
            finish(How::Retry { delay, error }),
            finish(How::Bury { error }),
            finish(How::Snooze { delay }),
            finish(How::UndoStart { was_delivered: true }),
            finish(How::GiveBack),
            finish(How::Unfetched { attempts }),
            finish(How::Confirm),
            Cancel { id }.parts(),
            Edit::Reschedule { id, delay }.parts(),
            Edit::Revive { id }.parts(),
            Edit::Purge { id }.parts(),
            Edit::Pause.parts(),
            Edit::Resume.parts(),
            Edit::KeepDead { count: 1, age: delay }.parts(),
            Edit::LimitRunning { most: None }.parts(),
            Edit::Close { worker: Nonce::new() }.parts(),
            EditDead::Revive { count: 1 }.parts(),
            EditDead::Purge { count: 1 }.parts(),
        ];
        let script = include_str!("scripts/update.lua");
        let table = script.split("local arguments = {\n").nth(1).unwrap();
        let table = table.split("\n  }\n").next().unwrap();
        // Starts and dones are not in the table.
        assert_eq!(table.lines().count(), changes.len() - 2);
        for (name, arguments) in changes {
            let names: Vec<_> = arguments.iter().map(|(name, _)| *name).collect();
            let line = if ["start", "done"].contains(&name) {
                let names = names.join(", ");
                format!(
                    "change == '{name}' then\n    local {names} = unpack(ARGV, at + 1, at + {})",
                    arguments.len()
                )
            } else {
                format!("    {name} = {{ '{}' }},\n", names.join("', '")).replace("{ '' }", "{}")
            };
            assert!(script.contains(&line), "{line}");
        }
        let schedule = Schedule {
            id,
            when: When::In(delay),
            payload: b"",
        };
        let names: Vec<_> = schedule.parts().1.iter().map(|(name, _)| *name).collect();
        let line = format!(
            "local kind, {} = unpack(ARGV, at, at + {})",
            names.join(", "),
            names.len()
        );
        assert!(include_str!("scripts/schedule.lua").contains(&line), "{line}");
    }
}
