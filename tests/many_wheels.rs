//! The warning about too many wheels. A process of its own, because each process emits it once.

#[path = "support/lines.rs"]
mod lines;

use tickwheel::Wheel;

use lines::Lines;

#[test]
fn more_than_64_wheels_alive_are_warned_of_once() {
    let (lines, _recording) = Lines::record();
    let warnings = || {
        let told = lines.of_the_wheel();
        told.iter().filter(|line| line.contains("timing wheels")).count()
    };

    // The global one in each of many runtimes is as it should be.
    let runtimes: Vec<_> = (0..100)
        .map(|_| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build().unwrap()
        })
        .collect();
    for runtime in &runtimes {
        runtime.block_on(async { tickwheel::time::sleep(std::time::Duration::from_millis(1)).await });
    }
    assert_eq!(Wheel::global().metrics().engines, 100);
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
