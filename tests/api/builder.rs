//! `Builder` and `BuildError`: every limit, and the settings that the wheel reports.

use crate::support;

use std::{error::Error, time::Duration};

use tickwheel::{BuildError, Builder, Wheel};

use support::{SECOND, ms, paused_runtime, real_runtime, register, threaded_runtime};

const HOUR: Duration = Duration::from_secs(3600);
const TOO_MANY_TIMERS: usize = u32::MAX as usize + 1;

#[track_caller]
fn assert_refused(builder: Builder, expected: &BuildError, message: &str) {
    let error = builder.build().unwrap_err();
    assert_eq!(error, *expected);
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_tick_lasts_from_a_millisecond_to_an_hour() {
    let (shortest, why) = if cfg!(all(feature = "precise", target_os = "linux")) {
        (Duration::from_micros(20), "")
    } else {
        (ms(1), "; shorter ones take Linux and the feature `precise`")
    };
    let nano = Duration::from_nanos(1);
    for (given, why) in [
        (Duration::ZERO, why),
        (nano, why),
        (shortest - nano, why),
        (HOUR + nano, ""),
        (Duration::MAX, ""),
    ] {
        assert_refused(
            Wheel::builder().tick_duration(given),
            &BuildError::TickDuration { given },
            &format!("a tick duration of {given:?} is not within {shortest:?}..=3600s{why}"),
        );
    }
    for allowed in [ms(1), ms(10), HOUR] {
        let wheel = Wheel::builder().tick_duration(allowed).build().unwrap();
        assert_eq!(wheel.tick_duration(), allowed);
    }
}

#[test]
fn ticks_per_wheel_are_from_1_to_2_to_the_20() {
    for given in [0, (1 << 20) + 1, usize::MAX] {
        assert_refused(
            Wheel::builder().ticks_per_wheel(given),
            &BuildError::TicksPerWheel { given },
            &format!("{given} ticks per wheel are not within 1..=1048576"),
        );
    }
    for (given, taken) in [
        (1, 2),
        (2, 2),
        (3, 4),
        (512, 512),
        (513, 1024),
        (1 << 20, 1 << 20),
    ] {
        let builder = Wheel::builder().ticks_per_wheel(given).levels(1).shards(1);
        assert_eq!(
            builder.build().unwrap().ticks_per_wheel(),
            taken,
            "{given} were given"
        );
    }
}

#[test]
fn levels_are_from_1_to_8() {
    for given in [0, 9, usize::MAX] {
        assert_refused(
            Wheel::builder().levels(given),
            &BuildError::Levels { given },
            &format!("{given} levels are not within 1..=8"),
        );
    }
    for allowed in 1..=8 {
        let wheel = Wheel::builder()
            .levels(allowed)
            .ticks_per_wheel(4)
            .build()
            .unwrap();
        assert_eq!(wheel.levels(), allowed);
    }
}

#[test]
fn shards_are_from_1_to_1024_and_a_power_of_two() {
    for given in [0, 1025, usize::MAX] {
        assert_refused(
            Wheel::builder().shards(given),
            &BuildError::Shards { given },
            &format!("{given} shards are not within 1..=1024"),
        );
    }
    let runtime = paused_runtime();
    let _guard = runtime.enter();
    for (given, taken) in [(1, 1), (3, 4), (5, 8), (1000, 1024), (1024, 1024)] {
        let wheel = Wheel::builder().shards(given).ticks_per_wheel(2).levels(1);
        let wheel = wheel.build().unwrap();
        register(&mut wheel.sleep(ms(1)));
        assert_eq!(wheel.snapshot().shards.len(), taken, "{given} were given");
    }
}

#[test]
fn unless_it_was_given_a_runtime_has_as_many_shards_as_workers() {
    let runtimes = [1, 2, 3].map(|workers| (threaded_runtime(workers), workers.next_power_of_two()));
    for (runtime, shards) in runtimes.into_iter().chain([(real_runtime(), 1)]) {
        let _guard = runtime.enter();
        let wheel = Wheel::new();
        let mut sleep = wheel.sleep(SECOND);
        register(&mut sleep);
        assert_eq!(wheel.snapshot().shards.len(), shards);
    }
}

#[test]
fn a_limit_of_pending_timers_is_from_1_to_u32_max() {
    for given in [0, TOO_MANY_TIMERS, usize::MAX] {
        assert_refused(
            Wheel::builder().max_pending(given),
            &BuildError::MaxPending { given },
            &format!("a limit of {given} pending timers is not within 1..=4294967295"),
        );
    }
    for allowed in [1, u32::MAX as usize] {
        let wheel = Wheel::builder().max_pending(allowed).build().unwrap();
        assert_eq!(wheel.max_pending(), Some(allowed));
    }
}

#[test]
fn a_capacity_is_from_1_to_u32_max() {
    for given in [0, TOO_MANY_TIMERS, usize::MAX] {
        assert_refused(
            Wheel::builder().capacity(given),
            &BuildError::Capacity { given },
            &format!("a capacity of {given} timers is not within 1..=4294967295"),
        );
    }
    Wheel::builder().capacity(1).build().unwrap();
}

#[test]
fn the_first_setting_out_of_its_limits_is_the_one_reported() {
    let all_wrong = || {
        Wheel::builder()
            .ticks_per_wheel(0)
            .levels(0)
            .shards(0)
            .max_pending(0)
    };
    assert_eq!(
        all_wrong().build().unwrap_err(),
        BuildError::TicksPerWheel { given: 0 }
    );
    let the_rest = all_wrong().ticks_per_wheel(8);
    assert_eq!(the_rest.build().unwrap_err(), BuildError::Levels { given: 0 });
}

#[test]
fn a_build_error_goes_wherever_errors_go() {
    let error: Box<dyn Error + Send + Sync> = Box::new(Wheel::builder().levels(0).build().unwrap_err());
    assert_eq!(error.to_string(), "0 levels are not within 1..=8");
    assert_eq!(
        *error.downcast::<BuildError>().unwrap(),
        BuildError::Levels { given: 0 }
    );
}

#[test]
fn a_capacity_is_there_from_the_first_timer_on_and_stays() {
    let wheel = Wheel::builder().capacity(5_000).shards(1).build().unwrap();
    assert_eq!(
        wheel.metrics().arena_bytes,
        0,
        "there is no runtime to have it in"
    );
    let runtime = real_runtime();
    runtime.block_on(async {
        register(&mut wheel.sleep(SECOND));
        let before = wheel.metrics().arena_bytes;
        assert!(before >= 5_000 * 32, "{before} bytes cannot hold 5,000 timers");
        let mut sleeps: Vec<_> = (0..5_000).map(|_| wheel.sleep(SECOND)).collect();
        for sleep in &mut sleeps {
            assert!(futures::poll!(sleep).is_pending());
        }
        assert_eq!(wheel.metrics().arena_bytes, before, "nothing had to grow");
        drop(sleeps);
        assert_eq!(wheel.metrics().arena_bytes, before, "what was asked for is kept");
        let spread = Wheel::builder().capacity(5_001).shards(2).build().unwrap();
        register(&mut spread.sleep(SECOND));
        assert!(
            spread.metrics().arena_bytes * 2 > before,
            "where it does not divide by the shards, it is rounded up"
        );
    });
    assert_eq!(wheel.pending(), 0);
    drop(runtime);
    assert_eq!(wheel.metrics().arena_bytes, 0);
}

#[test]
fn the_defaults_are_those_of_new() {
    for wheel in [
        Wheel::new(),
        Wheel::default(),
        Builder::default().build().unwrap(),
    ] {
        assert_eq!(wheel.tick_duration(), ms(1));
        assert_eq!(wheel.ticks_per_wheel(), 512);
        assert_eq!(wheel.levels(), 4);
        assert_eq!(wheel.max_pending(), None);
    }
}

#[test]
fn a_wheel_has_the_name_that_it_was_given() {
    assert_eq!(
        Wheel::builder().name("leases").build().unwrap().name(),
        Some("leases")
    );
    assert_eq!(Wheel::new().name(), None);
}

#[test]
fn a_wheel_tells_its_name_and_settings_in_debug() {
    let wheel = Wheel::builder()
        .name("leases")
        .levels(3)
        .max_pending(77)
        .build()
        .unwrap();
    let debug = format!("{wheel:?}");
    for part in ["leases", "levels: 3", "Some(77)", "tick_duration: 1ms", "512"] {
        assert!(debug.contains(part), "{part} is missing in {debug}");
    }
}

#[test]
fn a_builder_can_be_kept_and_used_twice() {
    let builder = Wheel::builder().levels(2);
    let (first, second) = (builder.clone().build().unwrap(), builder.build().unwrap());
    drop(first.shutdown());
    assert!(first.is_shutdown());
    assert!(!second.is_shutdown(), "they are two wheels");
}

#[test]
fn slack_is_an_hour_at_most() {
    for given in [HOUR + Duration::from_nanos(1), Duration::MAX] {
        assert_refused(
            Wheel::builder().slack(given),
            &BuildError::Slack { given },
            &format!("a slack of {given:?} is not within 0ns..=3600s"),
        );
    }
    for allowed in [Duration::ZERO, Duration::from_nanos(1), ms(300), HOUR] {
        let wheel = Wheel::builder().slack(allowed).build().unwrap();
        assert_eq!(wheel.slack(), allowed);
        assert!(format!("{wheel:?}").contains(&format!("slack: {allowed:?}")));
    }
    assert_eq!(Wheel::new().slack(), ms(100));
}
