//! Timeouts inside timeouts, as in a server that bounds a request and each call that the request makes, and
//! what goes with them: scopes, timeouts that may be refused, and timeouts in a combinator.
//!
//! No timer waits meanwhile that is due earlier, so each of Tokio's timers wakes its driver. That writes to an
//! eventfd, because the runtime waits for sockets, too.

use std::{hint::black_box, time::Duration};

use tickwheel::Wheel;

use crate::polled::{Once, fresh, once};

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(2);
/// The timeout of the request that makes the call.
const REQUEST: Duration = Duration::from_secs(5);
/// The timeout of what serves the request.
const CONNECTION: Duration = Duration::from_secs(30);

/// The kinds of work in this file.
pub const WORK: [&str; 5] = [
    "two-timeouts",
    "three-timeouts",
    "scope",
    "try-timeout",
    "combinator",
];

macro_rules! count {
    ($name:ident, $timeout:path, $scope:path, $try_timeout:expr) => {
        pub async fn $name(work: &str, times: u64) {
            let call = || $timeout(black_box(CALL), Once::default());
            let request = || $timeout(black_box(REQUEST), call());
            match work {
                "two-timeouts" => once(times, request).await,
                "three-timeouts" => once(times, || $timeout(black_box(CONNECTION), request())).await,
                "scope" => once(times, || $scope(black_box(REQUEST), call())).await,
                "try-timeout" => {
                    let try_timeout = $try_timeout;
                    once(times, || try_timeout(black_box(CALL), Once::default())).await
                }
                "combinator" => fresh(times, call),
                work => panic!("there is no {work}"),
            }
        }
    };
}

count!(
    tickwheel,
    tickwheel::time::timeout,
    tickwheel::deadline::within,
    {
        let wheel = Wheel::new();
        move |duration, future| wheel.try_timeout(duration, future)
    }
);
// Tokio has no scopes and refuses no timeout.
count!(
    tokio,
    tokio::time::timeout,
    tokio::time::timeout,
    tokio::time::timeout
);
