//! Says what is measured just now, a line for each experiment, and on a terminal shows below it how far the
//! program is.

use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use crate::options::Options;

const WIDTH: usize = 40;

pub(crate) struct Progress {
    is_terminal: bool,
    /// How long all experiments take together, as planned.
    planned: Duration,
    before: Duration,
    current: Duration,
}

impl Progress {
    pub(crate) fn new(options: &Options) -> Progress {
        Progress {
            is_terminal: stderr().is_terminal(),
            planned: options.total(),
            before: Duration::ZERO,
            current: Duration::ZERO,
        }
    }

    /// Begins an experiment that takes about `planned`.
    pub(crate) fn begin(&mut self, text: &str, planned: Duration) {
        self.before += self.current;
        self.current = planned;
        self.finish();
        eprintln!("Measuring {text}");
        self.reach(0.0);
    }

    /// Shows that `share` of the current experiment is done.
    pub(crate) fn reach(&mut self, share: f64) {
        if self.is_terminal {
            let done = (self.before + self.current.mul_f64(share)).as_secs_f64() / self.planned.as_secs_f64();
            eprint!("\r\x1b[K{}", bar(done));
            // If the terminal is gone, nobody misses the bar.
            _ = stderr().flush();
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

fn bar(done: f64) -> String {
    let done = done.clamp(0.0, 1.0);
    let filled = (done * WIDTH as f64) as usize;
    format!(
        "[{}{}] {:3.0} %",
        "#".repeat(filled),
        ".".repeat(WIDTH - filled),
        100.0 * done
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_the_same_width_from_nothing_to_all() {
        assert_eq!(bar(0.0), format!("[{}]   0 %", ".".repeat(40)));
        assert_eq!(bar(0.5), format!("[{}{}]  50 %", "#".repeat(20), ".".repeat(20)));
        assert_eq!(bar(1.2), format!("[{}] 100 %", "#".repeat(40)));
    }
}
