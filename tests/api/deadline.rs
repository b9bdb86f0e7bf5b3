//! Scopes with a deadline: nesting, shields, tasks, panics, and what is dropped at which point.

use crate::support;

use std::{
    cell::RefCell,
    future::{Future, pending, poll_fn, ready},
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tickwheel::{
    LabelStats, Wheel,
    deadline::{self, LimitError},
    time::error::Elapsed,
};
use tokio::{
    task::{LocalSet, yield_now},
    time::{Instant, sleep, sleep_until},
};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, counting_waker, ms, own_process::in_own_process, paused_runtime, settle,
    threaded_runtime,
};

/// What is left of a scope, as a destructor sees it.
#[derive(Default)]
struct Looks(Arc<Mutex<Vec<Option<Duration>>>>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(deadline::remaining());
    }
}

/// Whether a future has been dropped.
struct Tells(Arc<AtomicBool>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// What a scope says.

#[tokio::test(start_paused = true)]
async fn a_scope_tells_its_deadline_to_all_that_it_polls() {
    async fn far_below() -> (Option<Instant>, Option<Duration>) {
        (deadline::current(), deadline::remaining())
    }
    let start = Instant::now();
    let told = deadline::within(SECOND, async {
        sleep(ms(400)).await;
        far_below().await
    });
    let (current, remaining) = told.await.unwrap();
    assert_eq!(current, Some(start + SECOND));
    assert_eq!(remaining, Some(ms(600)));
    assert_eq!((deadline::current(), deadline::remaining()), (None, None));

    let told = deadline::until(start + 5 * SECOND, far_below()).await.unwrap();
    assert_eq!(told.0, Some(start + 5 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn it_elapses_at_its_instant_and_completes_before() {
    if !in_own_process(it_elapses_at_its_instant_and_completes_before, "") {
        return;
    }
    let start = Instant::now();
    for duration in [ms(1), ms(10), ms(999), SECOND, DAY] {
        let start = Instant::now();
        assert!(deadline::within(duration, pending::<()>()).await.is_err());
        assert_eq!(start.elapsed(), duration);
        let deadline = Instant::now() + duration;
        assert!(
            Wheel::new()
                .labelled("l")
                .until(deadline, pending::<()>())
                .await
                .is_err()
        );
        assert_eq!(Instant::now(), deadline);
        let in_time = deadline::within(duration, sleep(duration - ms(1)));
        assert!(in_time.await.is_ok());
    }
    assert!(start.elapsed() > DAY);
    let mut completed = pin!(deadline::within(DAY, sleep(SECOND)));
    assert!(completed.as_mut().await.is_ok());
    let pending = Wheel::global().pending();
    assert_eq!(pending, 0, "a scope that has completed has no timer");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_ready_at_the_deadline_is_in_time() {
    if !in_own_process(a_future_that_is_ready_at_the_deadline_is_in_time, "") {
        return;
    }
    let deadline = Instant::now() + SECOND;
    let both_due = deadline::until(deadline, tickwheel::time::sleep_until(deadline));
    assert_eq!(both_due.await, Ok(()));
    assert_eq!(deadline::within(Duration::ZERO, ready(7)).await, Ok(7));
    assert_eq!(deadline::until(deadline - SECOND, ready(7)).await, Ok(7));
    let registered = Wheel::global().metrics().registered;
    assert_eq!(registered, 2, "the first scope and its sleep");
}

#[test]
fn nothing_left_elapses_at_the_first_pending_poll_and_without_a_timer() {
    if !in_own_process(
        nothing_left_elapses_at_the_first_pending_poll_and_without_a_timer,
        "",
    ) {
        return;
    }
    // On the real clock too.
    for runtime in [paused_runtime(), support::real_runtime()] {
        runtime.block_on(async {
            sleep(ms(5)).await;
            let past = Instant::now() - ms(3);
            for mut scope in [
                deadline::within(Duration::ZERO, pending::<()>()),
                deadline::until(past, pending()),
                Wheel::new().labelled("l").within(Duration::ZERO, pending()),
                Wheel::new().labelled("l").until(past, pending()),
            ] {
                assert!((&mut scope).now_or_never().expect("at once").is_err());
            }
            let told = deadline::until(past, async { (deadline::current(), deadline::remaining()) });
            assert_eq!(told.await, Ok((Some(past), Some(Duration::ZERO))));
            assert_eq!(Wheel::global().metrics().registered, 0);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_left_again_and_again_lets_other_tasks_run() {
    let other = tokio::spawn(yield_now());
    let mut polls = 0;
    while !other.is_finished() {
        deadline::within(Duration::ZERO, pending::<()>())
            .await
            .unwrap_err();
        polls += 1;
        assert!(polls < 10_000, "the other task starves");
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_the_far_future() {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    for scope in [
        deadline::within(Duration::MAX, async { deadline::remaining() }.boxed()),
        Wheel::new()
            .labelled("l")
            .within(Duration::MAX, async { deadline::remaining() }.boxed()),
    ] {
        assert_eq!(scope.await, Ok(Some(30 * YEAR)));
    }
    let mut scope = task::spawn(deadline::within(Duration::MAX, pending::<()>()));
    assert_pending!(scope.poll());
    support::advance(29 * YEAR).await;
    assert_pending!(scope.poll());
}

#[tokio::test(start_paused = true)]
async fn within_counts_from_its_first_poll_and_until_from_nothing() {
    let scope = deadline::within(SECOND, pending::<()>());
    let on_a_wheel = Wheel::new().labelled("l").within(SECOND, pending::<()>());
    sleep(10 * SECOND).await;
    let start = Instant::now();
    let (one, other) = tokio::join!(scope, on_a_wheel);
    assert!(one.is_err() && other.is_err());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_completes_is_dropped_at_once() {
    let owned = Arc::new(());
    let owner = || {
        let owned = owned.clone();
        poll_fn(move |_| Poll::Ready(Arc::strong_count(&owned)))
    };
    let mut scope = task::spawn(deadline::within(SECOND, owner()));
    assert_eq!(assert_ready!(scope.poll()), Ok(2));
    let mut shield = task::spawn(deadline::shield(owner()));
    assert_eq!(assert_ready!(shield.poll()), 2);
    assert_eq!(Arc::strong_count(&owned), 1);
}

// Nesting.

#[tokio::test(start_paused = true)]
async fn the_sooner_of_nested_scopes_holds() {
    let start = Instant::now();
    let inner = async {
        let inner = deadline::within(3 * SECOND, async {
            assert_eq!(deadline::remaining(), Some(SECOND));
            pending::<()>().await
        });
        (inner.await, start.elapsed())
    };
    // The inner scope elapses at the outer deadline, and speaks first.
    let outcome = deadline::within(SECOND, inner).await;
    assert_eq!(
        outcome.map(|(inner, at)| (inner.is_err(), at)),
        Ok((true, SECOND))
    );

    let start = Instant::now();
    deadline::within(3 * SECOND, async {
        deadline::within(SECOND, pending::<()>()).await.unwrap_err();
        assert_eq!(start.elapsed(), SECOND);
        assert_eq!(deadline::remaining(), Some(2 * SECOND), "the outer scope goes on");
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_leaves_the_one_around_has_its_own_time_again() {
    let start = Instant::now();
    let mut scope = Box::pin(deadline::within(3 * SECOND, pending::<()>()));
    deadline::within(SECOND, async {
        assert!(futures::poll!(&mut scope).is_pending());
    })
    .await
    .unwrap();
    scope.await.unwrap_err();
    assert_eq!(start.elapsed(), 3 * SECOND);

    // And the other way round.
    let start = Instant::now();
    let mut scope = Box::pin(deadline::within(3 * SECOND, pending::<()>()));
    assert!(futures::poll!(&mut scope).is_pending());
    let outer = deadline::within(SECOND, scope).await;
    assert_eq!(outer, Ok(Err(elapsed().await)));
    assert_eq!(start.elapsed(), SECOND);
}

async fn elapsed() -> Elapsed {
    deadline::within(Duration::ZERO, pending::<()>())
        .await
        .unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_scopes_deep() {
    let mut future: Pin<Box<dyn Future<Output = Option<Instant>>>> =
        Box::pin(deadline::shield(async { deadline::current() }));
    let soonest = Instant::now() + SECOND;
    for depth in 0..1_000_u32 {
        let inner = future;
        future = Box::pin(async move {
            assert_eq!(deadline::current().is_some(), depth < 999);
            deadline::until(soonest + depth * SECOND, inner).await.unwrap()
        });
    }
    assert_eq!(future.await, None);
    assert_eq!(deadline::current(), None);
}

// What an elapsed scope drops.

#[tokio::test(start_paused = true)]
async fn an_elapsed_scope_drops_what_is_inside_before_it_returns() {
    let dropped = Arc::new(AtomicBool::new(false));
    let tells = Tells(dropped.clone());
    let mut scope = pin!(deadline::within(SECOND, async move {
        let _tells = tells;
        pending::<()>().await
    }));
    let outcome = poll_fn(|cx| {
        let polled = scope.as_mut().poll(cx);
        assert_eq!(dropped.load(Ordering::SeqCst), polled.is_ready());
        polled
    });
    outcome.await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn destructors_run_inside_the_scope() {
    let looks = Looks::default();
    let seen = looks.0.clone();
    let holding = |looks: &Looks| {
        let looks = Looks(looks.0.clone());
        async move {
            let _looks = looks;
            pending::<()>().await
        }
    };
    // An elapsed scope, as in Go a deferred function.
    deadline::within(SECOND, holding(&looks)).await.unwrap_err();
    // One that is dropped before, and one that completes.
    let mut scope = Box::pin(deadline::within(SECOND, holding(&looks)));
    assert!(futures::poll!(&mut scope).is_pending());
    drop(scope);
    let inner = Looks(looks.0.clone());
    deadline::within(SECOND, async move { drop(inner) })
        .await
        .unwrap();
    // A shield's see no deadline.
    let shield = deadline::shield(holding(&looks));
    deadline::within(SECOND, async {
        let mut shield = Box::pin(shield);
        assert!(futures::poll!(&mut shield).is_pending());
        drop(shield);
    })
    .await
    .unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        [Some(Duration::ZERO), Some(SECOND), Some(SECOND), None]
    );
    assert_eq!(deadline::current(), None);
}

#[tokio::test(start_paused = true)]
async fn a_panic_puts_the_scope_back() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let outcome = deadline::within(SECOND, async {
        let before = deadline::current();
        let in_poll = deadline::within(ms(1), async { panic!("in a poll") });
        assert!(AssertUnwindSafe(in_poll).catch_unwind().await.is_err());
        assert_eq!(deadline::current(), before);
        let in_drop = deadline::within(ms(1), async {
            let _bomb = Bomb;
            pending::<()>().await
        });
        assert!(AssertUnwindSafe(in_drop).catch_unwind().await.is_err());
        assert_eq!(deadline::current(), before);
        let in_shield = deadline::shield(async { panic!("in a shield") });
        assert!(AssertUnwindSafe(in_shield).catch_unwind().await.is_err());
        assert_eq!(deadline::current(), before);
        pending::<()>().await
    });
    let start = Instant::now();
    outcome.await.unwrap_err();
    assert_eq!(start.elapsed(), SECOND, "no shield is left over");
    assert_eq!(deadline::current(), None);
}

// Shields.

#[tokio::test(start_paused = true)]
async fn a_shield_sees_no_deadline_and_the_scope_waits_for_it() {
    let start = Instant::now();
    let committed = AtomicBool::new(false);
    let scope = deadline::within(SECOND, async {
        deadline::shield(async {
            assert_eq!((deadline::current(), deadline::remaining()), (None, None));
            sleep(5 * SECOND).await;
            committed.store(true, Ordering::SeqCst);
        })
        .await;
        assert_eq!(deadline::remaining(), Some(Duration::ZERO));
        pending::<()>().await;
        unreachable!("the rest is dropped");
    });
    scope.await.unwrap_err();
    assert!(committed.load(Ordering::SeqCst));
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_ends_with_its_shield_has_ended() {
    // As in trio: a scope that was not left by its cancellation was not cancelled.
    let scope = deadline::within(SECOND, async {
        deadline::shield(sleep(5 * SECOND)).await;
        "done"
    });
    assert_eq!(scope.await, Ok("done"));
}

#[tokio::test(start_paused = true)]
async fn a_shield_that_has_ended_or_was_dropped_or_never_polled_holds_nothing_up() {
    let start = Instant::now();
    let scope = deadline::within(SECOND, async {
        deadline::shield(sleep(ms(300))).await;
        let dropped = deadline::shield(pending::<()>());
        tokio::select! {
            () = dropped => unreachable!(),
            () = sleep(ms(300)) => {}
        }
        let _unpolled = deadline::shield(pending::<()>());
        pending::<()>().await
    });
    scope.await.unwrap_err();
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn all_shields_are_waited_for_even_if_they_are_not_polled_every_time() {
    let start = Instant::now();
    let ended = AtomicUsize::new(0);
    let scope = deadline::within(SECOND, async {
        let shields = (1..=50).map(|n| {
            deadline::shield(sleep(n * ms(100))).inspect(|()| {
                ended.fetch_add(1, Ordering::SeqCst);
            })
        });
        let shields = shields.collect::<FuturesUnordered<_>>().count();
        let (_, ()) = tokio::join!(shields, pending::<()>());
    });
    scope.await.unwrap_err();
    assert_eq!(ended.load(Ordering::SeqCst), 50);
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_runs_beside_a_shield_has_nothing_left() {
    let start = Instant::now();
    let scope = deadline::within(SECOND, async {
        let beside = async {
            sleep(2 * SECOND).await;
            assert_eq!(deadline::remaining(), Some(Duration::ZERO));
            // A new call has no time either, however long its own timeout.
            let call = deadline::timeout(10 * SECOND, pending::<()>()).await;
            assert_eq!(call, Err(LimitError::Deadline));
            assert_eq!(start.elapsed(), 2 * SECOND);
            deadline::within(10 * SECOND, pending::<()>()).await.unwrap_err();
            assert_eq!(start.elapsed(), 2 * SECOND);
        };
        tokio::join!(deadline::shield(sleep(3 * SECOND)), beside, pending::<()>())
    });
    scope.await.unwrap_err();
    assert_eq!(start.elapsed(), 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn every_scope_around_a_shield_waits_for_it() {
    let start = Instant::now();
    let outer = deadline::within(SECOND, async {
        let inner = deadline::within(2 * SECOND, async {
            deadline::shield(sleep(5 * SECOND)).await;
            pending::<()>().await
        });
        // Not polled every time, and the outer scope elapses first.
        let mut inner = FuturesUnordered::from_iter([inner]);
        tokio::join!(inner.next(), pending::<()>());
    });
    outer.await.unwrap_err();
    assert_eq!(start.elapsed(), 5 * SECOND);

    // The inner scope elapses first.
    let start = Instant::now();
    let outer = deadline::within(2 * SECOND, async {
        let inner = deadline::within(SECOND, async {
            deadline::shield(sleep(5 * SECOND)).await;
            pending::<()>().await
        });
        inner.await.unwrap_err();
        assert_eq!(start.elapsed(), 5 * SECOND);
        pending::<()>().await
    });
    outer.await.unwrap_err();
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_scope_inside_a_shield_is_its_own() {
    let start = Instant::now();
    let scope = deadline::within(SECOND, async {
        let clean_up = deadline::within(3 * SECOND, async {
            assert_eq!(
                deadline::remaining(),
                Some(3 * SECOND),
                "the scope around the shield has less"
            );
            // A shield in a shield holds only the scopes inside the outer shield.
            deadline::shield(sleep(4 * SECOND)).await;
            pending::<()>().await
        });
        deadline::shield(clean_up).await.unwrap_err();
        assert_eq!(start.elapsed(), 4 * SECOND);
        pending::<()>().await
    });
    scope.await.unwrap_err();
    assert_eq!(start.elapsed(), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_shield_in_a_shield_ends_with_the_outer_one() {
    let start = Instant::now();
    let scope = deadline::within(SECOND, async {
        let nested = deadline::shield(async {
            tokio::select! {
                () = deadline::shield(pending::<()>()) => unreachable!(),
                () = sleep(2 * SECOND) => {}
            }
        });
        nested.await;
        pending::<()>().await
    });
    scope.await.unwrap_err();
    assert_eq!(start.elapsed(), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_shield_that_moves_to_another_task_lets_its_scope_go() {
    let start = Instant::now();
    let scope = deadline::within(SECOND, async {
        let mut shield = Box::pin(deadline::shield(sleep(20 * SECOND)));
        assert!(futures::poll!(&mut shield).is_pending());
        // Another task polls it from the third second on, in no scope.
        tokio::spawn(async move {
            sleep(3 * SECOND).await;
            shield.await
        });
        pending::<()>().await
    });
    scope.await.unwrap_err();
    assert_eq!(
        start.elapsed(),
        3 * SECOND,
        "the scope is woken, though nothing inside it was"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shield_that_moves_to_another_scope_holds_that_one() {
    let start = Instant::now();
    let mut shield = Box::pin(deadline::shield(sleep(5 * SECOND)));
    let first = async {
        assert!(futures::poll!(&mut shield).is_pending());
        pending::<()>().await
    };
    let mut first = Box::pin(deadline::within(SECOND, first));
    assert!(futures::poll!(&mut first).is_pending());
    drop(first);
    let second = deadline::within(SECOND, async {
        shield.await;
        pending::<()>().await
    });
    second.await.unwrap_err();
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_is_dropped_drops_its_shields() {
    let dropped = Arc::new(AtomicBool::new(false));
    let tells = Tells(dropped.clone());
    let mut scope = Box::pin(deadline::within(
        SECOND,
        deadline::shield(async move {
            let _tells = tells;
            pending::<()>().await
        }),
    ));
    assert!(futures::poll!(&mut scope).is_pending());
    sleep(2 * SECOND).await;
    assert!(futures::poll!(&mut scope).is_pending(), "it waits for the shield");
    drop(scope);
    assert!(dropped.load(Ordering::SeqCst));
}

// Tasks.

#[tokio::test(start_paused = true)]
async fn a_spawned_task_is_in_no_scope_unless_it_is_carried() {
    let start = Instant::now();
    let tasks = deadline::within(SECOND, async {
        let spawned = tokio::spawn(async { deadline::current() });
        let carried = tokio::spawn(deadline::carry(async { deadline::current() }));
        assert_eq!(spawned.await.unwrap(), None);
        assert_eq!(carried.await.unwrap(), Ok(Some(start + SECOND)));
        [false, true].map(|shielded| {
            tokio::spawn(deadline::carry(async move {
                if shielded {
                    deadline::shield(sleep(5 * SECOND)).await;
                }
                pending::<()>().await
            }))
        })
    });
    // The parent has ended, and its deadline holds still.
    let [plain, shielded] = tasks.await.unwrap();
    plain.await.unwrap().unwrap_err();
    assert_eq!(start.elapsed(), SECOND);
    shielded.await.unwrap().unwrap_err();
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_carried_future_polled_in_another_scope_has_the_sooner_of_the_two() {
    let start = Instant::now();
    let (late, never) = deadline::within(10 * SECOND, async {
        let late = deadline::carry(async { deadline::remaining() });
        let in_a_shield = async { [deadline::carry(async { deadline::remaining() })] };
        let [never] = deadline::shield(in_a_shield).await;
        (late, never)
    })
    .await
    .unwrap();
    let remaining = deadline::within(3 * SECOND, async { (late.await, never.await) });
    assert_eq!(remaining.await, Ok((Ok(Some(3 * SECOND)), Ok(Some(3 * SECOND)))));

    let [early] = deadline::within(SECOND, async { [deadline::carry(pending::<()>())] })
        .await
        .unwrap();
    let outer = deadline::within(3 * SECOND, early).await;
    assert!(matches!(outer, Ok(Err(_))));
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn carried_from_no_scope_there_is_no_limit() {
    let carried = deadline::carry(async {
        sleep(DAY).await;
        deadline::current()
    });
    assert_eq!(tokio::spawn(carried).await.unwrap(), Ok(None));
    // Unless it is polled in a scope.
    let start = Instant::now();
    let outer = deadline::within(SECOND, deadline::carry(pending::<()>())).await;
    assert!(matches!(outer, Ok(Err(_))));
    assert_eq!(start.elapsed(), SECOND);
    // Which it forgets again.
    let looks = Looks::default();
    let seen = looks.0.clone();
    let mut carried = Box::pin(deadline::carry(async move {
        let _looks = looks;
        pending::<()>().await
    }));
    deadline::within(SECOND, async {
        assert!(futures::poll!(&mut carried).is_pending());
    })
    .await
    .unwrap();
    drop(carried);
    assert_eq!(*seen.lock().unwrap(), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_carried_future_that_has_panicked_is_dropped_in_no_scope_either() {
    struct Panics(#[allow(dead_code)] Looks);
    impl Future for Panics {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            panic!("on purpose")
        }
    }
    let looks = Looks::default();
    let seen = looks.0.clone();
    let mut carried = Box::pin(deadline::carry(Panics(looks)));
    deadline::within(SECOND, async {
        let polled = AssertUnwindSafe(&mut carried).catch_unwind().await;
        polled.unwrap_err();
    })
    .await
    .unwrap();
    drop(carried);
    assert_eq!(*seen.lock().unwrap(), [None]);
}

/// In a process of its own, because others use the global wheel too.
#[tokio::test(start_paused = true)]
async fn a_carried_future_leaves_no_timer_of_a_scope_that_it_has_left() {
    if !in_own_process(a_carried_future_leaves_no_timer_of_a_scope_that_it_has_left, "") {
        return;
    }
    for ends in [false, true] {
        let mut carried = Box::pin(deadline::carry(async {
            yield_now().await;
            if !ends {
                pending::<()>().await;
            }
        }));
        deadline::within(SECOND, async {
            assert!(futures::poll!(&mut carried).is_pending());
        })
        .await
        .unwrap();
        assert_eq!(futures::poll!(&mut carried).is_ready(), ends);
        assert_eq!(Wheel::global().pending(), 0);
        drop(carried);
    }
}

#[tokio::test(start_paused = true)]
async fn branches_of_join_and_select_each_have_their_own() {
    let start = Instant::now();
    deadline::within(60 * SECOND, async {
        let branch = |seconds: u32| async move {
            deadline::within(seconds * SECOND, async {
                for n in 0..seconds {
                    assert_eq!(deadline::current(), Some(start + seconds * SECOND));
                    sleep_until(start + n * SECOND).await;
                }
                pending::<()>().await
            })
            .await
            .unwrap_err();
            assert_eq!(start.elapsed(), seconds * SECOND);
            assert_eq!(deadline::current(), Some(start + 60 * SECOND));
            seconds
        };
        tokio::join!(branch(3), branch(1), branch(2));
    })
    .await
    .unwrap();

    tokio::select! {
        _ = deadline::within(2 * SECOND, pending::<()>()) => unreachable!(),
        outcome = deadline::within(SECOND, pending::<()>()) => outcome.unwrap_err(),
    };
    assert_eq!(deadline::current(), None);
}

#[test]
fn a_future_is_polled_by_one_thread_and_then_by_another() {
    let mut scope = Box::pin(Wheel::new().labelled("l").within(DAY, async {
        let first = deadline::current();
        yield_now().await;
        (first, deadline::current())
    }));
    let runtime = support::real_runtime();
    let mut poll = || {
        let _entered = runtime.enter();
        let polled = scope.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(deadline::current(), None);
        polled
    };
    assert!(poll().is_pending());
    let outcome = std::thread::scope(|threads| threads.spawn(poll).join().unwrap());
    let (first, second) = assert_ready!(outcome).unwrap();
    assert!(first.is_some());
    assert_eq!(first, second);
}

#[test]
fn block_in_place_stays_inside_and_other_tasks_outside() {
    threaded_runtime(2).block_on(async {
        let task = tokio::spawn(deadline::within(DAY, async {
            let before = deadline::current();
            tokio::task::block_in_place(|| {
                assert_eq!(deadline::current(), before);
                let runtime = tokio::runtime::Handle::current();
                // What is polled during the scope's own poll is inside it, a spawned task is not.
                assert_eq!(runtime.block_on(async { deadline::current() }), before);
                let spawned = tokio::spawn(async { deadline::current() });
                assert_eq!(runtime.block_on(spawned).unwrap(), None);
            });
            assert!(before.is_some());
            assert_eq!(deadline::current(), before);
            yield_now().await;
            assert_eq!(deadline::current(), before);
        }));
        task.await.unwrap().unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn the_tasks_of_a_local_set_are_in_the_scope_that_drives_them() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let local = LocalSet::new();
    let start = Instant::now();
    let sees = || {
        let seen = seen.clone();
        async move {
            loop {
                seen.borrow_mut().push(deadline::current());
                sleep(SECOND).await;
            }
        }
    };
    local.spawn_local(sees());
    deadline::until(start + 2 * SECOND, local.run_until(pending::<()>()))
        .await
        .unwrap_err();
    local.run_until(sleep(ms(1500))).await;
    let seen = seen.take();
    assert!(seen.len() >= 3);
    assert_eq!(seen[..2], [Some(start + 2 * SECOND); 2]);
    assert_eq!(seen.last(), Some(&None));
}

// Timeouts that know the deadline.

#[tokio::test(start_paused = true)]
async fn a_timeout_says_which_limit_it_was() {
    let start = Instant::now();
    let call = |duration| deadline::timeout(duration, pending::<()>());
    assert_eq!(call(SECOND).await, Err(LimitError::Timeout), "there is no scope");
    assert_eq!(deadline::timeout(SECOND, ready(7)).await, Ok(7));
    deadline::within(5 * SECOND, async {
        let told = deadline::timeout(SECOND, async { deadline::remaining() }).await;
        assert_eq!(told, Ok(Some(SECOND)));
        assert_eq!(call(3 * SECOND).await, Err(LimitError::Timeout));
        assert_eq!(call(3 * SECOND).await, Err(LimitError::Deadline));
        assert_eq!(start.elapsed(), 6 * SECOND);
    })
    .await
    .unwrap();
    // Equal: the deadline.
    let equal = deadline::within(SECOND, call(SECOND)).await;
    assert_eq!(equal, Ok(Err(LimitError::Deadline)));
    let in_a_shield = deadline::within(SECOND, deadline::shield(call(2 * SECOND))).await;
    assert_eq!(in_a_shield, Ok(Err(LimitError::Timeout)));
}

// Labels.

fn stats(wheel: &Wheel) -> LabelStats {
    wheel.snapshot().labels.swap_remove(0)
}

#[tokio::test(start_paused = true)]
async fn scopes_are_counted_under_a_label() {
    let wheel = Wheel::new();
    let checkout = wheel.labelled("checkout");
    checkout.within(SECOND, ready(())).await.unwrap();
    checkout.within(SECOND, sleep(ms(750))).await.unwrap();
    checkout.within(SECOND, pending::<()>()).await.unwrap_err();
    let mut cancelled = Box::pin(checkout.until(Instant::now() + SECOND, pending::<()>()));
    assert!(futures::poll!(&mut cancelled).is_pending());
    assert_eq!(stats(&wheel).pending, 1);
    assert_eq!(wheel.pending(), 1, "the scope waits on the wheel of its label");
    drop(cancelled);
    drop(checkout.within(SECOND, pending::<()>()));
    // Of the four seconds that it has, it needs one and a half.
    let nested = checkout.within(60 * SECOND, sleep(ms(1_500)));
    deadline::within(4 * SECOND, nested).await.unwrap().unwrap();

    let stats = stats(&wheel);
    assert_eq!((stats.started, stats.completed, stats.elapsed), (5, 3, 1));
    assert_eq!((stats.cancelled, stats.pending), (1, 0));
    assert_eq!(stats.headroom, [0, 0, 1, 0, 0, 0, 1, 0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_scope_wakes_its_task_once() {
    if !in_own_process(a_scope_wakes_its_task_once, "") {
        return;
    }
    let (waker, woken) = counting_waker();
    let mut scope = deadline::within(SECOND, pending::<()>());
    support::register_for(&waker, &mut scope);
    sleep(SECOND + TICK).await;
    settle().await;
    assert_eq!(woken.load(Ordering::SeqCst), 1);
    assert_eq!(Wheel::global().metrics().registered, 1);
    let mut cx = Context::from_waker(&waker);
    assert!(assert_ready!(Pin::new(&mut scope).poll(&mut cx)).is_err());
}
