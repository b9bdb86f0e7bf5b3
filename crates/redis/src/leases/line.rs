//! `Waiters`: the tasks of a process that wait for leases, of which one per lease asks Redis.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    mutex::Mutex,
    server::{names::Nonce, notifications::Listener},
    timers::LocalSleep,
};

/// How often the first in a line shows that it is still polled.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// After how long without such a sign the first in a line becomes the last: its future was kept and is not
/// polled any more.
const STALE: Duration = Duration::from_secs(3);
/// The same for one that is woken because the one before it was passed over, until one comes: the tasks of a
/// runtime stop together.
const STALE_ONCE_WOKEN: Duration = Duration::from_millis(100);
/// How many of those behind look at the same time whether the first is still polled. The rest look later, or
/// a long line would do nothing else.
const LOOKERS: u32 = 32;

/// The lines of waiting tasks, by the key of the lease.
pub(super) struct Waiters {
    /// The name under which Redis knows this process, which waits for leases.
    process: Nonce,
    lines: Mutex<HashMap<String, Line>>,
}

struct Line {
    /// The first one asks Redis.
    tasks: VecDeque<Waiting>,
    numbers: u64,
    /// When the first was polled last or woken, and after how long it is passed over.
    alive_at: Instant,
    patience: Duration,
    /// Whether the last task that was first holds the lease, unless it has lost it since.
    is_held: bool,
    /// Whether this process has released the lease since the first asked last.
    is_released: bool,
    /// Since when this process has waited for its turn among others.
    since: Instant,
    /// The token of the holder that it found meanwhile.
    seen: Option<u64>,
    /// Hears of releases by other processes. Created once a task has to wait, and left to the next.
    listener: Option<Arc<Listener>>,
}

struct Waiting {
    number: u64,
    /// Wakes the task when it has become the first, or as the first when the lease is released.
    waker: Option<Waker>,
    /// Whether it has been passed over and has not been polled since. These are the last.
    is_absent: bool,
    request: Request,
}

/// What has become of a task's request for the lease.
enum Request {
    /// It has been answered, or there is none.
    Over,
    /// It may have been granted.
    UnderWay(Undo),
    /// The same, but whoever has passed the task over has released the lease.
    Undone,
}

/// Releases a lease that may have been granted to a task that is not polled any more.
pub(super) type Undo = Box<dyn FnOnce() + Send>;

/// What Redis is told of a process that waits for a lease, so that each of several processes has its
/// standing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) process: Nonce,
    /// How long it has waited since it last had the lease.
    pub(super) waited: Duration,
    /// The token of the holder that it found meanwhile. If there is another one now, this process was passed
    /// over.
    pub(super) seen: Option<u64>,
}

/// The error of a task that was passed over while it asked for the lease.
#[derive(Debug)]
pub(super) struct PassedOver;

/// What to do, without the lock, about tasks that are to be woken or were passed over.
#[derive(Default)]
struct FollowUp {
    waker: Option<Waker>,
    /// A waker that another has replaced. Its drop may drop a task, and so another waiter.
    replaced: Option<Waker>,
    undo: Option<Undo>,
}

impl FollowUp {
    fn act(self) {
        wake(self.waker);
        if let Some(release) = self.undo {
            release();
        }
    }
}

/// A task in a line.
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    key: String,
    number: u64,
}

impl Default for Waiters {
    fn default() -> Waiters {
        Waiters {
            process: Nonce::new(),
            lines: Mutex::default(),
        }
    }
}

impl Waiters {
    /// Enters the line for a lease, at its end.
    pub(super) fn waiter(&self, key: String) -> Waiter<'_> {
        let mut lines = self.lines.lock();
        let line = lines.entry(key.clone()).or_insert_with(Line::new);
        let number = line.numbers;
        line.numbers += 1;
        let task = Waiting {
            number,
            waker: None,
            is_absent: false,
            request: Request::Over,
        };
        // Behind all that are polled.
        let last = line.tasks.iter().rposition(|task| !task.is_absent);
        line.tasks.insert(last.map_or(0, |last| last + 1), task);
        drop(lines);
        Waiter {
            waiters: self,
            key,
            number,
        }
    }

    /// Records that this process has released a lease.
    pub(super) fn released(&self, key: &str) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(key) else { return };
        line.is_held = false;
        line.is_released = true;
        let waker = line.tasks.front_mut().and_then(|first| first.waker.take());
        drop(lines);
        wake(waker);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lines.lock().len()
    }
}

impl Line {
    fn new() -> Line {
        let now = Instant::now();
        Line {
            tasks: VecDeque::new(),
            numbers: 0,
            alive_at: now,
            patience: STALE,
            is_held: false,
            is_released: false,
            since: now,
            seen: None,
            listener: None,
        }
    }

