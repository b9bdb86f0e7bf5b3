//! What the machine says of itself and of this process, and numbers for people.

use std::{fs, thread, time::Duration};

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Both ends of a connection are this process's, and some files it needs besides.
pub(crate) fn room_for_connections() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open_files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = open_files.and_then(|limits| limits.split_whitespace().next());
    match soft {
        Some("unlimited") => 1 << 20,
        Some(soft) => soft.parse::<u64>().unwrap_or(1024).saturating_sub(64) / 2,
        None => (1024 - 64) / 2,
    }
}

pub(crate) fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The process's CPU time, user and system.
pub(crate) fn cpu_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the program's name in brackets, may hold anything; user and system time are the 14th and 15th.
    let (_, after_name) = stat.rsplit_once(')')?;
    let hundredths: Option<u64> = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(hundredths? * 10))
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
