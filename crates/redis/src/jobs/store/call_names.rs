//! `CallNames`: names the calls of one sender, so that Redis carries out each of them once and in order.
//!
//! Redis keeps the name and the answer of the sender's last call. A call tells its own name, drawn for it
//! alone, and the names that may stand there before it. If Redis finds the call's own name, it answers as it
//! did at first. If it finds any other, the call comes late, behind its successor, or this process is a copy
//! of another one, by a fork or a restored snapshot, that has sent a call since. Redis then refuses the call
//! without carrying it out, and the copy goes on as another sender.

use std::sync::Arc;

use crate::{error::Error, server::names::Nonce};

/// The largest number of calls in a row whose outcome is unknown.
const UNKNOWN: usize = 16;

#[derive(Clone)]
pub(crate) struct CallNames {
    /// Under which Redis stores the last call.
    name: Nonce,
    call: Nonce,
    /// The names that Redis may have stored.
    before: Vec<Nonce>,
}

/// A call of a sender.
#[derive(Clone, Debug)]
pub(crate) struct CallName {
    pub(crate) sequence: String,
    /// The token under which the jobs of a take are held.
    pub(crate) token: Arc<str>,
}

impl CallNames {
    pub(crate) fn new() -> CallNames {
        CallNames {
            name: Nonce::new(),
            call: Nonce::new(),
            before: Vec::new(),
        }
    }

    /// Begins the next call.
    pub(crate) fn next_call(&mut self) {
        self.call = Nonce::new();
    }

    /// Returns everything by which Redis knows the call.
    pub(crate) fn call_name(&self) -> CallName {
        CallName {
            sequence: self.sequence(),
            token: self.call.to_string().into(),
        }
    }

    /// Returns the call's first argument: its name, that of the sender, and those of the calls that Redis may
    /// have stored.
    pub(crate) fn sequence(&self) -> String {
        let mut sequence = format!("{}@{}", self.call, self.name);
        for before in &self.before {
            sequence.push(' ');
            sequence.push_str(&before.to_string());
        }
        sequence
    }

    /// Records that the call was answered and stored.
    pub(crate) fn stored(&mut self) {
        self.before.clear();
        self.before.push(self.call);
    }

    /// Records that the call failed, and that nobody repeats it.
    pub(crate) fn given_up(&mut self) {
        self.before.push(self.call);
        if self.before.len() > UNKNOWN {
            *self = CallNames::new();
        }
    }

    /// Continues as another sender if Redis refused the call because of what a copy of this process has sent.
    /// Returns whether it did, so that the call can be sent again.
    pub(crate) fn renew_if_copied(&mut self, error: &Error) -> bool {
        let refused = is_stale(error);
        if refused {
            *self = CallNames::new();
        }
        refused
    }
}

/// Whether Redis refused a call because the sender's last one is not among those that may precede it.
pub(super) fn is_stale(error: &Error) -> bool {
    matches!(error, Error::Redis(error) if error.code() == Some("STALE"))
}
