//! What the kernel reports about this process.

use std::{fs, time::Duration};

/// CPU time used so far, by all threads.
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time used so far by this thread.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec for the kernel to fill.
    let outcome = unsafe { libc::clock_gettime(id, &mut time) };
    assert_eq!(outcome, 0, "the clocks of CPU time cannot fail on Linux");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident bytes.
pub fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let resident: u64 = pages
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("statm");
    // SAFETY: no memory is involved.
    resident * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Voluntary context switches of all threads but the main one, which is the one that looks.
pub fn context_switches() -> u64 {
    let main = std::process::id().to_string();
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    tasks
        .flatten()
        .filter(|task| task.file_name() != *main)
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        })
        .sum()
}

/// How many threads can run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
