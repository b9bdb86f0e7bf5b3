//! The timing wheel against the model that its property tests use: `cargo +nightly fuzz run timing_wheel`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "."]
#[allow(dead_code, unused_imports)]
mod engine {
    #[path = "../../src/engine/timing_wheel/mod.rs"]
    pub mod timing_wheel;
}

use engine::timing_wheel::model::{self, Op};

fuzz_target!(|input: (u8, u8, Vec<Op>)| {
    let (ticks_per_wheel, levels, ops) = input;
    match ticks_per_wheel {
        u8::MAX => model::run(512, 4, &ops),
        small => model::run(2 + usize::from(small) % 7, 1 + usize::from(levels) % 4, &ops),
    }
});
