//! The runtime, statistics and CPU times that both programs share.

use tokio::runtime::{Builder, Runtime};

use crate::support::server::Server;

/// A runtime of two workers, for machines of any size.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The value in the middle, the least and the most.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    (median, values[0], values[values.len() - 1])
}

/// A rate with its spread, in a column.
pub(crate) fn rate(values: impl Iterator<Item = f64>) -> String {
    let (median, least, most) = spread(values);
    format!("{:>26}", format!("{median:.0} ({least:.0} to {most:.0})"))
}

/// Microseconds of processor time that this process and the server have used.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    own: f64,
    server: f64,
}

impl Used {
    pub(crate) fn by(server: &Server) -> Used {
        Used {
            own: own_time(),
            server: server_time(server),
        }
    }

    /// From then to now, for each of so many.
    pub(crate) fn since(self, then: Used, times: u64) -> (f64, f64) {
        let for_each = |now: f64, then: f64| (now - then) / times as f64;
        (for_each(self.own, then.own), for_each(self.server, then.server))
    }
}

/// The kernel counts in ticks of 10 ms.
fn own_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    ticks as f64 * 1e4
}

fn server_time(server: &Server) -> f64 {
    let info: String = server.command(&["INFO", "cpu"]);
    let seconds: f64 = info
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| matches!(*name, "used_cpu_user" | "used_cpu_sys"))
        .map(|(_, value)| value.trim().parse::<f64>().expect("a number"))
        .sum();
    seconds * 1e6
}
