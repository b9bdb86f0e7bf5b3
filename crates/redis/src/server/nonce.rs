//! Unique names of calls, and random numbers for jitter.

use std::{fmt, time::Duration};

/// The name of one call or of one holder, unique across processes and their copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Nonce(u128);

impl Nonce {
    /// Asks the operating system each time, because a fork and a restored snapshot share all that a process
    /// has drawn before.
    ///
    /// # Panics
    ///
    /// Panics if the operating system has no random numbers, which would make every lease unsafe.
    pub(crate) fn new() -> Nonce {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
        Nonce(u128::from_ne_bytes(bytes))
    }
}

/// Writes the nonce in hexadecimal.
impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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
