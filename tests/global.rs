//! `Wheel::global` and `Builder::build_global`. Each case has a process of its own, because each process has
//! one global wheel.

mod support;

use std::{error::Error, future::pending};

use support::*;
use tickwheel::{BuildError, GlobalError, Wheel, time};
use tokio::time::Instant;

use own_process::in_own_process;

#[test]
fn it_has_the_settings_that_were_built() {
    if !in_own_process(it_has_the_settings_that_were_built, "") {
        return;
    }
    Wheel::builder()
        .tick_duration(ms(10))
        .ticks_per_wheel(64)
        .levels(3)
        .slack(ms(40))
        .shards(4)
        .max_pending(2)
        .name("everywhere")
        .build_global()
        .unwrap();
    let wheel = Wheel::global();
    assert_eq!(wheel.tick_duration(), ms(10));
    assert_eq!(wheel.ticks_per_wheel(), 64);
    assert_eq!(wheel.levels(), 3);
    assert_eq!(wheel.slack(), ms(40));
    assert_eq!(wheel.max_pending(), Some(2));
    assert_eq!(wheel.name(), Some("everywhere"));
    // A wheel that is made by hand has its own.
    assert_eq!(Wheel::new().tick_duration(), TICK);

    paused_runtime().block_on(async {
        // What may be refused is, and `time` is not.
        let mut filling = [wheel.try_sleep(DAY), wheel.try_sleep(DAY)];
        filling.iter_mut().for_each(register);
        assert!(wheel.try_sleep(SECOND).await.is_err());
        let start = Instant::now();
        time::sleep(SECOND).await;
        assert_due(start, SECOND);
        assert!(time::timeout(ms(1_995), pending::<()>()).await.is_err());
        assert_due(start, SECOND * 3);
        assert_eq!(wheel.metrics().rejected, 1);
        assert_eq!(wheel.snapshot().shards.len(), 4);
    });
}

#[test]
fn it_has_the_defaults_unless_it_was_built() {
    if !in_own_process(it_has_the_defaults_unless_it_was_built, "") {
        return;
    }
    let (wheel, defaults) = (Wheel::global(), Wheel::new());
    assert_eq!(wheel.tick_duration(), defaults.tick_duration());
    assert_eq!(wheel.slack(), defaults.slack());
    assert_eq!((wheel.max_pending(), wheel.name()), (None, None));
}

#[test]
fn what_is_refused_uses_nothing_up() {
    if !in_own_process(what_is_refused_uses_nothing_up, "") {
        return;
    }
    let runtime = paused_runtime();
    let levels = Err(GlobalError::Build(BuildError::Levels { given: 9 }));
    assert_eq!(Wheel::builder().levels(9).build_global(), levels);
    let with_handle = Wheel::builder().handle(runtime.handle().clone());
    assert_eq!(with_handle.build_global(), Err(GlobalError::Handle));
    Wheel::builder().levels(2).build_global().unwrap();
    assert_eq!(Wheel::global().levels(), 2);
    // A mistake is one, also when it comes too late.
    assert_eq!(Wheel::builder().levels(9).build_global(), levels);
}

#[test]
fn it_is_built_once() {
    if !in_own_process(it_is_built_once, "") {
        return;
    }
    Wheel::builder().levels(2).build_global().unwrap();
    let again = Wheel::builder().levels(3).build_global();
    assert_eq!(again, Err(GlobalError::AlreadyBuilt));
    assert_eq!(Wheel::global().levels(), 2);
}

#[test]
fn it_is_not_built_after_its_first_use() {
    for first_use in ["handle", "sleep", "label", "ready timeout", "other wheel"] {
        let setup = format!("export FIRST_USE='{first_use}';");
        if !in_own_process(it_is_not_built_after_its_first_use, &setup) {
            continue;
        }
        let runtime = paused_runtime();
        let is_a_use = match std::env::var("FIRST_USE").unwrap().as_str() {
            "handle" => {
                drop(Wheel::global());
                true
            }
            "sleep" => {
                runtime.block_on(async { time::sleep(SECOND).await });
                true
            }
            "label" => {
                static LABEL: time::Label = time::Label::new("label");
                runtime
                    .block_on(async { LABEL.timeout(SECOND, async {}).await })
                    .unwrap();
                true
            }
            "ready timeout" => {
                runtime
                    .block_on(async { time::timeout(SECOND, async {}).await })
                    .unwrap();
                false
            }
            _ => {
                let labelled = Wheel::new().labelled("label");
                runtime.block_on(labelled.timeout(SECOND, async {})).unwrap();
                runtime
                    .block_on(labelled.timeout(SECOND, tokio::task::yield_now()))
                    .unwrap();
                false
            }
        };
        let built = Wheel::builder().levels(3).build_global();
        let expected = if is_a_use {
            Err(GlobalError::AlreadyBuilt)
        } else {
            Ok(())
        };
        return assert_eq!(built, expected);
    }
}

#[test]
fn its_errors_say_what_to_do() {
    let built = GlobalError::Build(BuildError::Levels { given: 9 });
    assert_eq!(built.to_string(), BuildError::Levels { given: 9 }.to_string());
    for (error, word) in [
        (GlobalError::AlreadyBuilt, "before its first timer"),
        (GlobalError::Handle, "handle"),
    ] {
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.source().is_none());
    }
}
