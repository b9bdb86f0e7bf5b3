//! `Change`: what `scripts/schedule.lua` and `scripts/update.lua` do, a function for each, with its arguments
//! and its answer. They are no enum, because the type of a change says then what it answers, so that nobody has
//! to look for the answer to a `cancel` among those to a `start`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::claim::JobLease;
use crate::{
    jobs::report::{Cancelled, Repeated},
    server::{
        names::Nonce,
        script::{LARGEST_NUMBER, micros},
    },
};

/// The longest error in bytes that is kept of a job.
const LONGEST_ERROR: usize = 1024;

/// What a script is asked to do to a job or to a partition, in a batch with others, and what it answers.
#[derive(Clone)]
pub(crate) struct Change<A> {
    /// The name under which the script knows it, and its arguments by the names that they have there.
    name: &'static str,
    arguments: Vec<Argument>,
    read: Read<A>,
    /// Whether it adds a job, which Redis refuses when it is out of memory.
    pub(crate) adds_job: bool,
}

type Argument = (&'static str, Vec<u8>);

/// Reads the number that the script answers to a request that was first sent at that instant.
type Read<A> = fn(u64, Instant) -> Option<A>;

impl<A> Change<A> {
    fn new(name: &'static str, arguments: Vec<Argument>, read: Read<A>) -> Change<A> {
        Change {
            name,
            arguments,
            read,
            adds_job: false,
        }
    }

    /// Returns the name and the arguments as they are sent, and what reads the answer.
    pub(crate) fn request(self) -> (Vec<Vec<u8>>, Read<A>) {
        let arguments = self.arguments.into_iter().map(|(_, argument)| argument);
        (
            [self.name.into()].into_iter().chain(arguments).collect(),
            self.read,
        )
    }
}

fn nth<A: Copy, const N: usize>(answers: [A; N], answer: u64) -> Option<A> {
    answers.get(answer as usize).copied()
}

fn number(name: &'static str, value: u64) -> Argument {
    (name, value.min(LARGEST_NUMBER).to_string().into_bytes())
}

fn time(name: &'static str, value: Duration) -> Argument {
    number(name, micros(value))
}

fn text(name: &'static str, value: &str) -> Argument {
    (name, value.into())
}

/// When a new job is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    In(Duration),
    At(SystemTime),
    /// After `first`, and then again and again.
    Every {
        first: Duration,
        every: Duration,
    },
}

/// Schedules a job under an id.
pub(crate) fn schedule(id: &str, when: When, payload: &[u8]) -> Change<Repeated> {
    let (name, at, every) = match when {
        When::In(delay) => ("in", delay, Duration::ZERO),
        // One before 1970 is due now.
        When::At(time) => (
            "at",
            time.duration_since(UNIX_EPOCH).unwrap_or_default(),
            Duration::ZERO,
        ),
        When::Every { first, every } => ("every", first, every),
    };
    let body = ("body", payload.to_vec());
    let arguments = vec![text("id", id), time("given", at), time("every", every), body];
    let change = Change::new(name, arguments, |answer, _| {
        nth(
            [Repeated::Taken, Repeated::New, Repeated::Same, Repeated::Changed],
            answer,
        )
    });
    Change {
        adds_job: true,
        ..change
    }
}

/// Whether a job has its holder's lease from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leased {
    /// It was cancelled or rescheduled, its lease has run out, or nothing may start.
    Refused,
    /// For its time from when the request was sent.
    Since(Instant),
}

fn lease_anew<const N: usize>(name: &'static str, job: &JobLease, more: [Argument; N]) -> Change<Leased> {
    Change::new(name, of_holder(job, more), |answer, sent| {
        nth([Leased::Refused, Leased::Since(sent)], answer)
    })
}

/// Starts a claimed job, which may have so many attempts.
pub(crate) fn start(job: &JobLease, lease: Duration, max_attempts: u32) -> Change<Leased> {
    lease_anew(
        "start",
        job,
        [time("lease", lease), number("max_attempts", max_attempts.into())],
    )
}