    fn is_first(&self, number: u64) -> bool {
        self.tasks.front().is_some_and(|first| first.number == number)
    }

    fn task(&mut self, number: u64) -> &mut Waiting {
        let task = self.tasks.iter_mut().find(|task| task.number == number);
        task.expect("a task is in its line for as long as its waiter lives")
    }

    /// Records that a waiter is polled. Returns when it has to look again unless it is the first, and what
    /// follows where it has passed over the first, which is not polled.
    fn polled(&mut self, number: u64, waker: Waker, now: Instant) -> (Option<Instant>, FollowUp) {
        let is_first = self.is_first(number);
        let mut follow_up = if !is_first && self.alive_at + self.patience <= now {
            self.pass_over_first(now)
        } else {
            FollowUp::default()
        };
        let position = self.tasks.iter().position(|task| task.number == number);
        let position = position.unwrap_or_default();
        if let Some(own) = self.tasks.get_mut(position) {
            own.is_absent = false;
            follow_up.replaced = own.waker.replace(waker);
        }
        if position == 0 {
            self.alive_at = now;
            self.patience = STALE;
            return (None, follow_up);
        }
        let look_at = self.alive_at + self.patience;
        if self.patience < STALE {
            return (Some(look_at), follow_up);
        }
        let others = u32::try_from(position).unwrap_or(u32::MAX) / LOOKERS;
        (Some(look_at + STALE * others), follow_up)
    }

    /// Returns the waker of the first, which begins its time.
    fn wake_first(&mut self, now: Instant) -> Option<Waker> {
        self.alive_at = now;
        self.tasks.front_mut().and_then(|first| first.waker.take())
    }

    /// Moves the first to the end.
    fn pass_over_first(&mut self, now: Instant) -> FollowUp {
        let mut undo = None;
        if let Some(mut first) = self.tasks.pop_front() {
            first.is_absent = true;
            if let Request::UnderWay(_) = first.request
                && let Request::UnderWay(release) = mem::replace(&mut first.request, Request::Undone)
            {
                undo = Some(release);
            }
            self.tasks.push_back(first);
        }
        self.patience = STALE_ONCE_WOKEN;
        FollowUp {
            waker: self.wake_first(now),
            replaced: None,
            undo,
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Waiter<'_> {
    fn with<R>(&self, act: impl FnOnce(&mut Line) -> R) -> R {
        let mut lines = self.waiters.lines.lock();
        let line = lines.get_mut(&self.key);
        act(line.expect("a line exists for as long as its waiters"))
    }

    /// Waits until this waiter is first in its line. It stays first while it is polled, by
    /// [`stay`](Waiter::stay), until it is dropped.
    pub(super) async fn first(&self) {
        let mut look: Option<(Instant, LocalSleep)> = None;
        poll_fn(|cx| {
            loop {
                let now = Instant::now();
                let waker = cx.waker().clone();
                let (look_at, follow_up) = self.with(|line| line.polled(self.number, waker, now));
                follow_up.act();
                let Some(look_at) = look_at else {
                    return Poll::Ready(());
                };
                // One that ends sooner does, because this waiter looks again then.
                let (_, timer) = match &mut look {
                    Some(timer) if timer.0 <= look_at => timer,
                    other => other.insert((look_at, LocalSleep::until(look_at))),
                };
                if Pin::new(timer).poll(cx).is_pending() {
                    return Poll::Pending;
                }
                look = None;
            }
        })
        .await;
    }

    /// Awaits a future as the first in the line, and shows that it is polled.
    pub(super) async fn stay<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut sign = LocalSleep::until(Instant::now() + SIGN_OF_LIFE);
        poll_fn(|cx| {
            self.with(|line| {
                if line.is_first(self.number) {
                    line.alive_at = Instant::now();
                }
            });
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(output);
            }
            while Pin::new(&mut sign).poll(cx).is_ready() {
                sign = LocalSleep::until(Instant::now() + SIGN_OF_LIFE);
            }
            Poll::Pending
        })
        .await
    }

    /// Forgets earlier releases, because a request that is sent after them finds the lease free anyway.
    pub(super) fn forget_releases(&self) {
        let listener = self.with(|line| {
            line.is_released = false;
            line.listener.clone()
        });
        if let Some(listener) = listener {
            listener.forget();
        }
    }

    /// Records that this waiter asks for the lease, which whoever passes it over may undo.
    ///
    /// # Errors
    ///
    /// Returns an error, once, if an earlier request of it was undone.
    pub(super) fn record_request(&self, undo: Undo) -> Result<(), PassedOver> {
        // Dropped with the lock released.
        let before = self.with(|line| {
            let request = &mut line.task(self.number).request;
            let is_undone = matches!(request, Request::Undone);
            mem::replace(
                request,
                if is_undone {
                    Request::Over
                } else {
                    Request::UnderWay(undo)
                },
            )
        });
        match before {
            Request::Undone => Err(PassedOver),
            _ => Ok(()),
        }
    }

