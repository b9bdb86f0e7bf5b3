//! The deadline layers: over plain services in paused time, in an axum router, and the values of the headers.

use crate::{support, tower::assert_errors_and_readiness_pass};

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, Request},
};
use proptest::{prop_assert, prop_assert_eq, proptest};
use tickwheel::{
    Wheel, deadline,
    time::error::Elapsed,
    tower::{DeadlineHeader, DeadlineLayer, PropagateLayer},
};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use support::{SECOND, ms, own_process::in_own_process};

type Named = (&'static str, fn() -> DeadlineHeader);

const HEADERS: [Named; 3] = [
    ("grpc-timeout", DeadlineHeader::grpc_timeout),
    ("connect-timeout-ms", DeadlineHeader::connect_timeout_ms),
    (
        "x-envoy-expected-rq-timeout-ms",
        DeadlineHeader::envoy_expected_rq_timeout_ms,
    ),
];

/// Gives each request, a number, so many seconds. 99 has no limit.
fn by_seconds() -> DeadlineLayer<impl Fn(&u32) -> Option<Duration> + Clone> {
    DeadlineLayer::from_request(|seconds: &u32| (*seconds != 99).then(|| *seconds * SECOND))
}

// The server's side.

#[tokio::test(start_paused = true)]
async fn each_request_has_its_scope() {
    let told = service_fn(|_: u32| async { Ok::<_, Infallible>(deadline::remaining()) });
    let service = by_seconds().layer(told);
    assert_eq!(service.clone().oneshot(3).await.unwrap(), Some(3 * SECOND));
    assert_eq!(service.clone().oneshot(99).await.unwrap(), None);
    let outer = deadline::within(SECOND, async {
        (
            service.clone().oneshot(3).await.unwrap(),
            service.oneshot(99).await.unwrap(),
        )
    });
    assert_eq!(outer.await, Ok((Some(SECOND), Some(SECOND))), "the sooner holds");
}

#[tokio::test(start_paused = true)]
async fn a_late_request_fails_or_is_answered_for_at_its_deadline() {
    if !in_own_process(a_late_request_fails_or_is_answered_for_at_its_deadline, "") {
        return;
    }
    let silent = service_fn(|_: u32| pending::<Result<&str, Infallible>>());
    let start = Instant::now();
    let error = by_seconds().layer(silent).oneshot(3).await.unwrap_err();
    assert!(error.is::<Elapsed>());
    assert_eq!(start.elapsed(), 3 * SECOND);
    let answering = by_seconds().respond_with(|_| "too late").layer(silent);
    assert_eq!(answering.oneshot(3).await, Ok("too late"));
    assert_eq!(start.elapsed(), 6 * SECOND);
    assert_eq!(Wheel::global().pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_with_nothing_left_is_refused_without_a_call() {
    if !in_own_process(what_arrives_with_nothing_left_is_refused_without_a_call, "") {
        return;
    }
    let calls = &AtomicUsize::new(0);
    let counting = service_fn(move |_: u32| {
        calls.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<_, Infallible>("done"))
    });
    assert!(
        by_seconds()
            .layer(counting)
            .oneshot(0)
            .await
            .unwrap_err()
            .is::<Elapsed>()
    );
    let answering = by_seconds().respond_with(|error| {
        assert_eq!(error.to_string(), "deadline has elapsed");
        "too late"
    });
    assert_eq!(answering.layer(counting).oneshot(0).await, Ok("too late"));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(answering.layer(counting).oneshot(1).await, Ok("done"));
    assert_eq!(Wheel::global().metrics().registered, 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_counts_from_the_call() {
    let mut service = by_seconds().layer(service_fn(|_: u32| async {
        sleep(2 * SECOND).await;
        Ok::<_, Infallible>(deadline::remaining())
    }));
    let [first, second] = [3, 3].map(|seconds| service.call(seconds));
    sleep(SECOND / 2).await;
    assert_eq!(first.await.unwrap(), Some(SECOND / 2));
    assert!(second.await.unwrap_err().is::<Elapsed>());
}

#[tokio::test(start_paused = true)]
async fn errors_and_readiness_are_those_of_the_service_inside() {
    let layer = DeadlineLayer::from_request(|_: &&str| Some(SECOND));
    assert_errors_and_readiness_pass(layer.clone()).await;
    assert_errors_and_readiness_pass(layer.respond_with(|_| "too late")).await;
}

#[tokio::test(start_paused = true)]
async fn the_future_inside_is_dropped_before_the_answer() {
    struct Tells(Arc<AtomicBool>);
    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let tells = dropped.clone();
    let holding = service_fn(move |_: u32| {
        let tells = Tells(tells.clone());
        async move {
            let _tells = tells;
            pending::<Result<bool, Infallible>>().await
        }
    });
    let answer = dropped.clone();
    let service = by_seconds().respond_with(move |_| answer.load(Ordering::SeqCst));
    assert_eq!(service.layer(holding).oneshot(1).await, Ok(true));
}

// The client's side.

#[tokio::test(start_paused = true)]
async fn a_client_writes_what_is_left() {
    let client =
        PropagateLayer::new(|request: &mut (u32, Option<Duration>), remaining| request.1 = Some(remaining))
            .layer(service_fn(|request: (u32, Option<Duration>)| async move {
                Ok::<_, Infallible>(request)
            }));
    let call = || client.clone().oneshot((7, None));
    assert_eq!(call().await, Ok((7, None)), "there is no scope");
    let calls = deadline::within(SECOND, async {
        let first = call().await;
        sleep(ms(400)).await;
        let second = call().await;
        let shielded = deadline::shield(call()).await;
        (first, second, shielded)
    });
    let expected = [Some(SECOND), Some(ms(600)), None].map(|left| Ok((7, left)));
    assert_eq!(
        calls.await.map(|(first, second, third)| [first, second, third]),
        Ok(expected)
    );
    let past = deadline::until(Instant::now() - SECOND, call());
    assert_eq!(past.await, Ok(Ok((7, Some(Duration::ZERO)))));
}

#[tokio::test(start_paused = true)]
async fn a_client_in_a_proxy_is_called_inside_the_scope() {
    // The service inside does its work in `call`, before any poll.
    let header = DeadlineHeader::grpc_timeout();
    let proxy = ServiceBuilder::new()
        .layer(DeadlineLayer::from_request(header.reader()))
        .layer(PropagateLayer::new(DeadlineHeader::connect_timeout_ms().writer()))
        .service(service_fn(|request: Request<Body>| async move {
            Ok::<_, Infallible>(request)
        }));
    let request = Request::builder()
        .header("grpc-timeout", "250m")
        .body(Body::empty())
        .unwrap();
    let forwarded = proxy.oneshot(request).await.unwrap();
    assert_eq!(forwarded.headers()["connect-timeout-ms"], "250");
}

#[tokio::test(start_paused = true)]
async fn a_sooner_deadline_that_a_request_states_stays() {
    let (minute, second) = (60 * SECOND, SECOND);
    for (name, header) in HEADERS {
        let header = header();
        let client = PropagateLayer::new(header.writer()).layer(service_fn(|request: Request<Body>| async {
            Ok::<_, Infallible>(request.into_parts().0.headers)
        }));
        let unit = if name == "grpc-timeout" { "m" } else { "" };
        let sent = async |stated: &[&str], remaining| {
            let mut request = Request::new(Body::empty());
            for value in stated {
                let value = format!("{value}{unit}").parse().unwrap();
                request.headers_mut().append(name, value);
            }
            let headers = deadline::within(remaining, client.clone().oneshot(request));
            headers.await.unwrap().unwrap()
        };
        let short = sent(&["50"], minute).await;
        assert_eq!(short[name], format!("50{unit}").as_str(), "as it was");
        assert_eq!(header.read(&sent(&["0"], minute).await), Some(Duration::ZERO));
        for (stated, left) in [
            (&["70000"][..], second),
            (&["soon"], second),
            (&["70000", "50"], ms(50)),
            (&["50", "70000"], ms(50)),
            (&["70000", "80000"], second),
        ] {
            let sent = sent(stated, second).await;
            assert_eq!(header.read(&sent), Some(left), "{name}: {stated:?}");
        }
        assert_eq!(header.unreadable(), 0, "only what a server reads counts");
    }
}

// What the headers say.

fn read(header: &DeadlineHeader, name: &'static str, value: &[u8]) -> Option<Duration> {
    let mut request = Request::new(());
    request.headers_mut().insert(name, value.try_into().unwrap());
    header.reader()(&request)
}

fn written(header: &DeadlineHeader, name: &str, left: Duration) -> String {
    let mut headers = HeaderMap::new();
    header.write(&mut headers, left);
    headers[name].to_str().unwrap().to_owned()
}

#[test]
fn grpc_timeout_has_eight_digits_and_a_unit() {
    let grpc = DeadlineHeader::grpc_timeout();
    let read = |value: &str| read(&grpc, "grpc-timeout", value.as_bytes());
    let nanos = Duration::from_nanos;
    for (value, left) in [
        ("1n", nanos(1)),
        ("250u", Duration::from_micros(250)),
        ("00000300m", ms(300)),
        ("7S", 7 * SECOND),
        ("2M", 120 * SECOND),
        ("3H", 3 * 3_600 * SECOND),
        ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
        ("0m", Duration::ZERO),
    ] {
        assert_eq!(read(value), Some(left), "{value}");
    }
    assert_eq!(grpc.unreadable(), 0);
    let unreadable = [
        "",
        "7",
        "m",
        "7s",
        "7h",
        "-7m",
        "+7m",
        "7.5S",
        " 7m",
        "7 m",
        "7m ",
        "7mm",
        "m7",
        "123456789n",
        "0x7m",
        "７m",
        "7\u{b5}",
    ];
    for value in unreadable {
        assert_eq!(read(value), None, "{value}");
    }
    assert_eq!(grpc.unreadable(), unreadable.len() as u64);
    assert_eq!(grpc.clone().unreadable(), grpc.unreadable());
    assert_eq!(grpc.read(&HeaderMap::new()), None, "missing is not unreadable");
    assert_eq!(grpc.unreadable(), unreadable.len() as u64);

    for (left, value) in [
        (Duration::ZERO, "0n"),
        (nanos(1), "1n"),
        (ms(99), "99000000n"),
        (nanos(99_999_999), "99999999n"),
        (nanos(100_000_999), "100000u"),
        (ms(300), "300000u"),
        (100 * SECOND - nanos(1), "99999999u"),
        (100 * SECOND, "100000m"),
        (100_000 * SECOND, "100000S"),
        (100_000_000 * SECOND, "1666666M"),
        (Duration::from_secs(6_000_000_000), "1666666H"),
        (Duration::MAX, "99999999H"),
    ] {
        assert_eq!(written(&grpc, "grpc-timeout", left), value, "{left:?}");
    }
}

#[test]
fn milliseconds_are_rounded_down() {
    for (name, header) in &HEADERS[1..] {
        let header = header();
        for (value, left) in [
            ("0", 0),
            ("1", 1),
            ("300", 300),
            ("0300", 300),
            ("9999999999", 9_999_999_999),
        ] {
            assert_eq!(
                read(&header, name, value.as_bytes()),
                Some(ms(left)),
                "{name}: {value}"
            );
        }
        for value in ["", "1.5", "-1", "+1", "1m", "1 ", "99999999999999999999"] {
            assert_eq!(read(&header, name, value.as_bytes()), None, "{name}: {value}");
        }
        assert_eq!(read(&header, name, b"\xff"), None);
        assert_eq!(header.unreadable(), 8);
        assert_eq!(written(&header, name, Duration::from_micros(1_999)), "1");
        assert_eq!(written(&header, name, Duration::from_micros(999)), "0");
    }
    let connect = DeadlineHeader::connect_timeout_ms();
    assert_eq!(
        written(&connect, "connect-timeout-ms", Duration::MAX),
        "9999999999"
    );
    assert_eq!(read(&connect, "connect-timeout-ms", b"10000000000"), None);
}

proptest! {
    #[test]
    fn a_budget_never_grows_on_its_way(secs in 0..=u64::MAX, shift in 0..64_u32, nanos in 0..1_000_000_000_u32) {
        let left = Duration::new(secs >> shift, nanos);
        for (name, header) in HEADERS {
            let header = header();
            let mut headers = HeaderMap::new();
            header.write(&mut headers, left);
            let arrived = header.read(&headers).unwrap();
            prop_assert!(arrived <= left, "{}: {:?}", name, headers);
            // And it loses little, unless the header cannot say so much.
            let lost = left - arrived;
            match name {
                "grpc-timeout" => prop_assert!(lost <= left / 100_000 || left.as_secs() >= 99_999_999 * 3_600),
                _ => prop_assert!(lost < ms(1) || left.as_secs() >= 9_999_999),
            }
            // A second hop says the same again.
            let mut again = HeaderMap::new();
            header.write(&mut again, arrived);
            prop_assert_eq!(header.read(&again), Some(arrived));
        }
    }

    #[test]
    fn no_header_value_panics(value in proptest::collection::vec(0x20..0x7f_u8, 0..40), digits in "[0-9]{0,25}[HMSmun]?") {
        for (name, header) in HEADERS {
            read(&header(), name, &value);
            read(&header(), name, digits.as_bytes());
        }
    }
}