/// Renews the lease of a claim or of a job that runs.
pub(crate) fn renew(job: &JobLease, lease: Duration) -> Change<Leased> {
    lease_anew("renew", job, [time("lease", lease)])
}

/// What became of a job whose holder has let it go, in whatever way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// The job was lost before, and nothing has changed.
    Lost,
    Done,
    /// Let go, and a worker may find a job if it looks: this one at the next point of its grid, or one that may
    /// run now that this one does not.
    LookAgain,
}

fn finish<const N: usize>(name: &'static str, job: &JobLease, more: [Argument; N]) -> Change<Finished> {
    Change::new(name, of_holder(job, more), |answer, _| {
        nth([Finished::Lost, Finished::Done, Finished::LookAgain], answer)
    })
}

pub(crate) fn done(job: &JobLease) -> Change<Finished> {
    finish("done", job, [])
}

pub(crate) fn retry(job: &JobLease, delay: Duration, error: &str) -> Change<Finished> {
    finish(
        "retry",
        job,
        [time("delay", delay), text("failure", trimmed(error))],
    )
}

pub(crate) fn bury(job: &JobLease, error: &str) -> Change<Finished> {
    finish("bury", job, [text("failure", trimmed(error))])
}

pub(crate) fn snooze(job: &JobLease, delay: Duration) -> Change<Finished> {
    finish("snooze", job, [time("delay", delay)])
}

/// Takes back a claim, or a start that counts no attempt then. It is no first one if the job `was_tried` before.
pub(crate) fn give_back(job: &JobLease, was_tried: bool) -> Change<Finished> {
    finish("give_back", job, [number("was_tried", was_tried.into())])
}

/// Counts an attempt for a claim whose payload could not be fetched.
pub(crate) fn unfetched(job: &JobLease, max_attempts: u32) -> Change<Finished> {
    finish("unfetched", job, [number("max_attempts", max_attempts.into())])
}

/// Confirms that the handler of a job has ended which may have been cancelled.
pub(crate) fn confirm(job: &JobLease) -> Change<Finished> {
    finish("confirm", job, [])
}

/// Ends a job, whoever holds it.
pub(crate) fn cancel(id: &str) -> Change<Cancelled> {
    Change::new("cancel", vec![text("id", id)], |answer, _| {
        nth(
            [Cancelled::Absent, Cancelled::Waiting, Cancelled::Running],
            answer,
        )
    })
}

/// Changes a job that nobody holds, or a setting of a partition. Its answer is whether that changed anything.
fn edit<const N: usize>(name: &'static str, arguments: [Argument; N]) -> Change<bool> {
    Change::new(name, arguments.into(), |answer, _| nth([false, true], answer))
}

pub(crate) fn reschedule(id: &str, delay: Duration) -> Change<bool> {
    edit("reschedule", [text("id", id), time("delay", delay)])
}

pub(crate) fn revive(id: &str) -> Change<bool> {
    edit("revive", [text("id", id)])
}

pub(crate) fn purge(id: &str) -> Change<bool> {
    edit("purge", [text("id", id)])
}

pub(crate) fn pause() -> Change<bool> {
    edit("pause", [])
}

pub(crate) fn resume() -> Change<bool> {
    edit("resume", [])
}

pub(crate) fn keep_dead(count: u64, age: Duration) -> Change<bool> {
    edit("keep_dead", [number("count", count), time("age", age)])
}

/// Sets how many jobs run at once, or lets any number.
pub(crate) fn set_max_running(jobs: Option<u64>) -> Change<bool> {
    let jobs = jobs.map_or_else(|| text("jobs", "any"), |jobs| number("jobs", jobs));
    edit("set_max_running", [jobs])
}

