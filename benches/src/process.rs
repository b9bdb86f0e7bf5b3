//! What the kernel reports about this process.

use std::time::Duration;

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

/// How many threads can run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
