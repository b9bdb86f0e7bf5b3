//! Timeout, throttle and chunks, compared with those of tokio-stream.

use crate::support;

use std::{future::ready, pin::pin, time::Duration};

use futures::{FutureExt, Stream, StreamExt, stream};
use tickwheel::{Wheel, stream::WheelStreamExt, time::error::Elapsed};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;

use support::{TICK, assert_due, ms};

/// Yields 0, 1, 2 and so on, each `pauses[n]` ms after the one before it was taken in.
fn items(pauses: &[u64]) -> impl Stream<Item = usize> + Unpin + use<> {
    let (sender, receiver) = mpsc::channel(1024);
    let pauses = pauses.to_vec();
    tokio::spawn(async move {
        for (number, pause) in pauses.into_iter().enumerate() {
            sleep(ms(pause)).await;
            if sender.send(number).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// What a stream yields, and when.
async fn record<T>(stream: impl Stream<Item = T>) -> Vec<(Duration, T)> {
    let start = Instant::now();
    stream.map(|item| (start.elapsed(), item)).collect().await
}

/// The same items at the same times, to within a tick.
fn assert_same<T: PartialEq + std::fmt::Debug>(ours: &[(Duration, T)], theirs: &[(Duration, T)]) {
    let same = ours.len() == theirs.len()
        && ours
            .iter()
            .zip(theirs)
            .all(|(our, their)| our.1 == their.1 && our.0.abs_diff(their.0) < TICK + ms(1));
    assert!(same, "{ours:#?} are not {theirs:#?}");
}

fn elapsed<T>(item: Result<T, Elapsed>) -> Result<T, ()> {
    item.map_err(drop)
}

#[tokio::test(start_paused = true)]
async fn timeout_yields_what_that_of_tokio_stream_does() {
    for pauses in [
        &[][..],
        &[5],
        &[530],
        &[50, 150, 50, 350, 130, 10],
        &[0, 0, 0, 130, 0],
    ] {
        let ours = items(pauses).timeout(&Wheel::new(), ms(100));
        let ours = record(ours.map(elapsed)).await;
        let theirs = tokio_stream::StreamExt::timeout(items(pauses), ms(100));
        assert_same(&ours, &record(theirs.map(|item| item.map_err(|_| ()))).await);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_around_a_lively_stream_moves_no_timer() {
    let wheel = Wheel::new();
    let seen = record(items(&[20; 100]).timeout(&wheel, Duration::from_secs(60))).await;
    assert_eq!(seen.len(), 100);
    assert_eq!(wheel.metrics().registered, 1);
}

#[tokio::test(start_paused = true)]
async fn timeout_of_zero_elapses_at_the_first_silence() {
    let mut items = items(&[50]).timeout(&Wheel::new(), Duration::ZERO).map(elapsed);
    let start = Instant::now();
    assert_eq!(items.next().await, Some(Err(())));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(items.next().await, Some(Ok(0)));
    assert_eq!(items.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn timeout_that_overflows_the_clock_never_comes() {
    let seen = record(items(&[1000, 100_000]).timeout(&Wheel::new(), Duration::MAX)).await;
    assert!(
        seen.len() == 2 && seen.iter().all(|(_, item)| item.is_ok()),
        "{seen:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn timeout_repeating_yields_what_that_of_tokio_stream_does() {
    for pauses in [&[][..], &[5], &[530], &[50, 150, 50, 350, 130, 10]] {
        let wheel = Wheel::new();
        let start = Instant::now() + ms(100);
        let ours = items(pauses).timeout_repeating(wheel.interval_at(start, ms(100)));
        let ours = record(ours.map(elapsed)).await;
        let start = Instant::now() + ms(100);
        let interval = tokio::time::interval_at(start, ms(100));
        let theirs = tokio_stream::StreamExt::timeout_repeating(items(pauses), interval);
        assert_same(&ours, &record(theirs.map(|item| item.map_err(|_| ()))).await);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_repeating_reports_at_once_with_an_interval_that_does() {
    let interval = Wheel::new().interval(ms(100));
    let seen = record(items(&[250]).timeout_repeating(interval)).await;
    let errors = seen.iter().filter(|(_, item)| item.is_err()).count();
    assert_eq!((errors, seen[0].0), (3, Duration::ZERO), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn throttle_yields_what_that_of_tokio_stream_does() {
    for pauses in [&[][..], &[5], &[0, 0, 0, 0], &[500, 0, 250, 0, 0, 101]] {
        let ours = record(items(pauses).throttle(&Wheel::new(), ms(100))).await;
        let theirs = tokio_stream::StreamExt::throttle(items(pauses), ms(100));
        // Each pause may be late by a tick, and what is late delays the next.
        let theirs = record(theirs).await;
        assert_eq!(ours.len(), theirs.len());
        for (number, (our, their)) in ours.iter().zip(&theirs).enumerate() {
            let late = (TICK + ms(1)) * number as u32;
            assert!(our.0.abs_diff(their.0) <= late, "{ours:?} are not {theirs:?}");
        }
    }
}

async fn assert_a_second_apart(wheel: &Wheel) {
    let seen = record(stream::iter(0..4).throttle(wheel, ms(1000))).await;
    assert_eq!(seen[0].0, Duration::ZERO);
    for pause in seen.windows(2).map(|pair| pair[1].0 - pair[0].0) {
        assert!(pause >= ms(1000) && pause < ms(1000) + TICK, "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn throttle_is_never_early() {
    assert_a_second_apart(&Wheel::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_throttle_of_no_time_makes_no_pause() {
    let wheel = Wheel::builder().tick_duration(ms(10)).build().unwrap();
    wheel.sleep(ms(10)).await;
    // Now it is between two ticks, so that a pause of no time would take 7 ms.
    sleep(ms(3)).await;
    let seen = record(stream::iter(0..4).throttle(&wheel, Duration::ZERO)).await;
    assert_eq!(seen, [0, 1, 2, 3].map(|item| (Duration::ZERO, item)));
}

#[tokio::test(start_paused = true)]
async fn throttle_pauses_once_for_an_item_and_not_for_the_end() {
    let wheel = Wheel::new();
    let mut slow = items(&[0, 1000]).throttle(&wheel, ms(100));
    slow.next().await;
    // The pause is over long before the next item comes.
    let mut next = tokio_test::task::spawn(slow.next());
    for _ in 0..5 {
        tokio_test::assert_pending!(next.poll());
        sleep(ms(150)).await;
    }
    assert_eq!(wheel.metrics().registered, 1);

    let mut one = stream::iter([1]).throttle(&wheel, ms(100));
    assert_eq!((one.next().await, one.next().await), (Some(1), None));
    assert_eq!(one.next().now_or_never(), Some(None));
}

#[tokio::test(start_paused = true)]
async fn chunks_timeout_yields_what_that_of_tokio_stream_does() {
    for pauses in [
        &[][..],
        &[5],
        &[10, 10, 10, 10, 10, 10, 10],
        &[0, 80, 80, 80, 500, 0, 0, 0, 0, 300],
        &[500, 500, 500],
    ] {
        let ours = record(items(pauses).chunks_timeout(&Wheel::new(), 3, ms(105))).await;
        let theirs = tokio_stream::StreamExt::chunks_timeout(items(pauses), 3, ms(105));
        assert_same(&ours, &record(theirs).await);
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_timeout_gives_back_what_it_holds() {
    let mut chunks = pin!(stream::iter([1, 2]).chain(stream::pending()).chunks_timeout(
        &Wheel::new(),
        3,
        ms(100)
    ));
    assert!(chunks.next().now_or_never().is_none());
    assert_eq!(chunks.into_remainder(), [1, 2]);
}

#[test]
#[should_panic = "`max_size` must be non-zero."]
fn chunks_of_nothing_are_refused() {
    let _ = stream::iter([1]).chunks_timeout(&Wheel::new(), 0, ms(100));
}

#[test]
fn size_hints_are_those_of_tokio_stream_or_closer() {
    let wheel = Wheel::new();
    assert_eq!(
        stream::iter(0..7).timeout(&wheel, ms(1)).size_hint(),
        (7, Some(15))
    );
    assert_eq!(
        stream::iter(0..7)
            .timeout_repeating(wheel.interval(ms(1)))
            .size_hint(),
        (7, None)
    );
    assert_eq!(
        stream::iter(0..7).throttle(&wheel, ms(1)).size_hint(),
        (7, Some(7))
    );
    assert_eq!(
        stream::iter(0..7).chunks_timeout(&wheel, 3, ms(1)).size_hint(),
        (3, Some(7))
    );
    assert_eq!(
        stream::repeat(0).timeout(&wheel, ms(1)).size_hint(),
        (usize::MAX, None)
    );
}

#[tokio::test(start_paused = true)]
async fn size_hints_count_what_was_collected_and_know_the_end() {
    let wheel = Wheel::new();
    let two_and_silence = stream::iter([1, 2]).chain(stream::pending());
    let mut chunks = two_and_silence.chunks_timeout(&wheel, 3, ms(100));
    assert!(chunks.next().now_or_never().is_none());
    // No more will come, by what the silence says of itself; two are kept.
    assert_eq!(chunks.size_hint(), (1, Some(1)));

    let mut ended = stream::iter([1]).timeout(&wheel, ms(100));
    assert_eq!((ended.next().await, ended.next().await), (Some(Ok(1)), None));
    assert_eq!(ended.size_hint(), (0, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_ended_frees_its_timer_at_once() {
    let wheel = Wheel::new();
    let mut timed = items(&[10]).timeout(&wheel, ms(100));
    assert!(timed.next().await.unwrap().is_ok());
    assert_eq!(wheel.pending(), 1, "the next item may take as long");
    assert!(timed.next().await.is_none());
    assert_eq!(wheel.pending(), 0);
    assert!(timed.next().await.is_none());

    let mut repeating = items(&[10]).timeout_repeating(wheel.interval_at(Instant::now() + ms(100), ms(100)));
    while repeating.next().await.is_some() {}
    assert_eq!(wheel.pending(), 0);
    assert!(repeating.next().await.is_none());

    let mut chunks = items(&[10, 10]).chunks_timeout(&wheel, 3, ms(100));
    assert_eq!(chunks.next().await, Some(vec![0, 1]));
    assert_eq!(wheel.pending(), 0);
    assert_eq!(chunks.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_is_taken_frees_its_timer_and_the_next_has_one_of_its_own() {
    let wheel = Wheel::new();
    let mut chunks = pin!(
        items(&[0, 200])
            .chain(stream::pending())
            .chunks_timeout(&wheel, 3, ms(100))
    );
    tokio::task::yield_now().await;
    assert!(chunks.next().now_or_never().is_none());
    assert_eq!(wheel.pending(), 1);
    assert_eq!(chunks.as_mut().into_remainder(), [0]);
    assert_eq!(wheel.pending(), 0);
    let start = Instant::now();
    assert_eq!(chunks.next().await, Some(vec![1]));
    assert_due(start, ms(300));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_stream_cancels_its_timer_and_ending_drops_what_is_inside() {
    let wheel = Wheel::new();
    let mut silent = stream::pending::<()>().timeout(&wheel, ms(100));
    assert!(silent.next().now_or_never().is_none());
    assert_eq!(wheel.pending(), 1);
    drop(silent);
    assert_eq!(wheel.pending(), 0);

    let (sender, receiver) = mpsc::channel::<()>(1);
    let mut ended = ReceiverStream::new(receiver)
        .take_while(|()| ready(false))
        .timeout(&wheel, Duration::from_secs(1));
    sender.send(()).await.unwrap();
    assert_eq!(ended.next().await, None);
    assert!(
        sender.is_closed(),
        "fused, the stream inside is dropped at its end"
    );
    assert_eq!(ended.next().await, None);
}