/// Unlists a worker that ends, by the name under which it listens.
pub(crate) fn unlist(worker: Nonce) -> Change<bool> {
    edit("unlist", [text("worker", &worker.to_string())])
}

/// Changes dead jobs, the oldest first. Its answer is how many they were.
fn edit_dead(name: &'static str, count: u64) -> Change<u64> {
    Change::new(name, vec![number("count", count)], |answer, _| Some(answer))
}

pub(crate) fn revive_dead(count: u64) -> Change<u64> {
    edit_dead("revive_dead", count)
}

pub(crate) fn purge_dead(count: u64) -> Change<u64> {
    edit_dead("purge_dead", count)
}

/// Returns the arguments of a change by the holder of a job.
fn of_holder<const N: usize>(job: &JobLease, more: [Argument; N]) -> Vec<Argument> {
    [text("id", &job.id), text("holder", &job.holder)]
        .into_iter()
        .chain(more)
        .collect()
}

/// Returns as much of an error as is kept.
fn trimmed(error: &str) -> &str {
    let mut end = error.len().min(LONGEST_ERROR);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    &error[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_two_characters() {
        assert_eq!(trimmed("short"), "short");
        let long = "ж".repeat(2000);
        assert_eq!(trimmed(&long), "ж".repeat(LONGEST_ERROR / 2));
        let odd = format!("x{long}");
        assert_eq!(trimmed(&odd).len(), LONGEST_ERROR - 1);
    }

    fn names<A>(change: Change<A>) -> (&'static str, Vec<&'static str>) {
        let names = change.arguments.iter().map(|(name, _)| *name).collect();
        (change.name, names)
    }

    #[test]
    fn the_scripts_name_the_same_arguments() {
        let now = Instant::now();
        let lease = JobLease::new("id".to_owned(), 0, "holder".into(), now);
        let job = &*lease;
        let (id, time, error, attempts) = ("id", Duration::ZERO, "", 1);
        let changes = [
            names(start(job, time, attempts)),
            names(renew(job, time)),
            names(done(job)),
            names(retry(job, time, error)),
            names(bury(job, error)),
            names(snooze(job, time)),
            names(give_back(job, false)),
            names(unfetched(job, attempts)),
            names(confirm(job)),
            names(cancel(id)),
            names(reschedule(id, time)),
            names(revive(id)),
            names(purge(id)),
            names(pause()),
            names(resume()),
            names(keep_dead(1, time)),
            names(set_max_running(None)),
            names(unlist(Nonce::new())),
            names(revive_dead(1)),
            names(purge_dead(1)),
        ];
        let script = include_str!("scripts/update.lua");
        let table = script.split("local changes = {\n").nth(1).unwrap();
        let table = table.split("\n  }\n").next().unwrap();
        let is_change = |line: &&str| {
            let line = line.strip_prefix("    ").unwrap_or_default();
            line.starts_with(char::is_alphabetic) && line.contains(" = { ")
        };
        // Starts and dones are not in the table.
        assert_eq!(table.lines().filter(is_change).count(), changes.len() - 2);
        for (name, arguments) in changes {
            let line = if ["start", "done"].contains(&name) {
                let names = arguments.join(", ");
                format!(
                    "change == '{name}' then\n    local {names} = unpack(ARGV, at + 1, at + {})",
                    arguments.len()
                )
            } else {
                let names: Vec<String> = arguments.iter().map(|name| format!("'{name}', ")).collect();
                format!("    {name} = {{ {}", names.concat())
            };
            let is_whole = |rest: &str| !rest.starts_with('\'');
            assert!(script.split(&line).skip(1).any(is_whole), "{line}");
        }
        let (_, arguments) = names(schedule(id, When::In(time), b""));
        let line = format!(
            "local kind, {} = unpack(ARGV, at, at + {})",
            arguments.join(", "),
            arguments.len()
        );
        assert!(include_str!("scripts/schedule.lua").contains(&line), "{line}");
    }
}
