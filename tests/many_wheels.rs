//! The warning about too many wheels. A process of its own, because each process emits it once.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tickwheel::Wheel;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn more_than_64_wheels_alive_are_warned_of_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _recording = tracing::subscriber::set_default(subscriber);
    let warnings = || {
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains("timing wheels")).count()
    };

    // One for each runtime is as it should be.
    let runtimes: Vec<_> = (0..100)
        .map(|_| tokio::runtime::Builder::new_current_thread().build().unwrap())
        .collect();
    for runtime in &runtimes {
        runtime.block_on(async { drop(Wheel::current()) });
    }
    // Made and dropped, they are not too many.
    (0..200).for_each(|_| drop(Wheel::new()));
    let mut wheels: Vec<_> = (0..64).map(|_| Wheel::new()).collect();
    // Clones are the same wheel.
    let clones: Vec<_> = (0..64).map(|wheel| wheels[wheel].clone()).collect();
    assert_eq!(warnings(), 0);

    wheels.push(Wheel::new());
    assert_eq!(warnings(), 1);
    wheels.extend((0..100).map(|_| Wheel::new()));
    assert_eq!(warnings(), 1);
    drop(clones);
}
