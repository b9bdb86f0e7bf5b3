//! `Windows`: bounds the requests that a keeper has in flight, and orders those that wait.
//!
//! A client that stops waiting for an answer cannot take its request back. If every lease of a process sent
//! its renewal again after each timeout, a server that was suspended would find a queue of requests that
//! nobody waits for, and would answer the current ones too late as well.
//!
//! Requests for leases whose slots lie close together share a window. While they are answered, [`MAX_IN_FLIGHT`] of
//! them may be in flight. Each request without an answer takes one permit away, down to a last one, with
//! which one request at a time finds out whether the server answers again. An answer brings all permits back.
//! Because a node of a cluster has ranges of slots, a silent one delays only the leases of its own slots.
//!
//! A free permit goes to the request with the earliest deadline. In the order of their calls, those that
//! found a server silent, which are the first to expire, would wait behind all others when it answers again.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use crate::{error::Error, mutex::Mutex, server::names::SLOTS, timers};

/// The number of windows. With [`MAX_IN_FLIGHT`], so that a node of a cluster has fewer than fifty of the requests.
/// The client reads the slot map behind all that wait for it, and those wait for the map if there are more.
const WINDOWS: usize = 32;
/// The number of permits of a window.
const MAX_IN_FLIGHT: usize = 3;
/// How long a request keeps its permit. A client without a timeout waits for longer, but no other request
/// waits for that one.
const LONGEST_PERMIT: Duration = Duration::from_secs(1);

/// The windows of one keeper.
pub(super) struct Windows([Arc<Window>; WINDOWS]);

#[derive(Default)]
struct Window {
    permits: Mutex<Permits>,
}

struct Permits {
    /// How many requests may have one.
    open: usize,
    taken: usize,
    /// By deadline, and by number where that is the same.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<Permit>>,
    numbers: u64,
}

/// Lets a request be in flight. The next request gets it when it is dropped.
struct Permit {
    window: Arc<Window>,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows(std::array::from_fn(|_| Arc::default()))
    }
}

impl Default for Permits {
    fn default() -> Permits {
        Permits {
            open: MAX_IN_FLIGHT,
            taken: 0,
            waiting: BTreeMap::new(),
            numbers: 0,
        }
    }
}

