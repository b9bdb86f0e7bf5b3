//! The wheel for timers that are first polled outside any Tokio runtime.

use std::{
    future::pending,
    process,
    sync::{Mutex, PoisonError},
    thread,
};

use tickwheel::Wheel;
use tokio::runtime::Builder;

/// The wheel, and the process whose thread drives it: a fork leaves that thread behind.
static WHEEL: Mutex<Option<(u32, Wheel)>> = Mutex::new(None);

/// Returns the wheel that a thread of its own drives. The first call starts both.
pub(crate) fn wheel() -> Wheel {
    let process = process::id();
    let mut wheel = WHEEL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*wheel {
        Some((started_in, wheel)) if *started_in == process => wheel.clone(),
        _ => wheel.insert((process, start())).1.clone(),
    }
}

fn start() -> Wheel {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime with timers alone opens nothing");
    let wheel = Wheel::builder()
        .handle(runtime.handle().clone())
        .build()
        .expect("the default settings are within every limit");
    thread::Builder::new()
        .name("tickwheel".into())
        .spawn(move || runtime.block_on(pending::<()>()))
        .expect("the wheel needs a thread");
    wheel
}
