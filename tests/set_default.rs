//! `Builder::set_default`. A process of its own, because the default is set once per process.

mod support;

use std::future::pending;

use support::*;
use tickwheel::{BuildError, SetDefaultError, Wheel, time};
use tokio::time::Instant;

#[test]
fn current_wheels_have_the_settings_that_were_given_once() {
    let before = paused_runtime();
    let earlier = before.block_on(async { Wheel::current() });

    // What is refused uses nothing up.
    let refused = Wheel::builder().levels(9).set_default();
    assert_eq!(
        refused,
        Err(SetDefaultError::Build(BuildError::Levels { given: 9 }))
    );
    let with_handle = Wheel::builder().handle(before.handle().clone()).set_default();
    assert_eq!(with_handle, Err(SetDefaultError::Handle));
    let both = Wheel::builder().levels(9).handle(before.handle().clone());
    assert!(both.set_default().is_err());

    let settings = Wheel::builder()
        .tick_duration(ms(1))
        .ticks_per_wheel(64)
        .levels(3)
        .max_pending(2)
        .name("everywhere");
    settings.clone().set_default().unwrap();
    assert_eq!(settings.set_default(), Err(SetDefaultError::AlreadySet));
    // A mistake is one, also when it comes too late.
    let late = Wheel::builder().levels(9).set_default();
    assert!(late.is_err());
    for error in [
        SetDefaultError::AlreadySet,
        SetDefaultError::Handle,
        late.unwrap_err(),
    ] {
        assert!(error.to_string().len() > 10, "{error}");
    }

    // Those made before keep theirs, those made by hand have their own.
    assert_eq!(earlier.tick_duration(), TICK);
    assert_eq!(before.block_on(async { Wheel::current() }).tick_duration(), TICK);
    assert_eq!(Wheel::new().tick_duration(), TICK);

    let runtime = paused_runtime();
    runtime.block_on(async {
        let wheel = Wheel::current();
        assert_eq!(wheel.tick_duration(), ms(1));
        assert_eq!(wheel.ticks_per_wheel(), 64);
        assert_eq!(wheel.levels(), 3);
        assert_eq!(wheel.max_pending(), Some(2));
        assert_eq!(wheel.shards(), 1, "as many as the runtime has workers");
        assert!(format!("{wheel:?}").contains("everywhere"));

        // Full, it refuses, and all of `time` goes on by Tokio's timer.
        let mut filling = [wheel.sleep(DAY), wheel.sleep(DAY)];
        filling.iter_mut().for_each(register);
        let start = Instant::now();
        time::sleep(SECOND).await;
        assert_due(start, SECOND);
        assert!(time::timeout(SECOND, pending::<()>()).await.is_err());
        assert_due(start, SECOND * 2);
        assert!(
            time::timeout_at(start + SECOND * 3, pending::<()>())
                .await
                .is_err()
        );
        assert_due(start, SECOND * 3);
        let mut interval = time::interval(SECOND);
        for beat in 3..6 {
            interval.tick().await;
            assert_due(start, SECOND * beat);
        }
        let rejected = wheel.metrics().rejected;
        assert!(rejected >= 5, "{rejected}");

        // With room again, the wheel has the next.
        drop(filling);
        interval.tick().await;
        time::sleep(SECOND).await;
        assert_eq!(wheel.metrics().rejected, rejected);
    });

    let runtime = threaded_runtime(3);
    let wheel = runtime.block_on(async { Wheel::current() });
    assert_eq!(wheel.shards(), 4);
}
