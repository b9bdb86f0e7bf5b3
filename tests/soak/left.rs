//! What a process holds at its quiet points: it must not grow from one to the next.

use std::fs;

use crate::judge::Judge;

/// What was held at the first quiet points, at most.
#[derive(Default)]
pub(crate) struct Left {
    quiet_points: u32,
    descriptors: usize,
    resident: usize,
}

/// An allocator needs so many rounds to settle.
const ROUNDS_TO_SETTLE: u32 = 3;

/// What it may keep beyond that, in bytes.
const SLACK: usize = 64 << 20;

impl Left {
    pub(crate) fn check(&mut self, judge: &Judge) {
        let (Some(descriptors), Some(resident)) = (descriptors(), resident()) else {
            return;
        };
        self.quiet_points += 1;
        if self.quiet_points == 1 {
            self.descriptors = descriptors;
        }
        judge.check(
            descriptors <= self.descriptors,
            "descriptors of runtimes that have ended are closed",
            || format!("{} before, {descriptors} now", self.descriptors),
        );
        if self.quiet_points <= ROUNDS_TO_SETTLE {
            self.resident = self.resident.max(resident);
        }
        judge.check(
            resident <= self.resident + SLACK,
            "memory of runtimes that have ended is freed",
            || format!("{} bytes before, {resident} now", self.resident),
        );
    }
}

fn descriptors() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

fn resident() -> Option<usize> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
