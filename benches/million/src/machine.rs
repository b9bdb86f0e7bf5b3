//! The machine and what this process uses of it.

use std::{fs, io, process::Command, thread, time::Duration};

use nix::sys::{
    resource::{Resource, Usage, UsageWho, getrlimit, getrusage},
    time::TimeValLike,
};

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// How many connections the limit on open files allows; a few files are for the rest of the process.
pub(crate) fn room_for_connections() -> u64 {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    limit.saturating_sub(64).clamp(1, 1 << 20)
}

/// Processor, cores, system and day in a line.
pub(crate) fn description() -> String {
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = information
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.unwrap_or("an unknown processor").trim();
    let cores = match cores() {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    };
    let day = Command::new("date").arg("+%F").output();
    let day = day.map_or_else(|_| Vec::new(), |output| output.stdout);
    let (os, day) = (std::env::consts::OS, String::from_utf8_lossy(&day));
    format!("{cores} of {model}, {os} {}, on {}", system.trim(), day.trim())
}

/// What a process has used so far.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    pub(crate) user: Duration,
    pub(crate) kernel: Duration,
    /// How often a thread of the process went to sleep and was woken.
    pub(crate) wakeups: u64,
}

impl Used {
    pub(crate) fn by_this_process() -> io::Result<Used> {
        Ok(Used::from(getrusage(UsageWho::RUSAGE_SELF)?))
    }

    /// By the processes that this one has started and waited for.
    fn by_children() -> io::Result<Used> {
        Ok(Used::from(getrusage(UsageWho::RUSAGE_CHILDREN)?))
    }

    pub(crate) fn cpu(&self) -> Duration {
        self.user + self.kernel
    }
}

impl From<Usage> for Used {
    fn from(usage: Usage) -> Used {
        let micros = |time: nix::sys::time::TimeVal| Duration::from_micros(time.num_microseconds() as u64);
        Used {
            user: micros(usage.user_time()),
            kernel: micros(usage.system_time()),
            wakeups: usage.voluntary_context_switches() as u64,
        }
    }
}

/// Resident bytes of this process; an error where the system has no `/proc`.
pub(crate) fn resident() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.ok_or(io::ErrorKind::InvalidData)? * 1024)
}

/// Tells how much of the machine others use meanwhile.
pub(crate) struct Watch {
    machine: Option<Ticks>,
    own: Duration,
}

impl Watch {
    pub(crate) fn start() -> io::Result<Watch> {
        Ok(Watch {
            machine: Ticks::now(),
            own: Watch::own()?,
        })
    }

    /// Returns the share of the machine's CPU time that other programs, or other virtual machines of the same
    /// host, have used since the start; `None` where the system does not say. `running` is what children of
    /// this process have used that are still running.
    pub(crate) fn others(&self, running: Duration) -> io::Result<Option<f64>> {
        let own = Watch::own()? - self.own + running;
        let both = self.machine.zip(Ticks::now());
        Ok(both.map(|(before, now)| others(before, now, own)))
    }

    fn own() -> io::Result<Duration> {
        Ok(Used::by_this_process()?.cpu() + Used::by_children()?.cpu())
    }
}

/// The first line of `/proc/stat`, in hundredths of a second.
#[derive(Clone, Copy)]
struct Ticks {
    /// Idle, or in an interrupt, which may well be this program's.
    not_busy: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Option<Ticks> {
        Ticks::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map_while(|ticks| ticks.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; what follows is part of user and nice.
        let [_, _, _, idle, iowait, irq, softirq, _, ..] = ticks[..] else {
            return None;
        };
        Some(Ticks {
            not_busy: idle + iowait + irq + softirq,
            all: ticks[..8].iter().sum(),
        })
    }
}

fn others(before: Ticks, now: Ticks, own: Duration) -> f64 {
    let all = now.all.saturating_sub(before.all).max(1) as f64;
    let not_busy = now.not_busy.saturating_sub(before.not_busy) as f64;
    let own = own.as_secs_f64() * 100.0;
    ((all - not_busy - own) / all).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_what_is_neither_idle_nor_ours() {
        let before = Ticks::parse("cpu  100 0 50 1000 10 1 2 0 0 0\ncpu0 ..").unwrap();
        // 200 ticks: 80 idle, 10 in interrupts, 110 busy, of which 10 are another virtual machine's.
        let now = Ticks::parse("cpu  180 0 70 1070 20 4 9 10 0 0").unwrap();
        assert_eq!(others(before, now, Duration::from_millis(700)), 0.2);
        assert_eq!(others(before, now, Duration::from_secs(3)), 0.0);
        assert!(Ticks::parse("intr 1 2 3").is_none());
    }

    #[test]
    fn this_process_uses_something() {
        let used = Used::by_this_process().unwrap();
        assert!(used.cpu() > Duration::ZERO || used.wakeups > 0);
        assert!(room_for_connections() > 0 && cores() > 0);
    }
}
