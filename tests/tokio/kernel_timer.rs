//! What `src/engine/driver/timer_fd.rs` requires of Tokio and of Linux.

use std::{
    future::{Future, poll_fn},
    io,
    os::unix,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::{io::Interest, net::UnixStream, task, time};

use super::{HOUR, LIMIT, MILLISECOND, comes_back, current_thread, multi_thread, waker};

fn timer() -> UnixStream {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).unwrap();
    UnixStream::from_std(unix::net::UnixStream::from(timer)).unwrap()
}

fn set(timer: &UnixStream, after: Duration) {
    let it_value = Timespec {
        tv_sec: after.as_secs().try_into().unwrap(),
        tv_nsec: after.subsec_nanos().into(),
    };
    let time = Itimerspec {
        it_interval: Timespec::default(),
        it_value,
    };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &time).unwrap();
}

fn poll(timer: &UnixStream, waker: &Waker) -> Poll<()> {
    timer
        .poll_read_ready(&mut Context::from_waker(waker))
        .map(Result::unwrap)
}

fn clear(timer: &UnixStream) {
    let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
    timer.try_io(Interest::READABLE, nothing).unwrap_err();
}

#[test]
fn a_waker_may_register_itself_and_set_the_timer_again() {
    let changed = "Tokio holds a lock of the resource while it calls a waker: the driver, which makes its turns in a waker and registers \
                   itself there (timer_fd.rs, 1), would deadlock";
    for runtime in [current_thread, multi_thread] {
        comes_back(changed, move || {
            let runtime = runtime();
            let timer = Arc::new(runtime.block_on(async { timer() }));
            let (tell, told) = mpsc::channel();
            let again = timer.clone();
            let waker = waker(move || {
                clear(&again);
                assert!(poll(&again, Waker::noop()).is_pending());
                set(&again, HOUR);
                tell.send(()).unwrap();
            });
            runtime.block_on(async {
                assert!(poll(&timer, &waker).is_pending());
                set(&timer, MILLISECOND);
                time::sleep(20 * MILLISECOND).await;
            });
            told.recv_timeout(LIMIT).expect("the waker has been called");
        });
    }
}

#[test]
fn each_expiry_is_an_edge_whether_or_not_the_one_before_was_read() {
    let runtime = current_thread();
    runtime.block_on(async {
        let timer = timer();
        for _ in 0..10 {
            clear(&timer);
            set(&timer, MILLISECOND);
            let ready = time::timeout(LIMIT, timer.readable()).await;
            ready
                .expect("timer_fd.rs never reads its timer, which would expire once only")
                .unwrap();
        }
    });
}

#[test]
fn setting_a_timer_takes_back_an_expiry_that_nobody_has_seen() {
    let runtime = current_thread();
    let timer = runtime.block_on(async { timer() });
    set(&timer, Duration::from_nanos(1));
    thread::sleep(MILLISECOND);
    set(&timer, HOUR);
    let wakes = Arc::new(AtomicUsize::new(0));
    let counted = wakes.clone();
    let waker = waker(move || _ = counted.fetch_add(1, SeqCst));
    runtime.block_on(async {
        assert!(poll(&timer, &waker).is_pending());
        time::sleep(5 * MILLISECOND).await;
        assert!(poll(&timer, &waker).is_pending());
    });
    assert_eq!(wakes.load(SeqCst), 0, "the driver would run for nothing");
}

#[test]
fn readiness_is_not_seen_again_once_it_is_cleared() {
    let runtime = current_thread();
    runtime.block_on(async {
        let timer = timer();
        set(&timer, Duration::from_nanos(1));
        timer.readable().await.unwrap();
        clear(&timer);
        let again = time::timeout(5 * MILLISECOND, timer.readable()).await;
        again.expect_err("epoll is level-triggered: the driver would run without end");
    });
}

#[test]
fn a_timer_without_budget_is_not_registered_and_one_that_ignores_it_is() {
    let runtime = current_thread();
    let woken = runtime.block_on(runtime.spawn(async {
        let timers = [timer(), timer()];
        let woken = [const { AtomicUsize::new(0) }; 2].map(Arc::new);
        let wakers = woken
            .clone()
            .map(|woken| waker(move || _ = woken.fetch_add(1, SeqCst)));
        poll_fn(|cx| {
            while pin!(task::coop::consume_budget()).poll(cx).is_ready() {}
            assert!(poll(&timers[0], &wakers[0]).is_pending());
            let registered = pin!(task::unconstrained(poll_fn(|cx| poll(&timers[1], cx.waker()))));
            assert!(registered.poll(&mut Context::from_waker(&wakers[1])).is_pending());
            Poll::Ready(())
        })
        .await;
        task::yield_now().await;
        let before = woken.each_ref().map(|woken| woken.load(SeqCst));
        timers.iter().for_each(|timer| set(timer, MILLISECOND));
        time::sleep(20 * MILLISECOND).await;
        let after = woken.map(|woken| woken.load(SeqCst));
        (before, after)
    }));
    let (before, after) = woken.unwrap();
    assert_eq!(
        (before, after),
        ([1, 0], [1, 1]),
        "the driver ignores the budget of the calling task (timer_fd.rs, 3), because without any it would be woken for nothing, and not when its \
         timer expires"
    );
}

#[test]
fn a_timer_that_is_set_to_the_past_expires_at_once() {
    let runtime = current_thread();
    runtime.block_on(async {
        let timer = timer();
        let it_value = Timespec {
            tv_sec: 0,
            tv_nsec: 1,
        };
        let time = Itimerspec {
            it_interval: Timespec::default(),
            it_value,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &time).unwrap();
        let mut readable = pin!(timer.readable());
        time::timeout(LIMIT, &mut readable)
            .await
            .expect("the driver would not run")
            .unwrap();
    });
}