    /// Records that this waiter has acquired the lease, which nobody undoes from now on.
    ///
    /// # Errors
    ///
    /// Returns an error if that has been undone.
    pub(super) fn record_grant(&self) -> Result<(), PassedOver> {
        let before = self.with(|line| {
            let before = mem::replace(&mut line.task(self.number).request, Request::Over);
            if let Request::UnderWay(_) = before {
                line.is_held = true;
                line.since = Instant::now();
                line.seen = None;
            }
            before
        });
        match before {
            Request::UnderWay(_) => Ok(()),
            _ => Err(PassedOver),
        }
    }

    /// Whether the waiter before acquired the lease and has not released it.
    pub(super) fn is_held_here(&self) -> bool {
        self.with(|line| line.is_held)
    }

    /// Waits until this process has released the lease since [`forget_releases`](Waiter::forget_releases), or
    /// until another waiter is first.
    pub(super) async fn released(&self) {
        poll_fn(|cx: &mut Context<'_>| {
            let waker = cx.waker().clone();
            // The waker that is not needed is dropped with the lock released.
            let (poll, _unneeded) = self.with(|line| {
                if !line.is_first(self.number) || mem::take(&mut line.is_released) {
                    return (Poll::Ready(()), Some(waker));
                }
                (Poll::Pending, line.task(self.number).waker.replace(waker))
            });
            poll
        })
        .await;
    }

    /// Returns what Redis is told of this process when it asks for the lease.
    pub(super) fn standing(&self) -> Standing {
        let (waited, seen) = self.with(|line| (line.since.elapsed(), line.seen));
        Standing {
            process: self.waiters.process,
            waited,
            seen,
        }
    }

    /// Records that another holds the lease, with its token.
    pub(super) fn record_refusal(&self, token: Option<u64>) {
        let answered = self.with(|line| {
            line.seen = token.or(line.seen);
            mem::replace(&mut line.task(self.number).request, Request::Over)
        });
        drop(answered);
    }

    pub(super) fn listener(&self) -> Option<Arc<Listener>> {
        self.with(|line| line.listener.clone())
    }

    /// Lets the line hear of releases by other processes.
    pub(super) fn listen(&self, listener: Listener) {
        let listener = Arc::new(listener);
        let old = self.with(|line| line.listener.replace(listener));
        drop(old);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.waiters.lines.lock();
        let Some(line) = lines.get_mut(&self.key) else {
            return;
        };
        let mut waker = None;
        let position = line.tasks.iter().position(|task| task.number == self.number);
        let left = position.and_then(|position| line.tasks.remove(position));
        if position == Some(0) {
            waker = line.wake_first(Instant::now());
        }
        let mut gone = None;
        if line.tasks.is_empty() {
            gone = lines.remove(&self.key);
            // The table of a process that once waited for many names becomes small again.
            if lines.capacity() > 64 && lines.len() < lines.capacity() / 8 {
                lines.shrink_to_fit();
            }
        }
        drop(lines);
        // Dropped with the lock released, because they may hold the last listener, and a connection.
        drop((gone, left));
        wake(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        task::Wake,
        thread,
    };

    use tokio::runtime::Builder;
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[tokio::test]
    async fn the_line_moves_on_in_order_and_nothing_is_left() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
        assert_ready!(task::spawn(first.first()).poll());
        let mut waiting = task::spawn(second.first());
        assert_pending!(waiting.poll());
        drop(first);
        assert!(waiting.is_woken());
        assert_ready!(waiting.poll());
        drop(waiting);
        assert_eq!(waiters.len(), 1);
        drop(second);
        assert_eq!(waiters.len(), 0);
    }

    #[tokio::test]
    async fn the_table_becomes_small_again() {
        let waiters = Waiters::default();
        let many: Vec<_> = (0..10_000).map(|n| waiters.waiter(format!("{n}"))).collect();
        let kept = waiters.waiter("kept".into());
        assert!(waiters.lines.lock().capacity() > 10_000);
        drop(many);
        assert!(waiters.lines.lock().capacity() < 100);
        drop(kept);
    }

    /// As of futures that were polled once and kept.
    #[tokio::test(start_paused = true)]
    async fn those_who_are_not_polled_are_passed_over() {
        let waiters = Waiters::default();
        let kept: Vec<_> = (0..3).map(|_| waiters.waiter("a".into())).collect();
        assert_ready!(task::spawn(kept[0].first()).poll());
        assert_pending!(task::spawn(kept[1].first()).poll());
        let polled = waiters.waiter("a".into());
        let began = Instant::now();
        polled.first().await;
        assert!(began.elapsed() <= STALE * 2, "{:?}", began.elapsed());
        // It is polled, and stays first.
        let later = waiters.waiter("a".into());
        let mut later = task::spawn(later.first());
        polled.stay(tokio::time::sleep(STALE * 5)).await;
        assert_pending!(later.poll());
    }

    /// As when the thread was not run for a while.
    #[tokio::test(start_paused = true)]
    async fn many_who_are_not_polled_are_passed_over_once() {
        let waiters = Waiters::default();
        let mut kept: Vec<_> = (0..100).map(|_| waiters.waiter("a".into())).collect();
        for waiter in &kept {
            let _ = task::spawn(waiter.first()).poll();
        }
        let (polled, later) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
        let began = Instant::now();
        polled.first().await;
        assert!(began.elapsed() <= STALE * 8, "{:?}", began.elapsed());
        drop(polled);
        assert_ready!(task::spawn(later.first()).poll());
        drop(later);
        let newest = waiters.waiter("a".into());
        assert_ready!(task::spawn(newest.first()).poll());
        // One that is polled again has its place before those who come later.
        let again = kept.pop().unwrap();
        assert_pending!(task::spawn(again.first()).poll());
        let behind = waiters.waiter("a".into());
        drop(newest);
        let mut behind = task::spawn(behind.first());
        assert_pending!(behind.poll());
        again.first().await;
        assert_pending!(behind.poll());
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_that_is_passed_over_was_granted_is_undone() {
        let waiters = Waiters::default();
        let undone = Arc::new(AtomicBool::new(false));
        let undo = || -> Undo {
            let undone = undone.clone();
            Box::new(move || undone.store(true, Ordering::Relaxed))
        };
        let [kept, holder] = [(); 2].map(|()| waiters.waiter("a".into()));
        assert_ready!(task::spawn(kept.first()).poll());
        kept.record_request(undo()).unwrap();
        holder.first().await;
        assert!(undone.swap(false, Ordering::Relaxed));
        holder.record_request(undo()).unwrap();
        // It is told when it asks again, or when its answer comes.
        assert!(kept.record_request(undo()).is_err());
        kept.record_request(undo()).unwrap();
        assert!(kept.record_grant().is_ok());
        // One that has the lease keeps it, whether or not it is polled.
        holder.record_grant().unwrap();
        let later = waiters.waiter("a".into());
        later.first().await;
        assert!(!undone.load(Ordering::Relaxed));
        assert!(holder.record_grant().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_future_takes_long_stays() {
        let waiters = Waiters::default();
        let waiter = waiters.waiter("a".into());
        waiter.first().await;
        waiter.stay(tokio::time::advance(SIGN_OF_LIFE * 2)).await;
    }

    #[tokio::test]
    async fn a_release_before_the_question_is_forgotten() {
        let waiters = Waiters::default();
        let waiter = waiters.waiter("a".into());
        waiters.released("a");
        waiter.forget_releases();
        assert_pending!(task::spawn(waiter.released()).poll());
    }

    #[tokio::test]
    async fn the_next_knows_that_the_one_before_holds() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
        assert!(!second.is_held_here());
        first.record_request(Box::new(|| ())).unwrap();
        first.record_grant().unwrap();
        drop(first);
        assert!(second.is_held_here());
        waiters.released("a");
        assert!(!second.is_held_here());
    }

    #[tokio::test]
    async fn a_release_is_heard_also_by_one_who_listens_later() {
        let waiters = Waiters::default();
        let waiter = waiters.waiter("a".into());
        waiters.released("a");
        waiters.released("b");
        assert_ready!(task::spawn(waiter.released()).poll());
        let mut waiting = task::spawn(waiter.released());
        assert_pending!(waiting.poll());
        waiters.released("a");
        assert!(waiting.is_woken());
    }

    /// A task's waker may be all that keeps the task, and so another waiter.
    #[test]
    fn a_waker_that_drops_a_waiter_is_dropped_with_the_lines_unlocked() {
        struct Keeps(#[expect(dead_code)] Mutex<Waiter<'static>>);
        impl Wake for Keeps {
            fn wake(self: Arc<Self>) {}
        }
        fn poll(future: impl Future, waker: &Waker) {
            let polled = pin!(future).poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        let (unlocked, waits) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let _entered = runtime.enter();
            let waiters: &Waiters = Box::leak(Box::default());
            let keeps = || {
                let kept = Mutex::new(waiters.waiter("b".into()));
                Waker::from(Arc::new(Keeps(kept)))
            };
            let (first, second) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
            poll(second.first(), &keeps());
            poll(second.first(), Waker::noop());
            poll(first.released(), &keeps());
            poll(first.released(), Waker::noop());
            unlocked.send(()).unwrap();
        });
        waits
            .recv_timeout(Duration::from_secs(30))
            .expect("a waker was dropped with the lines locked");
    }
}
