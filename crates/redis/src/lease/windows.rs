//! `Windows`: bounds the requests that a keeper has in flight.
//!
//! A client that stops waiting for an answer cannot take its request back. If every lease of a process sent
//! its renewal again after each timeout, a server that was suspended would find a queue of requests that
//! nobody waits for, and would answer the current ones too late as well.
//!
//! Requests for leases whose slots lie close together share a window. While they are answered, [`MOST`] of
//! them may be in flight. Each request without an answer closes one place, down to a last one, through which
//! one request at a time finds out whether the server answers again. An answer opens all places. Because a
//! node of a cluster has ranges of slots, a silent one delays only the leases of its own slots.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use crate::{error::Error, server::keys::SLOTS, timers};

/// The number of windows.
const WINDOWS: usize = 64;
/// The number of places in a window.
const MOST: usize = 8;
/// How long a request keeps its place. A client without a timeout waits for longer, but no other request
/// waits for that one.
const LONGEST: Duration = Duration::from_secs(1);

/// The windows of one keeper.
#[derive(Debug)]
pub(super) struct Windows([Window; WINDOWS]);

#[derive(Debug)]
struct Window {
    places: Semaphore,
    /// The number of places that are not closed.
    open: AtomicUsize,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows(std::array::from_fn(|_| Window {
            places: Semaphore::new(MOST),
            open: AtomicUsize::new(MOST),
        }))
    }
}

impl Windows {
    /// Sends a request as soon as there is a place for it, in the order of the calls. Returns when it was
    /// sent, too.
    ///
    /// The future must be polled whenever it is woken, because others wait for its place.
    pub(super) async fn send<T>(
        &self,
        slot: usize,
        request: impl Future<Output = Result<T, Error>>,
    ) -> (Instant, Result<T, Error>) {
        let window = &self.0[slot * WINDOWS / SLOTS];
        let place = window.places.acquire().await;
        let place = place.expect("the semaphore is never closed");
        let sent = Instant::now();
        let mut request = pin!(request);
        let answer = match timers::until(sent + LONGEST, &mut request).await {
            Some(answer) => {
                if answer.as_ref().is_err_and(Error::is_unanswered) {
                    window.close(place);
                }
                answer
            }
            None => {
                window.close(place);
                request.await
            }
        };
        if answer.is_ok() {
            window.open();
        }
        (sent, answer)
    }
}

impl Window {
    /// Closes a place unless it is the last one.
    fn close(&self, place: SemaphorePermit<'_>) {
        let is_other = |open: usize| (open > 1).then(|| open - 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        if self.open.fetch_update(set, fetch, is_other).is_ok() {
            place.forget();
        }
    }

    /// Opens all places.
    fn open(&self) {
        self.places
            .add_permits(MOST - self.open.swap(MOST, Ordering::AcqRel));
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::pending, io};

    use futures_util::{
        FutureExt, StreamExt,
        future::{join_all, ready},
        stream::FuturesUnordered,
    };
    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn timed_out<T>() -> Result<T, Error> {
        Err(Error::Redis(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// How many of so many requests are in flight at once if each is answered after a moment.
    async fn in_flight(windows: &Windows, requests: usize) -> usize {
        let (now, most) = (Cell::new(0), Cell::new(0));
        join_all((0..requests).map(|_| {
            windows.send(0, async {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                sleep(SECOND / 10).await;
                now.set(now.get() - 1);
                Ok(())
            })
        }))
        .await;
        most.get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_has_room_for_so_many() {
        let windows = Windows::default();
        assert_eq!(in_flight(&windows, 100).await, MOST);
        assert_eq!(in_flight(&windows, 3).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_asked_by_one_at_a_time_until_it_answers() {
        let windows = Windows::default();
        let sent = Cell::new(0);
        let silent = || {
            sent.set(sent.get() + 1);
            sleep(SECOND / 2).map(|()| timed_out::<()>())
        };
        let mut requests: FuturesUnordered<_> = (0..1000)
            .map(|_| windows.send(0, async { silent().await }))
            .collect();
        let twelve = sleep(12 * SECOND);
        let mut twelve = pin!(twelve);
        loop {
            tokio::select! {
                biased;
                () = &mut twelve => break,
                _ = requests.next() => {}
            }
        }
        assert!((24..40).contains(&sent.get()), "{} requests", sent.get());
        drop(requests);
        // It answers again, which opens the window.
        windows.send(0, ready(Ok(()))).await.1.unwrap();
        assert_eq!(in_flight(&windows, 100).await, MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_timeout_leave_their_places() {
        let windows = Windows::default();
        let hanging = join_all((0..100).map(|_| windows.send::<()>(0, pending())));
        let answered = async {
            // Behind the others, of which each takes a second at most.
            windows.send(0, ready(Ok(()))).await.1.unwrap();
            assert_eq!(in_flight(&windows, 100).await, MOST);
        };
        tokio::select! {
            biased;
            _ = hanging => {}
            done = timeout(100 * SECOND, answered) => done.unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slots_far_away_have_another_window() {
        let windows = Windows::default();
        let mut hanging = pin!(join_all((0..100).map(|_| windows.send::<()>(0, pending()))));
        assert!(hanging.as_mut().now_or_never().is_none());
        let began = Instant::now();
        let (sent, answer) = windows.send(SLOTS - 1, ready(Ok(()))).await;
        answer.unwrap();
        assert_eq!(sent, began);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_dropped_leave_their_places() {
        let windows = Windows::default();
        let hanging = join_all((0..100).map(|_| windows.send::<()>(0, pending())));
        assert!(timeout(SECOND / 2, hanging).await.is_err());
        assert_eq!(in_flight(&windows, 100).await, MOST);
    }
}
