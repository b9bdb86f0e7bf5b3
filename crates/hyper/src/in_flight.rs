//! What is in flight on a connection.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::connection::Connection;

/// Counts the requests in the low half, and the buffers of responses in the high half. They are in one word
/// because somebody has to notice when the last of both is gone.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicU64);

const REQUEST: u64 = 1;
const BUFFER: u64 = 1 << 32;

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Returns whether hyper still holds buffers of responses.
    pub(crate) fn has_buffers(&self) -> bool {
        self.0.load(Ordering::Acquire) >= BUFFER
    }
}

/// Something that is in flight until this is dropped, in any task.
#[derive(Debug)]
pub(crate) struct Token<const UNIT: u64>(Arc<Connection>);

/// A request until its response has been taken, or a request's body until it has ended.
pub(crate) type RequestToken = Token<REQUEST>;

/// A buffer of a response.
pub(crate) type BufferToken = Token<BUFFER>;

impl<const UNIT: u64> Token<UNIT> {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        connection.in_flight.0.fetch_add(UNIT, Ordering::Relaxed);
        Token(connection.clone())
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl<const UNIT: u64> Drop for Token<UNIT> {
    fn drop(&mut self) {
        let count = &self.0.in_flight.0;
        let mut before = count.load(Ordering::Relaxed);
        loop {
            if before == UNIT {
                // First, because whoever sees that nothing is in flight asks since when.
                self.0.fall_quiet();
            }
            let after = before - UNIT;
            match count.compare_exchange_weak(before, after, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => before = changed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicBool,
        thread::{self, yield_now},
    };

    use tickwheel::Wheel;

    use super::*;
    use crate::{control::Control, time::Moment};

    /// The clock is read between two steps of a drop, which is time enough for the other thread.
    #[test]
    fn nothing_is_in_flight_only_after_it_is_known_since_when() {
        let connection = Arc::new(Connection::new(Arc::new(Control::new(&Wheel::new()))));
        for _ in 0..200 {
            let (request, is_watching) = (RequestToken::new(&connection), AtomicBool::new(false));
            let buffer = BufferToken::new(&connection);
            let before = connection.now();
            thread::scope(|scope| {
                scope.spawn(|| {
                    is_watching.store(true, Ordering::Relaxed);
                    while !connection.in_flight.is_empty() {
                        std::hint::spin_loop();
                    }
                    let since = connection.quiet_since();
                    assert!(since >= before && since > Moment::START, "{since:?}, {before:?}");
                });
                while !is_watching.load(Ordering::Relaxed) {
                    yield_now();
                }
                drop(request);
                drop(buffer);
            });
        }
    }
}
