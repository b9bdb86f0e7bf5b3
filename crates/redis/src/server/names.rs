//! `Tag`: the names of keys. `Nonce`: those of calls and holders. `Sender`: one who sends calls by name.

use std::{
    fmt::{self, Write},
    sync::{Arc, LazyLock},
};

use crate::error::Error;

/// The common part of the keys of one lease or partition. They share a hash tag, and therefore a slot of a
/// cluster.
#[derive(Clone, Debug)]
pub(crate) struct Tag {
    tag: String,
}

impl Tag {
    /// Creates `prefix:{name}`. Braces in either part are escaped, so that the only pair of braces is the
    /// hash tag's.
    pub(crate) fn new(prefix: &str, name: &str) -> Tag {
        let mut tag = String::with_capacity(prefix.len() + name.len() + 3);
        escape(&mut tag, prefix);
        tag.push_str(":{");
        escape(&mut tag, name);
        tag.push('}');
        Tag { tag }
    }

    /// Returns a tag whose keys are in the slot of this one's. All names of a slot and a prefix get the same.
    pub(crate) fn of_slot(&self, prefix: &str) -> Tag {
        Tag::new(prefix, &NAMES[self.slot()].to_string())
    }

    /// Returns the slot of the keys, less than [`SLOTS`].
    pub(crate) fn slot(&self) -> usize {
        let from = self.tag.find('{').map_or(0, |brace| brace + 1);
        slot(&self.tag[from..self.tag.len() - 1])
    }

    /// Returns `prefix:{name}:what`.
    pub(crate) fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.tag)
    }
}

/// The number of slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// A number for each slot of a cluster that, written in decimal, is a name in that slot.
static NAMES: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let (mut numbers, mut missing) = (vec![None; SLOTS], SLOTS);
    for number in 0.. {
        let found = &mut numbers[slot(&number.to_string())];
        if found.is_none() {
            *found = Some(number);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    numbers.into_iter().flatten().collect()
});

/// Returns the slot of a key that a [`Tag`] has made.
pub(super) fn slot_of(key: &str) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    slot(tag.map_or(key, |(tag, _)| tag))
}

/// Returns the slot of the keys with this hash tag: CRC-16/XMODEM of its bytes, of which Redis uses 14 bits.
fn slot(tag: &str) -> usize {
    let crc = tag.bytes().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    usize::from(crc) % SLOTS
}

fn escape(to: &mut String, text: &str) {
    for c in text.chars() {
        if matches!(c, '{' | '}' | '%') {
            let _ = write!(to, "%{:02X}", c as u32);
        } else {
            to.push(c);
        }
    }
}

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

/// The largest number of calls in a row whose outcome is unknown.
const UNKNOWN: usize = 16;

/// One who sends calls, each of which has a name, so that Redis carries it out once and in order.
///
/// Redis keeps the name and the answer of the sender's last call. A call tells its own name, drawn for it
/// alone, and the names that may stand there before it. If Redis finds the call's own name, it answers as it
/// did at first. If it finds any other, the call comes late, behind its successor, or this process is a copy
/// of another one, by a fork or a restored snapshot, that has sent a call since. Redis then refuses the call
/// without carrying it out, and the copy goes on as another sender.
#[derive(Clone)]
pub(crate) struct Sender {
    /// Under which Redis stores the last call.
    name: Nonce,
    call: Nonce,
    /// The names that Redis may have stored.
    before: Vec<Nonce>,
}

/// What tells a call of a sender from all others.
#[derive(Clone, Debug)]
pub(crate) struct CallName {
    /// What Redis is told: the name, and those that it has to compare it with.
    pub(crate) sequence: String,
    pub(crate) name: Arc<str>,
}

impl Sender {
    pub(crate) fn new() -> Sender {
        Sender {
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
            name: self.call.to_string().into(),
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
            *self = Sender::new();
        }
    }

    /// Continues as another sender if Redis refused the call because of what a copy of this process has sent.
    /// Returns whether it did, so that the call can be sent again.
    pub(crate) fn renew_if_copied(&mut self, error: &Error) -> bool {
        let refused = matches!(error, Error::Redis(error) if error.code() == Some("STALE"));
        if refused {
            *self = Sender::new();
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_only_braces_are_the_tags() {
        let tag = Tag::new("app{1}", "a{b}c%7B");
        assert_eq!(tag.key("holder"), "app%7B1%7D:{a%7Bb%7Dc%257B}:holder");
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The check value of CRC-16/XMODEM, and slots that `CLUSTER KEYSLOT` returned.
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("reports"), 5152);
        for name in ["reports", "a{b}", "ключ"] {
            let shared = Tag::new("app{1}", name).of_slot("app{1}");
            assert_eq!(shared.slot(), Tag::new("app{1}", name).slot(), "{shared:?}");
            assert_eq!(slot_of(&shared.key("fence")), shared.slot(), "{shared:?}");
        }
    }

    #[test]
    fn names_do_not_run_into_prefixes() {
        assert_ne!(Tag::new("a:b", "c").key("x"), Tag::new("a", "b:c").key("x"));
        assert_ne!(Tag::new("a", "{").key("x"), Tag::new("a", "%7B").key("x"));
    }

    #[test]
    fn no_two_are_equal() {
        let nonces: HashSet<String> = (0..1000).map(|_| Nonce::new().to_string()).collect();
        assert_eq!(nonces.len(), 1000);
    }
}
