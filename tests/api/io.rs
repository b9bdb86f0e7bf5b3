//! Read, write and idle timeouts, over pipes in paused time and over real TCP.

use crate::support;

use std::{
    fmt::Debug,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use tickwheel::{TimeoutError, Wheel, io::TimeoutStream};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    net::{TcpListener, TcpStream},
    task::coop::{consume_budget, has_budget_remaining},
    time::{Instant, sleep},
};

use support::{DAY, SECOND, TICK, assert_due, ms, paused_runtime};

/// A peer, and a stream of 16 bytes' room that is wrapped.
fn pipe(wheel: &Wheel) -> (DuplexStream, TimeoutStream<DuplexStream>) {
    let (peer, stream) = duplex(16);
    (peer, TimeoutStream::new(wheel, stream))
}

#[track_caller]
fn assert_timed_out<T: Debug>(outcome: io::Result<T>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(
        error.get_ref().unwrap().downcast_ref(),
        Some(&TimeoutError::Elapsed)
    );
}

/// In paused time.
async fn assert_times_out_after<T: Debug>(duration: Duration, outcome: impl Future<Output = io::Result<T>>) {
    let start = Instant::now();
    assert_timed_out(outcome.await);
    assert_due(start, duration);
}

#[tokio::test(start_paused = true)]
async fn without_a_timeout_nothing_is_timed() {
    let wheel = Wheel::new();
    let (mut peer, mut stream) = pipe(&wheel);
    tokio::spawn(async move {
        sleep(Duration::from_secs(3600)).await;
        peer.write_all(b"late").await.unwrap();
    });
    assert_eq!(stream.read_u8().await.unwrap(), b'l');
    assert_eq!(wheel.metrics().registered, 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_too_long_times_out_and_the_next_waits_anew() {
    let wheel = Wheel::new();
    let (mut peer, mut stream) = pipe(&wheel);
    stream.set_read_timeout(Some(ms(500)));
    for _ in 0..2 {
        assert_times_out_after(ms(500), stream.read_u8()).await;
    }
    peer.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
}

#[tokio::test(start_paused = true)]
async fn a_byte_at_a_time_is_progress() {
    let (mut peer, mut stream) = pipe(&Wheel::new());
    stream.set_read_timeout(Some(ms(500)));
    stream.set_idle_timeout(Some(ms(500)));
    tokio::spawn(async move {
        for byte in 0..100 {
            sleep(ms(450)).await;
            peer.write_u8(byte).await.unwrap();
        }
        sleep(Duration::from_secs(60)).await;
    });
    let mut message = [0; 100];
    stream.read_exact(&mut message).await.unwrap();
    assert_eq!(message[99], 99);
    assert_times_out_after(ms(500), stream.read_u8()).await;
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nobody_reads_does_not_count() {
    let wheel = Wheel::new();
    let (mut peer, mut stream) = pipe(&wheel);
    stream.set_read_timeout(Some(ms(500)));
    stream.set_idle_timeout(Some(ms(500)));
    peer.write_all(b"x").await.unwrap();
    stream.read_u8().await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_times_out_after(ms(500), stream.read_u8()).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_too_long_times_out() {
    let (mut peer, mut stream) = pipe(&Wheel::new());
    stream.set_write_timeout(Some(ms(500)));
    let start = Instant::now();
    assert_eq!(stream.write(&[0; 100]).await.unwrap(), 16);
    assert_timed_out(stream.write(&[0; 100]).await);
    assert_due(start, ms(500));

    // A peer that reads a byte now and then is slow, not dead.
    let reader = tokio::spawn(async move {
        for _ in 0..116 {
            sleep(ms(450)).await;
            peer.read_u8().await.unwrap();
        }
        peer
    });
    stream.write_all(&[0; 100]).await.unwrap();
    let mut peer = reader.await.unwrap();
    stream.write_all(b"on").await.unwrap();
    assert_eq!(peer.read_u16().await.unwrap(), u16::from_be_bytes(*b"on"));
}

/// Takes what is written; its flush never completes, or always does; it has vectored writes.
#[derive(Debug, Default)]
struct Sluggish {
    full: bool,
    flushes: bool,
    vectored: AtomicUsize,
}

impl AsyncWrite for Sluggish {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if self.full {
            Poll::Pending
        } else {
            Poll::Ready(Ok(buffer.len()))
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.vectored.fetch_add(1, Ordering::Relaxed);
        if self.full {
            Poll::Pending
        } else {
            Poll::Ready(Ok(buffers.iter().map(|buffer| buffer.len()).sum()))
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.flushes {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl AsyncRead for Sluggish {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_and_a_shutdown_that_wait_too_long_time_out() {
    let mut stream = TimeoutStream::new(&Wheel::new(), Sluggish::default());
    stream.set_write_timeout(Some(ms(500)));
    assert_times_out_after(ms(500), stream.flush()).await;
    assert_times_out_after(ms(500), stream.shutdown()).await;
}

#[tokio::test(start_paused = true)]
async fn vectored_writes_pass_through() {
    let mut stream = TimeoutStream::new(&Wheel::new(), Sluggish::default());
    stream.set_write_timeout(Some(ms(500)));
    assert!(stream.is_write_vectored());
    let buffers = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
    assert_eq!(stream.write_vectored(&buffers).await.unwrap(), 3);
    assert_eq!(stream.get_ref().vectored.load(Ordering::Relaxed), 1);
    stream.get_mut().full = true;
    assert_timed_out(stream.write_vectored(&buffers).await);
    let plain = TimeoutStream::new(&Wheel::new(), tokio_test::io::Builder::new().build());
    assert!(!plain.is_write_vectored());
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_asks_for_a_byte_in_either_direction() {
    let (peer, mut stream) = pipe(&Wheel::new());
    stream.set_idle_timeout(Some(ms(500)));
    let (mut reader, mut writer) = tokio::io::split(stream);
    // The peer says nothing, but takes what is written for a while.
    let writing = tokio::spawn(async move {
        for _ in 0..10 {
            sleep(ms(400)).await;
            writer.write_u8(0).await.unwrap();
        }
    });
    let start = Instant::now();
    assert_timed_out(reader.read_u8().await);
    assert_due(start, ms(4500));
    writing.await.unwrap();
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_the_tasks_budget_alone_does_not_time_out() {
    let (mut peer, mut stream) = pipe(&Wheel::new());
    stream.set_read_timeout(Some(ms(500)));
    assert!(stream.read_u8().now_or_never().is_none());
    sleep(ms(1000)).await;
    peer.write_all(b"x").await.unwrap();
    while has_budget_remaining() {
        consume_budget().await;
    }
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
}

// What counts as waiting.

/// A stream on a runtime whose paused clock is two days ahead, which is then dropped.
fn carried_from_another_clock(
    wheel: &Wheel,
    before: impl AsyncFnOnce(&mut TimeoutStream<DuplexStream>),
) -> (DuplexStream, TimeoutStream<DuplexStream>) {
    let (peer, mut stream) = pipe(wheel);
    paused_runtime().block_on(async {
        tokio::time::advance(2 * DAY).await;
        wheel.sleep(TICK).await;
        before(&mut stream).await;
    });
    (peer, stream)
}

#[test]
fn a_wait_carried_to_a_runtime_with_another_clock_keeps_its_instant() {
    let wheel = Wheel::new();
    let mut deadline = Instant::now();
    let (_peer, mut stream) = carried_from_another_clock(&wheel, async |stream| {
        stream.set_read_timeout(Some(ms(500)));
        deadline = Instant::now() + ms(1_000);
        assert!(stream.read_u8().now_or_never().is_none());
        sleep(ms(200)).await;
    });
    paused_runtime().block_on(async {
        stream.set_read_timeout(Some(ms(1000)));
        assert_timed_out(stream.read_u8().await);
        let late = Instant::now()
            .checked_duration_since(deadline)
            .expect("it is early");
        assert!(late < TICK * 2, "{late:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn traffic_costs_stores_not_timers() {
    let wheel = Wheel::new();
    let (mut peer, mut stream) = pipe(&wheel);
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    stream.set_idle_timeout(Some(Duration::from_secs(60)));
    tokio::spawn(async move {
        for _ in 0..10_000 {
            peer.write_u64(1).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..10_000 {
        stream.read_u64().await.unwrap();
    }
    assert_eq!(wheel.metrics().registered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_overflows_the_clock_comes_after_30_years() {
    const YEAR: Duration = Duration::from_secs(86_400 * 365);
    let (mut peer, mut stream) = pipe(&Wheel::new());
    stream.set_read_timeout(Some(Duration::MAX));
    stream.set_idle_timeout(Some(Duration::MAX));
    let peer = tokio::spawn(async move {
        sleep(YEAR * 29).await;
        peer.write_u8(7).await.unwrap();
        peer
    });
    assert_eq!(stream.read_u8().await.unwrap(), 7);
    let _peer = peer.await.unwrap();
    assert_times_out_after(YEAR * 30, stream.read_u8()).await;
    stream.set_read_timeout(None);
    assert_times_out_after(YEAR * 30, stream.read_u8()).await;
}

#[tokio::test(start_paused = true)]
async fn unwrapping_cancels_the_timers() {
    let wheel = Wheel::new();
    let (_peer, mut stream) = pipe(&wheel);
    stream.set_read_timeout(Some(ms(500)));
    stream.set_write_timeout(Some(ms(500)));
    assert!(stream.write_all(&[0; 100]).now_or_never().is_none());
    assert!(stream.read_u8().now_or_never().is_none());
    assert_eq!(wheel.pending(), 2);
    let _stream = stream.into_inner();
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_is_taken_away_frees_its_timer_at_once() {
    type Set = fn(&mut TimeoutStream<DuplexStream>, Option<Duration>);
    let sets: [Set; 3] = [
        TimeoutStream::set_read_timeout,
        TimeoutStream::set_write_timeout,
        TimeoutStream::set_idle_timeout,
    ];
    for set in sets {
        let wheel = Wheel::builder().max_pending(1).build().unwrap();
        let (mut peer, mut stream) = pipe(&wheel);
        set(&mut stream, Some(SECOND));
        // No operation waits any longer, but the timer is in place for the next one.
        assert!(stream.read_u8().now_or_never().is_none());
        peer.write_u8(7).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 7);
        assert!(stream.write_all(&[0; 17]).now_or_never().is_none());
        peer.read_exact(&mut [0; 16]).await.unwrap();
        stream.write_u8(7).await.unwrap();
        assert_ne!(wheel.pending(), 0);
        set(&mut stream, None);
        assert_eq!(wheel.pending(), 0);
        assert!(
            wheel.try_sleep(SECOND).now_or_never().is_none(),
            "it is not refused"
        );

        // While operations wait.
        set(&mut stream, Some(SECOND));
        assert!(stream.read_u8().now_or_never().is_none());
        assert!(stream.write_all(&[0; 17]).now_or_never().is_none());
        assert_ne!(wheel.pending(), 0);
        set(&mut stream, None);
        assert_eq!(wheel.pending(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pinned_stream_that_cannot_be_moved_has_its_timeouts_changed() {
    struct Silent(std::marker::PhantomPinned);
    impl AsyncRead for Silent {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }
    let silent = Silent(std::marker::PhantomPinned);
    let mut stream = pin!(TimeoutStream::new(&Wheel::new(), silent));
    stream.as_mut().set_read_timeout_pinned(Some(ms(500)));
    assert_times_out_after(ms(500), stream.read_u8()).await;
    stream.as_mut().set_idle_timeout_pinned(Some(ms(300)));
    stream.as_mut().set_write_timeout_pinned(Some(ms(100)));
    assert_times_out_after(ms(300), stream.read_u8()).await;
    assert_eq!(stream.read_timeout(), Some(ms(500)));
    assert_eq!(stream.write_timeout(), Some(ms(100)));
    assert_eq!(stream.idle_timeout(), Some(ms(300)));
}

#[tokio::test(start_paused = true)]
async fn seeks_pass_through() {
    use tokio::io::{AsyncSeekExt, SeekFrom};
    let file = io::Cursor::new(b"hello".to_vec());
    let mut stream = TimeoutStream::new(&Wheel::new(), file);
    stream.set_read_timeout(Some(ms(500)));
    assert_eq!(stream.seek(SeekFrom::End(-2)).await.unwrap(), 3);
    assert_eq!(stream.read_u8().await.unwrap(), b'l');
    stream.rewind().await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'h');
    assert_eq!(stream.stream_position().await.unwrap(), 1);
    let error = stream.seek(SeekFrom::Current(-2)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// A real connection, the far end and the wrapped one.
async fn connection(wheel: &Wheel) -> (TcpStream, TimeoutStream<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    (peer, TimeoutStream::new(wheel, stream))
}

#[tokio::test]
async fn over_tcp_a_silent_peer_is_cut_off_and_a_talking_one_is_not() {
    let wheel = Wheel::new();
    let (mut peer, mut stream) = connection(&wheel).await;
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    let talking = tokio::spawn(async move {
        for number in 0..1000 {
            peer.write_u32(number).await.unwrap();
        }
        peer
    });
    for number in 0..1000 {
        assert_eq!(stream.read_u32().await.unwrap(), number);
    }
    let _peer = talking.await.unwrap();

    stream.set_read_timeout(Some(ms(50)));
    let start = std::time::Instant::now();
    assert_timed_out(stream.read_u8().await);
    assert!(start.elapsed() >= ms(50));
}

#[cfg(feature = "hyper-util")]
#[test]
fn what_a_connection_says_of_itself_is_passed_on() {
    use hyper_util::client::legacy::connect::{Connected, Connection};
    struct Proxied;
    impl Connection for Proxied {
        fn connected(&self) -> Connected {
            Connected::new().proxy(true).negotiated_h2()
        }
    }
    let connected = TimeoutStream::new(&Wheel::new(), Proxied).connected();
    assert!(connected.is_proxied() && connected.is_negotiated_h2());
}
