//! Unique names of calls, and random numbers for jitter.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    process,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// The name of one call or of one holder, unique across processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Nonce {
    process: u128,
    call: u64,
}

/// 128 random bits. The standard library seeds its hashers from the operating system.
static PROCESS: LazyLock<u128> = LazyLock::new(|| {
    let random = || RandomState::new().hash_one((process::id(), SystemTime::now()));
    u128::from(random()) << 64 | u128::from(random())
});
static CALLS: AtomicU64 = AtomicU64::new(0);

impl Nonce {
    pub(crate) fn new() -> Nonce {
        Nonce {
            process: *PROCESS,
            call: CALLS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// Writes the nonce in hexadecimal, without spaces and with no punctuation except a dash.
impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:x}", self.process, self.call)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns a random duration between zero and `of`.
pub(crate) fn random_part(of: Duration) -> Duration {
    of.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_are_equal() {
        let nonces: HashSet<String> = (0..1000).map(|_| Nonce::new().to_string()).collect();
        assert_eq!(nonces.len(), 1000);
    }

    #[test]
    fn parts_spread_over_the_whole() {
        let whole = Duration::from_secs(1);
        let parts: Vec<Duration> = (0..1000).map(|_| random_part(whole)).collect();
        assert!(parts.iter().all(|part| *part <= whole));
        for tenth in 0..10u32 {
            let from = whole / 10 * tenth;
            let hits = parts
                .iter()
                .filter(|part| (from..from + whole / 10).contains(part))
                .count();
            assert!((50..200).contains(&hits), "{hits} of 1000 in tenth {tenth}");
        }
    }
}
