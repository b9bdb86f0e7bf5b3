//! Facts about the machine and this process, and numbers formatted for people.

use std::{fs, io, thread, time::Duration};

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// The server and the clients are a process each, which needs some files besides.
pub(crate) fn room_for_connections() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open_files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = open_files.and_then(|limits| limits.split_whitespace().next());
    match soft {
        Some("unlimited") => 1 << 20,
        Some(soft) => soft.parse::<u64>().unwrap_or(1024).saturating_sub(64).max(1),
        None => 1024 - 64,
    }
}

/// Resident bytes of this process, 0 where the system does not say.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident.and_then(|resident| resident.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The CPU time of this process's threads, to the nanosecond.
pub(crate) fn cpu_time() -> io::Result<Duration> {
    let mut nanos = 0;
    let threads = fs::read_dir("/proc/self/task").map_err(|error| {
        io::Error::other(format!(
            "CPU time comes from /proc/self/task, which only Linux has: {error}"
        ))
    })?;
    for thread in threads {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split_whitespace().next();
        nanos += first.and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