impl Windows {
    /// Sends a request as soon as there is a permit for it and none with an earlier `deadline` waits. Returns
    /// when it was sent, too.
    ///
    /// The future must be polled whenever it is woken, because others wait for its permit.
    pub(super) async fn send<T>(
        &self,
        slot: usize,
        deadline: Instant,
        request: impl Future<Output = Result<T, Error>>,
    ) -> (Instant, Result<T, Error>) {
        let window = &self.0[slot * WINDOWS / SLOTS];
        let permit = window.permit(deadline).await;
        let sent = Instant::now();
        let mut request = pin!(request);
        let answer = match timers::until(sent + LONGEST_PERMIT, &mut request).await {
            Some(answer) => {
                if answer.as_ref().is_err_and(Error::is_unanswered) {
                    window.close();
                }
                answer
            }
            None => {
                window.close();
                drop(permit);
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
    /// Waits for a permit.
    async fn permit(self: &Arc<Window>, deadline: Instant) -> Permit {
        let given = {
            let mut permits = self.permits.lock();
            if permits.taken < permits.open {
                permits.taken += 1;
                drop(permits);
                return Permit { window: self.clone() };
            }
            let (give, given) = oneshot::channel();
            let rank = (deadline, permits.numbers);
            permits.numbers += 1;
            permits.waiting.insert(rank, give);
            given
        };
        given.await.expect("a request waits until it has a permit")
    }

    /// Takes a permit away unless it is the last one.
    fn close(&self) {
        let mut permits = self.permits.lock();
        permits.open = (permits.open - 1).max(1);
    }

    /// Brings all permits back.
    fn open(self: &Arc<Window>) {
        self.permits.lock().open = MAX_IN_FLIGHT;
        self.give_permits();
    }

    /// Gives the free permits to those that wait.
    fn give_permits(self: &Arc<Window>) {
        loop {
            let mut permits = self.permits.lock();
            if permits.taken >= permits.open {
                return;
            }
            let Some((_, waiting)) = permits.waiting.pop_first() else {
                return;
            };
            // Skipped here, and not by dropping its permit, because there may be many of them in a row.
            if waiting.is_closed() {
                continue;
            }
            permits.taken += 1;
            drop(permits);
            drop(waiting.send(Permit { window: self.clone() }));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.window.permits.lock().taken -= 1;
        self.window.give_permits();
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
    use tokio::time::{sleep, sleep_until, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn timed_out<T>() -> Result<T, Error> {
        Err(Error::Redis(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    /// A deadline that all requests have that are made at the same time.
    fn late() -> Instant {
        Instant::now() + 100 * SECOND
    }

    /// How many of so many requests are in flight at once if each is answered after a moment.
    async fn in_flight(windows: &Windows, requests: usize) -> usize {
        let (now, most) = (Cell::new(0), Cell::new(0));
        join_all((0..requests).map(|_| {
            windows.send(0, late(), async {
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
        assert_eq!(in_flight(&windows, 100).await, MAX_IN_FLIGHT);
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
            .map(|_| windows.send(0, late(), async { silent().await }))
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
        windows.send(0, late(), ready(Ok(()))).await.1.unwrap();
        assert_eq!(in_flight(&windows, 100).await, MAX_IN_FLIGHT);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_timeout_leave_their_permits() {
        let windows = Windows::default();
        let hanging = join_all((0..50).map(|_| windows.send::<()>(0, late(), pending())));
        let answered = async {
            // Behind the others, of which each takes a second at most.
            windows.send(0, late(), ready(Ok(()))).await.1.unwrap();
            assert_eq!(in_flight(&windows, 100).await, MAX_IN_FLIGHT);
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
        let mut hanging = pin!(join_all((0..100).map(|_| windows.send::<()>(
            0,
            late(),
            pending()
        ))));
        assert!(hanging.as_mut().now_or_never().is_none());
        let began = Instant::now();
        let (sent, answer) = windows.send(SLOTS - 1, late(), ready(Ok(()))).await;
        answer.unwrap();
        assert_eq!(sent, began);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_dropped_leave_their_permits() {
        let windows = Windows::default();
        let hanging = join_all((0..100).map(|_| windows.send::<()>(0, late(), pending())));
        assert!(timeout(SECOND / 2, hanging).await.is_err());
        assert_eq!(in_flight(&windows, 100).await, MAX_IN_FLIGHT);
    }

    /// Leases that are renewed at a third of their TTL, by a server that is silent from the first renewal on
    /// for more than a third of the TTL, and needs as long again to answer all. Those that asked it in vain
    /// are renewed in time, because they do not wait behind the others.
    #[tokio::test(start_paused = true)]
    async fn those_that_a_silent_server_did_not_answer_come_first() {
        const LEASES: u32 = 4_000;
        let (ttl, windows) = (30 * SECOND, Windows::default());
        // For each of those at a time.
        let (began, each) = (Instant::now(), SECOND / 400 * MAX_IN_FLIGHT as u32);
        let (first, end, retry) = (began + ttl / 3, began + ttl, SECOND);
        let answers_at = first + 12 * SECOND;
        let lost = Cell::new(0);
        // They began one after the other within a tenth of the TTL.
        join_all((0..LEASES).map(|n| {
            let (windows, lost, after) = (&windows, &lost, ttl / 10 * n / LEASES);
            async move {
                sleep_until(first + after).await;
                loop {
                    let answer = async {
                        if Instant::now() < answers_at {
                            sleep(SECOND / 2).await;
                            return timed_out();
                        }
                        sleep(each).await;
                        Ok(())
                    };
                    match windows.send(0, end + after, answer).await {
                        (_, Ok(())) => break,
                        _ => sleep(retry).await,
                    }
                }
                lost.set(lost.get() + u32::from(Instant::now() > end + after));
            }
        }))
        .await;
        assert_eq!(lost.get(), 0);
    }
}
