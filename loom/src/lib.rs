//! The shard with its parts, and the driver's alarm, for model checking: see `src/engine/shard/loom/` and `src/engine/driver/loom/`.
#![cfg(all(test, loom))]
#![allow(dead_code, unused_imports)]

#[path = "."]
mod engine {
    #[path = "../../src/engine/clock/mod.rs"]
    mod clock;
    #[path = "."]
    mod driver {
        #[path = "../../src/engine/driver/alarm.rs"]
        mod alarm;
        #[path = "../../src/engine/driver/loom/mod.rs"]
        mod loom;
    }
    #[path = "../../src/engine/labels/mod.rs"]
    mod labels;
    #[path = "../../src/engine/shard/mod.rs"]
    mod shard;
    mod sync;
    #[path = "../../src/engine/timing_wheel/mod.rs"]
    mod timing_wheel;
}
#[path = "../../src/error.rs"]
mod error;
