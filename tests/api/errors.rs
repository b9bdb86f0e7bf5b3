//! How errors show themselves.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use tickwheel::{ScheduleError, SleepError, TimeoutError, Wheel, deadline::LimitError};

/// Asserts that an error shows as `text`, and keeps the width, fill and alignment that one asks for, as
/// Tokio's errors do.
#[track_caller]
pub(crate) fn assert_shows(error: &(impl Display + Debug + ?Sized), text: &str) {
    assert_eq!(error.to_string(), text);
    let width = text.chars().count() + 3;
    assert_eq!(format!("{error:width$}"), format!("{text}   "));
    assert_eq!(format!("{error:*>width$}"), format!("***{text}"));
    assert_eq!(format!("{error:-^width$}"), format!("-{text}--"));
    assert_eq!(format!("{error:.3}"), text[..3]);
}

#[test]
fn errors_keep_the_width_that_one_asks_for() {
    let full = "the wheel is at its capacity of 7 pending timers";
    assert_shows(&SleepError::AtCapacity { limit: 7 }, full);
    assert_shows(&SleepError::Shutdown, "the wheel has been shut down");
    assert_shows(&TimeoutError::Elapsed, "deadline has elapsed");
    assert_shows(&TimeoutError::AtCapacity { limit: 7 }, full);
    assert_shows(&TimeoutError::Shutdown, "the wheel has been shut down");
    assert_shows(&ScheduleError::AtCapacity { limit: 7 }, full);
    assert_shows(&ScheduleError::Shutdown, "the wheel has been shut down");
    assert_shows(
        &ScheduleError::Cancelled,
        "the task was cancelled, or its runtime has ended",
    );
    let panicked = ScheduleError::Panicked("at the disco".into());
    assert_shows(&panicked, "the task panicked: at the disco");
    assert_shows(&LimitError::Timeout, "timeout has elapsed");
    assert_shows(&LimitError::Deadline, "deadline has elapsed");
}

#[tokio::test(start_paused = true)]
async fn an_elapsed_timeout_keeps_the_width_as_that_of_tokio_does() {
    let second = Duration::from_secs(1);
    let ours = tickwheel::time::timeout(second, std::future::pending::<()>())
        .await
        .unwrap_err();
    let theirs = tokio::time::timeout(second, std::future::pending::<()>())
        .await
        .unwrap_err();
    assert_shows(&ours, &theirs.to_string());
    assert_shows(&theirs, "deadline has elapsed");
}

#[test]
fn a_wheel_that_cannot_be_built_keeps_the_width_that_one_asks_for() {
    let error = |builder: tickwheel::Builder| builder.build().unwrap_err();
    let builder = Wheel::builder;
    let hours = Duration::from_secs(7_200);
    let is_precise = cfg!(all(feature = "precise", target_os = "linux"));
    let shortest = if is_precise { "20µs" } else { "1ms" };
    assert_shows(
        &error(builder().tick_duration(hours)),
        &format!("a tick duration of 7200s is not within {shortest}..=3600s"),
    );
    assert_shows(
        &error(builder().ticks_per_wheel(0)),
        "0 ticks per wheel are not within 1..=1048576",
    );
    assert_shows(&error(builder().levels(9)), "9 levels are not within 1..=8");
    assert_shows(&error(builder().shards(0)), "0 shards are not within 1..=1024");
    assert_shows(
        &error(builder().slack(hours)),
        "a slack of 7200s is not within 0ns..=3600s",
    );
    assert_shows(
        &error(builder().max_pending(0)),
        "a limit of 0 pending timers is not within 1..=4294967295",
    );
    assert_shows(
        &error(builder().capacity(0)),
        "a capacity of 0 timers is not within 1..=4294967295",
    );
}
