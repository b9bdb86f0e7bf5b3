//! The shard with its parts, and the driver's alarm, for model checking: see `src/shard/loom/` and `src/driver/loom/`.
#![cfg(all(test, loom))]
#![allow(dead_code, unused_imports)]

#[path = "../../src/clock/mod.rs"]
mod clock;
#[path = "."]
mod driver {
    #[path = "../../src/driver/alarm.rs"]
    mod alarm;
    #[path = "../../src/driver/loom/mod.rs"]
    mod loom;
}
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/shard/mod.rs"]
mod shard;
mod sync;
#[path = "../../src/timing_wheel/mod.rs"]
mod timing_wheel;
